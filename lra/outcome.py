"""What became of a run, read from its folder; no process has to be asked."""

import json
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from lra import record
from lra.errors import UserError
from lra.settings import CONFIG, Settings

ERRORS, LOCK = "error.log", ".run.lock"
INEXACT = ("precision", "train.micro_batch", "train.eval_batch")  # may change on the way with resume=inexact


def finished(folder: Path, settings: Settings) -> dict[str, Any] | None:
    """The record of this very run where it is complete; None where there is work to do.

    Raises UserError, with the difference, where the folder holds a run of another configuration.
    """
    if (folder / CONFIG).exists():
        try:
            earlier = json.loads((folder / CONFIG).read_text())
        except (ValueError, RecursionError) as error:
            raise UserError(f"{folder / CONFIG}: damaged: {error}; delete {folder} to train again") from None
        now = json.loads(json.dumps(settings.identity))
        differences = record.differences(earlier, now)
        changes = [f"{key}: {old} there, {new} now" for key, old, new in differences]
        inexact = settings.resume == "inexact" and all(key in INEXACT for key, *_ in differences)
        if changes and not inexact:
            raise UserError(
                f"{folder} holds a run with another configuration ({'; '.join(changes)}); "
                "choose another out=..., or delete that folder"
            )
    found = _record(folder)
    return found if found and found["status"] in ("finished", "diverged") else None


def outcome(folder: Path, settings: Settings) -> tuple[str, str]:
    """One of finished, diverged, failed, paused, refused, running and missing; and why."""
    try:
        if finished(folder, settings) is None and at_work(folder):
            return "running", "another process is at work on it"
        found = _record(folder)
    except UserError as error:
        return "refused", str(error)
    if found is not None:
        return found["status"], found.get("reason", "")
    if (folder / ERRORS).exists():
        return "refused", (folder / ERRORS).read_text().strip()
    return "missing", "it was killed" if (folder / CONFIG).exists() else "it never started"


def at_work(folder: Path) -> bool:
    """Whether a process holds this run. The lock is the system's and dies with its holder."""
    if not (folder / LOCK).exists():
        return False
    try:
        with FileLock(folder / LOCK, timeout=0):
            return False
    except Timeout:
        return True


def _record(folder: Path) -> dict[str, Any] | None:
    if not (folder / record.NAME).exists():
        return None
    try:
        return record.read(folder / record.NAME)
    except ValueError as error:
        raise UserError(f"{error}; delete it to train again") from None
