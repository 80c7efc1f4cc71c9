"""The pages over many results folders, README.md and index.html: each folder with its answer and whether it verifies,
and links to what was measured and found besides."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from lra.core.errors import UserError, printable
from lra.core.files import write_atomic
from lra.records.names import CARDS, PAGE, README, RECEIPTS, SWEEP
from lra.report import site
from lra.report.layout import Grid, TableText, address
from lra.report.markdown import escape, link, markdown
from lra.report.numbers import fill, mismatches, read_page
from lra.report.quantities import Quantities
from lra.report.records import RecordedCell, Tell, refuse
from lra.report.report import Report
from lra.report.site import Listed
from lra.report.verify import verify

FINDINGS = "findings.md"
HEAD = ["folder", "tasks", "commits", "seeds", "systems", "runs", "hours"]
NUMBERS = 4  # where the numbers begin in HEAD


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
    return {path: _verified(path) for path in results_folders(folder)}


def _verified(path: Path) -> tuple[int, list[str]]:
    try:
        return verify(path)
    except UserError as error:
        return 0, [str(error)]


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


def verify_pages(folder: Path, more: Iterable[Path], known: Verified) -> list[str]:
    """A line for every number of those pages that is not what the records say, and for other pages over them."""
    quantities = Quantities(folder)
    faults = [line for page in _pages_with_numbers(folder, more) for line in mismatches(page, quantities)]
    if any((folder / name).exists() for name in (README, PAGE)):
        for name, text in overview(folder, known, faults.append).items():
            page = folder / name
            if not page.exists():
                faults.append(f"{page}: not there; lra-report --overview writes it")
            elif read_page(page) != text:
                faults.append(f"{page}: not what the records give; lra-report --overview writes it")
    return faults


def _pages_with_numbers(folder: Path, more: Iterable[Path]) -> list[Path]:
    findings = folder / FINDINGS
    return [*([findings] if findings.is_file() else []), *more]


def overview(folder: Path, known: Verified, tell: Tell = refuse) -> dict[str, str]:
    """The pages over the results folders in `folder`, by name. Raises UserError where there is none."""
    reports = {}
    for path in known:
        try:
            reports[path] = Report(path, tell=tell)
        except UserError as error:
            tell(str(error))
    if not reports:
        raise UserError(f"{folder}: no folder in it has a {SWEEP} or {RECEIPTS}; expected a folder of results folders")
    entries = [
        Listed(printable(path.name), address(f"{path.name}/{PAGE}"), reports.get(path), records, faults)
        for path, (records, faults) in known.items()
    ]
    lines = _page(folder, {path: report.cells for path, report in reports.items()})
    links = [(address(path), title) for path, title in _further(folder, reports)]
    note = "The records of each folder, its report and its digests are checked when this page is written, by "
    note += "<code>lra-report --overview</code>; <code>lra-report --verify</code> checks them anew."
    return {README: "\n".join(lines), PAGE: site.page("Results", entries, links, note)}


def _further(folder: Path, reports: Iterable[Path]) -> list[tuple[str, str]]:
    """Paths and titles of what was found and measured besides."""
    findings = [(FINDINGS, "Findings: what these runs show")] if (folder / FINDINGS).exists() else []
    pages = sorted(path for path in folder.glob("**/*.md") if _a_page_of_its_own(path, folder, reports))
    return findings + [(path.relative_to(folder).as_posix(), _title(path)) for path in pages]


def _page(folder: Path, reports: dict[Path, list[RecordedCell]]) -> Iterator[str]:
    yield "# Results\n"
    yield f"[{PAGE}]({PAGE}) has every system on every task, with its intervals, and the answer of each folder.\n"
    if (folder / FINDINGS).exists():
        yield f"What these runs show is in [{FINDINGS}]({FINDINGS}).\n"
    yield "## The records\n"
    yield "By `lra-report --overview`. `runs`: finished/declared; `hours`: training and evaluation of all runs.\n"
    yield markdown(Grid(HEAD, [_row(path, cells) for path, cells in reports.items()], numbers=NUMBERS))
    pages = [(path, title) for path, title in _further(folder, reports) if path != FINDINGS]
    if pages:
        yield "## More measurements\n"
        yield "".join(f"- {link(escape(printable(path)), address(path))}: {escape(title)}\n" for path, title in pages)


def _row(path: Path, cells: list[RecordedCell]) -> list[TableText]:
    runs = [run for cell in cells for run in cell.runs.values()]
    seeds = sorted({seed for cell in cells for seed in cell.seeds()})
    commits = sorted({(run["provenance"]["commit"] or "unknown")[:9] for run in runs})
    hours = sum(sum(run.get("seconds", {}).values()) for run in runs) / 3600
    texts = [
        "; ".join(sorted({cell.key.task for cell in cells})),
        " ".join(commits),
        " ".join(map(str, seeds)),
        str(len({(cell.key.attention, cell.key.variant) for cell in cells})),
        f"{sum(len(cell.scores()) for cell in cells)}/{sum(len(cell.seeds()) for cell in cells)}",
        f"{hours:.1f}",
    ]
    return [
        TableText(printable(path.name), link=address(f"{path.name}/{README}")),
        *(TableText(text) for text in texts),
    ]


def _a_page_of_its_own(path: Path, folder: Path, reports: Iterable[Path]) -> bool:
    of_report = path.parent in reports and path.name != CARDS
    return path.is_file() and not of_report and path not in (folder / README, folder / FINDINGS)


def _title(path: Path) -> str:
    return printable(read_page(path).split("\n", 1)[0].lstrip("# "))
