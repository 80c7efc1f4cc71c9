"""A finished sweep in one file: its runs and what it declared put into receipts.zip, and taken out again."""

from pathlib import Path, PurePosixPath

from lra.core import locks
from lra.core.errors import UserError
from lra.core.files import sweep_partials, write_atomic
from lra.records import record
from lra.records.names import CONFIG, ERRORS, LOCK, RECEIPTS, RECORD, SWEEP, SWEEP_LOCK, WEIGHTS
from lra.records.receipts import Receipts, zip_bytes
from lra.records.run_files import RunFiles
from lra.report.read.records import beside, read_record

ENDED = ("finished", "diverged", "failed")  # with other runs there is work to do


def pack(folder: Path) -> Path:
    """Put every run below a results folder into its receipts file, with those that are there already; returns it.

    The packed files are removed only after the receipts file has been read back. Weights, checkpoints and whatever no
    record lists stay where they are. Raises UserError, and changes nothing, where a run is at work or has not ended.
    """
    files = RunFiles(folder)
    members = contents(files)
    names = set(members)
    receipts = folder / RECEIPTS
    write_atomic(receipts, zip_bytes(members))
    kept = Receipts(receipts)
    for name, data in members.items():
        if kept.read(name) != data:
            raise UserError(f"{receipts}: {name}: what was written cannot be read back; nothing was removed")
    for name in names:
        (folder / name).unlink(missing_ok=True)
    for nested in sorted(folder.rglob(RECEIPTS)):
        if nested != receipts:
            nested.unlink()
    _remove_empty(folder, names)
    return receipts


def contents(files: RunFiles) -> dict[str, bytes]:
    """All that ended runs left and sweeps declared, by path below the results folder. Raises UserError where a run is
    at work or has not ended."""
    _refuse_unfinished(files)
    names = {*files.find(SWEEP), *files.packed}
    for path in files.find(RECORD):
        names |= set(_of_run(files, path))
    both = [path for path in files.find(SWEEP) if path in files.packed and not files.is_packed(path)]
    declarations = {path: record.declaration(files.declared(path)) for path in both}
    return {name: declarations.get(name) or _read(files, name) for name in sorted(names)}


def unpack(folder: Path) -> int:
    """Put every member of the receipts file of a results folder back where it lay, and remove that file; returns how
    many there were: none where that has been done. What an unpacking that was killed left half written is
    removed, so only one process may unpack a folder at a time. Raises UserError."""
    files = RunFiles(folder)
    if not files.packed and files.find(RECORD):
        return 0
    receipts = Receipts(folder / RECEIPTS)
    for place in {(folder / name).parent for name in receipts.names}:
        sweep_partials(place)
    for name in receipts.names:
        if files.is_packed(name):
            write_atomic(folder / name, _read(files, name))
    receipts.path.unlink()
    return len(receipts.names)


def _refuse_unfinished(files: RunFiles) -> None:
    """Raises UserError for the first run in folders that has not ended or cannot be read."""
    for path in files.find(CONFIG):
        folder = (files.folder / path).parent
        at_work = None if files.is_packed(path) else locks.holder(folder / LOCK)
        if at_work is not None:
            raise UserError(f"{folder}: at work ({at_work}); pack when it has ended")
        if not files.exists(beside({"path": path}, RECORD)):
            raise UserError(f"{folder}: it has no {RECORD}, so it has not ended; train it to its end or delete it")
    for path in files.find(RECORD):
        try:
            status = read_record(files, path)["status"]
        except ValueError as error:
            raise UserError(str(error)) from None
        if status not in ENDED:
            raise UserError(f"{files.shown(path)}: {status}; train it to its end or delete it")


def _of_run(files: RunFiles, path: str) -> list[str]:
    """The paths of what a run left, but for its weights."""
    run = read_record(files, path) | {"path": path}
    names = [RECORD, CONFIG, ERRORS, *(name for name in run.get("files", {}) if name != WEIGHTS)]
    return [beside(run, name) for name in names if files.exists(beside(run, name))]


def _read(files: RunFiles, path: str) -> bytes:
    try:
        return files.read(path, record.CONTENTS_BYTES)
    except (OSError, ValueError) as error:
        raise UserError(f"{files.shown(path)}: {error}") from None


def _remove_empty(folder: Path, names: set[str]) -> None:
    """Remove the folders in which nothing but locks is left."""
    (folder / SWEEP_LOCK).unlink(missing_ok=True)
    for name in names:
        (folder / name).with_name(LOCK).unlink(missing_ok=True)
    below = {folder / parent for name in names for parent in PurePosixPath(name).parents} - {folder}
    for place in sorted(below, reverse=True):
        if place.is_dir() and not any(place.iterdir()):
            place.rmdir()
