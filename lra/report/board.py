"""A board that anyone can extend: results in single files, and a page and a CSV of those that verify."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lra.core.errors import UserError, printable
from lra.core.files import sha256, write_atomic
from lra.records.names import PAGE
from lra.records.receipts import packed
from lra.records.run_files import RunFiles
from lra.report import data, site
from lra.report.layout import address
from lra.report.pack import contents
from lra.report.records import refuse
from lra.report.report import Report
from lra.report.site import Listed
from lra.report.verify import verify_records

SUFFIX = ".receipts.zip"  # behind the name of the folder
TABLE = "board.csv"
NOTE = """A row is a file of records that agree with themselves, with their predictions and with their curves; that they
were computed at all, <code>lra-train rerun=FILE/CELL/seed1</code> shows. To stand here: <code>lra-report --submit
DIR</code>, and the file it writes goes beside the others."""


def submit(folder: Path) -> Path:
    """Put all that the runs below a results folder left into one file in the working folder; the folder stays as it is.

    Raises UserError where a run has not ended, or where its records do not verify.
    """
    _, faults = verify_records(folder)
    if faults:
        raise UserError(f"{folder}: {faults[0]}" + f" (and {len(faults) - 1} more)" * (len(faults) > 1))
    path = Path(printable(folder.resolve().name) + SUFFIX)
    if path.exists():
        raise UserError(f"{path}: it is there already; move it away")
    write_atomic(path, packed(contents(RunFiles(folder))))
    return path


def write_board(folder: Path) -> tuple[Path, list[str]]:
    """Write index.html and board.csv of the submitted files in `folder`; returns the page, and a line for each fault of
    those that are refused. Raises UserError where there is no file."""
    submitted = {path: _entry(path) for path in sorted(folder.glob(f"*{SUFFIX}"))}
    entries = list(submitted.values())
    if not entries:
        raise UserError(f"{folder}: no *{SUFFIX} in it; lra-report --submit DIR writes one")
    write_atomic(folder / PAGE, site.page("Board", entries, [(TABLE, f"{TABLE}: these numbers")], NOTE).encode())
    write_atomic(folder / TABLE, _table(submitted).encode())
    return folder / PAGE, [f"{entry.name}: {fault}" for entry in entries for fault in entry.faults]


def _entry(path: Path) -> Listed:
    """A file that does not verify has no numbers."""
    name = path.name.removesuffix(SUFFIX)
    try:
        count, faults = verify_records(path)
        report = None if faults else Report(path, tell=refuse, title=printable(name))
    except UserError as error:
        count, faults, report = 0, [str(error)], None
    return Listed(printable(name), address(path.name), report, count, faults)


def _table(submitted: dict[Path, Listed]) -> str:
    """A line for each cell of each file that verifies."""
    lines = [line for path, entry in submitted.items() if entry.report for line in _lines(path, entry)]
    return data.as_csv(lines, names=() if lines else ["submission"])


def _lines(path: Path, entry: Listed) -> Iterator[dict[str, Any]]:
    whose = {"submission": entry.name, "sha256": sha256(path)}
    yield from (whose | line for line in data.cell_lines(entry.report.sections))
