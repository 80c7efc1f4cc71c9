"""The page over many results folders: a row for each, and links to what was measured and found besides."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from lra.core.errors import UserError, printable
from lra.core.files import write_atomic
from lra.records.names import README, RECEIPTS, SWEEP
from lra.records.run_files import RunFiles
from lra.report.layout import Grid, TableText, address
from lra.report.markdown import escape, link, markdown
from lra.report.numbers import fill, mismatches, read_page
from lra.report.quantities import Quantities
from lra.report.records import RecordedCell, Tell, load, refuse

FINDINGS = "findings.md"
HEAD = ["folder", "tasks", "commits", "seeds", "systems", "runs", "hours"]
NUMBERS = 4  # where the numbers begin in HEAD


def write_overview(folder: Path, tell: Tell = refuse) -> Path:
    """Write README.md into a folder of results folders; returns it. Raises UserError where there is none.

    `tell` hears of what cannot be read and is left out.
    """
    write_atomic(folder / README, overview(folder, tell).encode())
    return folder / README


def results_folders(folder: Path) -> list[Path]:
    """The results folders in `folder`."""
    return sorted({path.parent for name in (SWEEP, RECEIPTS) for path in folder.glob(f"*/{name}")})


def is_over_folders(folder: Path) -> bool:
    """Whether it holds results folders, and is none itself."""
    return bool(results_folders(folder)) and not any((folder / name).exists() for name in (SWEEP, RECEIPTS))


def fill_pages(folder: Path, more: Iterable[Path]) -> Iterator[str]:
    """Write the numbers of the findings in `folder`, and of `more` pages, as the records say. Raises UserError."""
    quantities = Quantities(folder)
    for page in _pages_with_numbers(folder, more):
        yield f"{page}: {fill(page, quantities)} numbers from the records"


def verify_pages(folder: Path, more: Iterable[Path]) -> list[str]:
    """A line for every number of those pages that is not what the records say, and for another page over them."""
    quantities = Quantities(folder)
    faults = [line for page in _pages_with_numbers(folder, more) for line in mismatches(page, quantities)]
    page = folder / README
    if page.exists() and read_page(page) != overview(folder, faults.append):
        faults.append(f"{page}: not what the records give; lra-report --overview writes it")
    return faults


def _pages_with_numbers(folder: Path, more: Iterable[Path]) -> list[Path]:
    findings = folder / FINDINGS
    return [*([findings] if findings.is_file() else []), *more]


def overview(folder: Path, tell: Tell = refuse) -> str:
    """The page over the results folders in `folder`. Raises UserError where there is none."""
    reports = {}
    for path in results_folders(folder):
        try:
            reports[path] = load(RunFiles(path), tell=tell)
        except UserError as error:
            tell(str(error))
    if not reports:
        raise UserError(f"{folder}: no folder in it has a {SWEEP} or {RECEIPTS}; expected a folder of results folders")
    return "\n".join(_page(folder, reports))


def _page(folder: Path, reports: dict[Path, list[RecordedCell]]) -> Iterator[str]:
    yield "# Results\n"
    if (folder / FINDINGS).exists():
        yield f"What these runs show is in [{FINDINGS}]({FINDINGS}).\n"
    yield "## The records\n"
    yield "By `lra-report --overview`. `runs`: finished/declared; `hours`: training and evaluation of all runs.\n"
    yield markdown(Grid(HEAD, [_row(path, cells) for path, cells in reports.items()], numbers=NUMBERS))
    pages = sorted(path for path in folder.glob("**/*.md") if _a_page_of_its_own(path, folder, reports))
    if pages:
        yield "## More measurements\n"
        links = ((path.relative_to(folder).as_posix(), _title(path)) for path in pages)
        yield "".join(f"- {link(escape(printable(path)), address(path))}: {title}\n" for path, title in links)


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


def _a_page_of_its_own(path: Path, folder: Path, reports: dict[Path, list[RecordedCell]]) -> bool:
    return path.is_file() and path.parent not in reports and path not in (folder / README, folder / FINDINGS)


def _title(path: Path) -> str:
    return escape(printable(read_page(path).split("\n", 1)[0].lstrip("# ")))
