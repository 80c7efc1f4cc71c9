"""The pages over many results folders, and a board that anyone can extend by single files: each with its answer and
whether it verifies."""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from lra.core.errors import UserError, printable
from lra.core.files import sha256, write_atomic
from lra.records.names import CARDS, PAGE, README, RECEIPTS, SWEEP
from lra.records.receipts import zip_bytes
from lra.records.run_files import RunFiles
from lra.report import Report
from lra.report.check.numbers import Quantities, fill, mismatches, read_page, without_marks
from lra.report.check.verify import differences, verify, verify_records
from lra.report.read.pack import contents
from lra.report.read.records import Tell, refuse
from lra.report.render import exports, site
from lra.report.render.layout import Grid, TableText, address
from lra.report.render.markup import rendered
from lra.report.render.site import Listed

FINDINGS = "findings.md"
SHORT = "In short"  # the part of the findings that the page opens with
HEAD = ["folder", "tasks", "commits", "seeds", "systems", "runs", "hours"]
LISTED = re.compile(r"^\| \[.*\]\((\S+)\) \|", re.MULTILINE)  # the begin of a row: a folder and its README


Verified = dict[Path, tuple[int, list[str]]]
"""By results folder: how many records it has, and its faults."""


def write_overview(folder: Path, tell: Tell = refuse) -> Path:
    """Write README.md and index.html into a folder of results folders; returns the first. Raises UserError where there
    is none.

    `tell` hears of what cannot be read and is left out.
    """
    texts = overview(folder, verified(folder), tell)
    for name, text in texts.items():
        write_atomic(folder / name, text.encode())
    return folder / README


def verified(folder: Path) -> Verified:
    """The results folders in `folder`; one that cannot be read at all has that for its fault."""
    outcomes: Verified = {}
    for path in results_folders(folder):
        try:
            outcomes[path] = verify(path)
        except UserError as error:
            outcomes[path] = 0, [str(error)]
    return outcomes


def results_folders(folder: Path) -> list[Path]:
    """The results folders in `folder`."""
    return sorted({path.parent for name in (SWEEP, RECEIPTS) for path in folder.glob(f"*/{name}")})


def is_over_folders(folder: Path) -> bool:
    """Whether it holds results folders, and is none itself."""
    try:
        return bool(results_folders(folder)) and not any((folder / name).exists() for name in (SWEEP, RECEIPTS))
    except OSError:  # of a name that can be none of a folder
        return False


def fill_pages(folder: Path, more: Iterable[Path]) -> Iterator[str]:
    """Write the numbers of the findings in `folder`, and of `more` pages, as the records say. Raises UserError."""
    quantities = Quantities(folder)
    for page in _pages_with_numbers(folder, more):
        yield f"{page}: {fill(page, quantities)} numbers from the records"


def verify_pages(folder: Path, more: Iterable[Path], outcomes: Verified) -> list[str]:
    """A line for every number of those pages that is not what the records say, and for pages over the folders that are
    not what these give. A folder that came later is none of theirs: `not_listed`."""
    quantities = Quantities(folder)
    faults = [line for page in _pages_with_numbers(folder, more) for line in mismatches(page, quantities)]
    if any((folder / name).exists() for name in (README, PAGE)):
        later = set(not_listed(folder, outcomes))
        named = {path: outcome for path, outcome in outcomes.items() if path not in later}
        for name, text in overview(folder, named or outcomes, faults.append).items():
            page = folder / name
            if not page.exists():
                faults.append(f"{page}: not there; lra-report --overview writes it")
            else:
                faults += [f"{folder}/{line}; lra-report --overview writes it" for line in differences(page, text)]
    return faults


def not_listed(folder: Path, paths: Iterable[Path]) -> list[Path]:
    """Those of the `paths` results folders that the README over them does not name: they came after it was written."""
    page = folder / README
    if not page.exists():
        return []
    named = set(LISTED.findall(read_page(page)))
    return [path for path in paths if address(f"{path.name}/{README}") not in named] if named else []


def _pages_with_numbers(folder: Path, more: Iterable[Path]) -> list[Path]:
    findings = folder / FINDINGS
    return [*([findings] if findings.is_file() else []), *more]


def overview(folder: Path, outcomes: Verified, tell: Tell = refuse) -> dict[str, str]:
    """The pages over the results folders in `folder`, by name. Raises UserError where there is none."""
    reports = {}
    for path in outcomes:
        try:
            reports[path] = Report(path, tell=tell)
        except UserError as error:
            tell(str(error))
    if not reports:
        raise UserError(f"{folder}: no folder in it has a {SWEEP} or {RECEIPTS}; expected a folder of results folders")
    entries = [
        Listed(printable(path.name), address(f"{path.name}/{PAGE}"), reports.get(path), records, faults)
        for path, (records, faults) in outcomes.items()
    ]
    further = _further(folder)
    table = Grid(HEAD, [_row(path, report) for path, report in reports.items()], numbers=4)
    readme = rendered("overview.md.j2", table=table, pages=further, PAGE=PAGE, FINDINGS=FINDINGS).rstrip() + "\n"
    links = [(address(path), title) for path, title in further]
    note = "The records of each folder, its report and its digests are checked when this page is written, by "
    note += "<code>lra-report --overview</code>; <code>lra-report --verify</code> checks them anew."
    return {README: readme, PAGE: site.page("Results", entries, links, note, _lead(folder))}


def _lead(folder: Path) -> str:
    """What was found, in HTML: the list of that name in the findings, if there is one."""
    from markdown_it import MarkdownIt

    findings = folder / FINDINGS
    text = read_page(findings) if findings.is_file() else ""
    _, _, rest = text.partition(f"\n## {SHORT}\n")
    return MarkdownIt("commonmark", {"html": False}).render(without_marks(rest.partition("\n## ")[0]))


def _further(folder: Path) -> list[tuple[str, str]]:
    """Paths and titles of what was found and measured besides."""
    findings, reports = folder / FINDINGS, results_folders(folder)
    pages = [(FINDINGS, "Findings: what these runs show")] if findings.exists() else []
    for path in sorted(folder.glob("**/*.md")):
        of_report = path.parent in reports and path.name != CARDS
        if path.is_file() and not of_report and path not in (folder / README, findings):
            title = printable(read_page(path).split("\n", 1)[0].lstrip("# "))
            pages.append((path.relative_to(folder).as_posix(), title))
    return pages


def _row(path: Path, report: Report) -> list[TableText | str]:
    cells = report.cells
    return [
        TableText(printable(path.name), link=address(f"{path.name}/{README}")),
        "; ".join(sorted({cell.key.task for cell in cells})),
        " ".join(report.commits),
        " ".join(map(str, sorted({seed for cell in cells for seed in cell.seeds()}))),
        str(len({row.system for _, row in report.rows})),
        f"{sum(len(cell.scores()) for cell in cells)}/{sum(len(cell.seeds()) for cell in cells)}",
        f"{report.hours:.1f}",
    ]


# A board that anyone can extend: results in single files, and a page and a CSV of those that verify.


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
    write_atomic(path, zip_bytes(contents(RunFiles(folder))))
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
    lines = [
        {"submission": entry.name, "sha256": sha256(path), **line}
        for path, entry in submitted.items()
        if entry.tables
        for line in exports.cells(entry.tables)
    ]
    return exports.as_csv(lines, names=() if lines else ["submission"])
