"""The page over many results folders, around words written by hand: `findings.md`."""

from collections.abc import Iterator
from pathlib import Path

from lra.errors import UserError, printable
from lra.files import read_regular, write_atomic
from lra.report.layout import Grid, Text
from lra.report.markdown import escape, link, markdown
from lra.report.records import SWEEP, Cell, Tell, load, refuse

FINDINGS, README = "findings.md", "README.md"
HEAD = ["folder", "tasks", "commits", "seeds", "systems", "runs", "hours"]
WORDS_BYTES = 2**24  # the most that a page written by hand may have
NUMBERS = 4  # where the numbers begin in HEAD


def write_overview(folder: Path, tell: Tell = refuse) -> Path:
    """Write README.md into a folder of results folders; returns it. Raises UserError where there is none.

    `tell` hears of what cannot be read and is left out.
    """
    reports = {}
    for path in sorted(folder.glob(f"*/{SWEEP}")):
        try:
            reports[path.parent] = load(path.parent, tell=tell)
        except UserError as error:
            tell(str(error))
    if not reports:
        raise UserError(f"{folder}: no folder in it has a sweep.json; expected a folder of results folders")
    write_atomic(folder / README, "\n".join(_page(folder, reports)).encode())
    return folder / README


def _page(folder: Path, reports: dict[Path, list[Cell]]) -> Iterator[str]:
    if (folder / FINDINGS).exists():
        yield _words(folder / FINDINGS).rstrip() + "\n"
    yield "## The records\n"
    yield "By `lra-report --overview`. `runs`: finished/declared; `hours`: training and evaluation of all runs.\n"
    yield markdown(Grid(HEAD, [_row(path, cells) for path, cells in reports.items()], numbers=NUMBERS))
    pages = sorted(path for path in folder.glob("**/*.md") if _a_page_of_its_own(path, folder, reports))
    if pages:
        yield "## More measurements\n"
        links = ((path.relative_to(folder).as_posix(), _title(path)) for path in pages)
        yield "".join(f"- {link(escape(printable(path)), path)}: {title}\n" for path, title in links)


def _row(path: Path, cells: list[Cell]) -> list[Text]:
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
    return [Text(printable(path.name), link=f"{path.name}/{README}"), *(Text(text) for text in texts)]


def _a_page_of_its_own(path: Path, folder: Path, reports: dict[Path, list[Cell]]) -> bool:
    return path.is_file() and path.parent not in reports and path not in (folder / README, folder / FINDINGS)


def _title(path: Path) -> str:
    return escape(printable(_words(path).split("\n", 1)[0].lstrip("# ")))


def _words(path: Path) -> str:
    """What somebody wrote by hand. Raises UserError."""
    try:
        return read_regular(path, WORDS_BYTES, follow=True).decode()
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: not a readable text: {error}") from None
