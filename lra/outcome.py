"""What became of a run, read from its folder; no process has to be asked."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lra import locks, record
from lra.errors import UserError
from lra.files import explained, read_json, read_regular
from lra.record import CONFIG, ERRORS, LOCK

if TYPE_CHECKING:  # the report reads outcomes, too, and shall not wait for hydra
    from lra.settings import Settings

INEXACT = ("precision", "train.micro_batch", "train.eval_batch")  # may change on the way with resume=inexact
LEFT_ALONE = {  # by `retry`: runs with which the same command does nothing any more
    "none": ("finished", "diverged", "failed"),
    "failed": ("finished", "diverged"),
    "all": ("finished",),
}
ERROR_BYTES = 2**20  # the most that error.log may have


def complete(folder: Path, settings: "Settings") -> dict[str, Any] | None:
    """The record of this very run where it is complete; None where there is work to do.

    Raises UserError, with the difference, where the folder holds a run of another configuration.
    """
    found = recorded(folder)
    for earlier in (_configuration(folder), found and found.get("config")):
        changes = [] if earlier is None else another_run(earlier, settings)
        if changes:
            raise UserError(
                f"{folder} holds a run with another configuration ({'; '.join(changes)}); "
                "choose another out=..., or delete that folder"
            )
    return found if found and found["status"] in LEFT_ALONE[settings.retry] else None


def another_run(identity: Mapping[str, Any], settings: "Settings") -> list[str]:
    """What tells the run of this identity from that of the settings, but for what `resume=inexact` lets change."""
    now = json.loads(json.dumps(settings.identity))
    may_change = INEXACT if settings.resume == "inexact" else ()
    return [
        f"{key}: {there} there, {here} now"
        for key, there, here in record.differences(identity, now)
        if key not in may_change
    ]


def _configuration(folder: Path) -> Any:
    """The identity in `config.json`; None where there is none."""
    try:
        return read_json(folder / CONFIG)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise UserError(f"{folder / CONFIG}: damaged: {error}; delete {folder} to train again") from None


def nothing_to_do(title: str, folder: Path, status: str) -> str:
    """What is said of a run that is complete."""
    hint = {"diverged": "; retry=all begins it anew", "failed": "; retry=failed tries again"}
    return f"{title}: {status} before, nothing to do ({folder}{hint.get(status, '')})"


def outcome(folder: Path, settings: "Settings") -> tuple[str, str]:
    """As `state`, of the run with these settings."""
    try:
        complete(folder, settings)
        return state(folder)
    except UserError as error:
        return "refused", str(error)


def state(folder: Path) -> tuple[str, str]:
    """How a run stands, and why or where: finished, running, diverged, failed, paused, refused, killed or waiting.

    A run is running while a process holds its lock. Raises UserError where its record is damaged.
    """
    found = recorded(folder)
    if found is not None and found["status"] == "finished":
        return "finished", ""
    at_work = locks.holder(folder / LOCK)
    if at_work is not None:
        return "running", at_work
    if found is not None:
        return found["status"], found.get("reason", "")
    if (folder / ERRORS).exists():
        return "refused", _why(folder / ERRORS)
    return ("killed", "it ended without a word") if (folder / CONFIG).exists() else ("waiting", "it never started")


def _why(path: Path) -> str:
    try:
        return read_regular(path, ERROR_BYTES).decode(errors="replace").strip()
    except (OSError, ValueError) as error:
        return f"{path}: {error}"


def recorded(folder: Path) -> dict[str, Any] | None:
    """The record of a run, None where there is none. Raises UserError where it is damaged or out of reach."""
    try:
        if not (folder / record.NAME).exists():
            return None
        found = record.read(folder / record.NAME)
        if found.get("status") not in record.STATUSES:
            raise ValueError(f"{folder / record.NAME}: not a readable record: it says not how the run ended")
        return found
    except OSError as error:
        raise explained(error, folder, None) from error
    except ValueError as error:
        raise UserError(f"{error}; delete it to train again") from None
