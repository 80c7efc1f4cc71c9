"""What became of a run, read from its folder; no process has to be asked."""

from pathlib import Path
from typing import Any

from lra.core import locks
from lra.core.errors import UserError
from lra.core.files import explained, read_regular
from lra.records import record
from lra.records.names import CONFIG, ERRORS, LOCK, RECORD
from lra.records.receipts import kept_in

NO_RECORD = "the process ended without a record: it was killed, perhaps for want of memory"
ERROR_BYTES = 2**20  # the most that error.log may have


def state(folder: Path) -> tuple[str, str]:
    """How a run stands, and why or where: finished, running, diverged, failed, paused, refused, killed or waiting.

    A run is running while a process holds its lock. Raises UserError where its record is damaged.
    """
    run = recorded(folder)
    if run is not None and run["status"] == "finished":
        return "finished", ""
    at_work = locks.holder(folder / LOCK)
    if at_work is not None:
        return "running", at_work
    if run is not None:
        return run["status"], run.get("reason", "")
    if (folder / ERRORS).exists():
        return "refused", _why(folder / ERRORS)
    return ("killed", NO_RECORD) if (folder / CONFIG).exists() else ("waiting", "it never started")


def _why(path: Path) -> str:
    try:
        return read_regular(path, ERROR_BYTES).decode(errors="replace").strip()
    except (OSError, ValueError) as error:
        return f"{path}: {error}"


def packed_record(folder: Path, out: Path) -> dict[str, Any] | None:
    """The record of a run that is packed in the results folder `out`; None where there is none. Raises UserError."""
    receipts = kept_in(out)
    if receipts is None:
        return None
    name = (folder / RECORD).relative_to(out).as_posix()
    try:
        return record.parse(receipts.read(name)) if name in receipts else None
    except ValueError as error:
        raise UserError(f"{receipts.path}: {name}: {error}") from None


def recorded(folder: Path) -> dict[str, Any] | None:
    """The record of a run, None where there is none. Raises UserError where it is damaged or out of reach."""
    try:
        if not (folder / RECORD).exists():
            return None
        run = record.read(folder / RECORD)
        if run.get("status") not in record.STATUSES:
            raise ValueError(f"{folder / RECORD}: not a readable record: it says not how the run ended")
        return run
    except OSError as error:
        raise explained(error, folder, None) from error
    except ValueError as error:
        raise UserError(f"{error}; delete it to train again") from None
