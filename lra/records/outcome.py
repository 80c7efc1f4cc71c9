"""What became of a run, read from its folder; no process has to be asked."""

from pathlib import Path

from lra.core.errors import UserError
from lra.core.files import explained, holder, read_regular
from lra.records.names import CONFIG, ERRORS, LOCK, RECORD
from lra.records.record import RunRecord

NO_RECORD = "the process ended without a record: it was killed, perhaps for want of memory"
ERROR_BYTES = 2**20  # the most that error.log may have


def state(folder: Path) -> tuple[str, str]:
    """How a run stands, and why or where: finished, running, diverged, failed, paused, refused, killed or waiting.

    A run is running while a process holds its lock. Raises UserError where its record is damaged.
    """
    run = recorded(folder)
    if run is not None and run.status == "finished":
        return "finished", ""
    at_work = holder(folder / LOCK)
    if at_work is not None:
        return "running", at_work
    if run is not None:
        return run.status, run.reason
    if (folder / ERRORS).exists():
        return "refused", _why(folder / ERRORS)
    return ("killed", NO_RECORD) if (folder / CONFIG).exists() else ("waiting", "it never started")


def _why(path: Path) -> str:
    try:
        return read_regular(path, ERROR_BYTES).decode(errors="replace").strip()
    except (OSError, ValueError) as error:
        return f"{path}: {error}"


def recorded(folder: Path) -> RunRecord | None:
    """Read the record of a run; None if there is none. Raises UserError if it is damaged or unreadable."""
    try:
        return RunRecord.read(folder / RECORD) if (folder / RECORD).exists() else None
    except OSError as error:
        raise explained(error, folder, None) from error
    except ValueError as error:
        raise UserError(f"{error}; delete it to train again") from None
