"""lra-report: from the records below a folder to its README.md, details.md, table1.*, seeds.csv, pairs.csv,
figures and page.

    records -> table (what is said) -> layout, matrix (rows of text) -> readme, markdown, latex
                                    -> data (CSV, JSON), forest (a picture)

A report is a function of the records, and of published numbers, alone: built twice it is the same to the byte.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field
from rich.console import Console

from lra.core.errors import printable
from lra.core.files import read_json, write_atomic
from lra.records import record
from lra.records.names import CARDS, DETAILS, FIGURES, PAGE, RACE, README, VERDICTS
from lra.records.run_files import RunFiles
from lra.report.read import schema
from lra.report.read.published import Published, files
from lra.report.read.records import Tell, load, refuse
from lra.report.render import cards, exports, figures, latex, layout, markdown, page, pictures
from lra.report.render.layout import Across, across
from lra.report.statistics.columns import sections

LINES = 12  # of an answer that is printed at most


class Report:
    """What the records in a folder say. Raises UserError.

    `root`: a results folder or a receipts file; `selection`: one rule for all runs, or None for each its own;
    `published`: files of published numbers, besides that of the folder; `tell` hears of what cannot be read and is left
    out; `title`: the folder's name where None.
    """

    def __init__(
        self,
        root: Path,
        selection: str | None = None,
        published: Iterable[Path] = (),
        tell: Tell = refuse,
        title: str | None = None,
    ) -> None:
        self.run_files, self.selection = RunFiles(root), selection
        self.folder = self.run_files.folder
        self.title = printable(self.folder.resolve().name) if title is None else title
        self.left_out = 0

        def left_out(fault: str) -> None:
            self.left_out += 1
            tell(fault)

        self.cells = load(self.run_files, selection, left_out)
        self.published = Published(*files(self.folder, published))
        for cell in self.cells:
            for run in cell.runs.values():
                self.published.add(cell.key, run.get("row"))
        self.sections = sections(self.run_files, self.cells, self.published)

    def files(self, figures: Mapping[str, str]) -> dict[str, str]:
        """The text files by name, but for the page; they link to `figures`, by path below the folder their SHA-256."""
        how = {"title": self.title, "selection": self.selection, "figures": dict(figures)}
        return {
            **self._answer(tables=True),
            DETAILS: self._details([Path(path) for path in figures]),
            "table1.csv": exports.table_csv(self.sections),
            JSON: exports.table_json(self.run_files, self.sections, self.published, how),
            "table1.tex": latex.table_tex(self.sections),
            "seeds.csv": exports.seeds_csv(self.run_files, self.sections),
            "pairs.csv": exports.pairs_csv(self.sections),
        }

    def pages(self) -> dict[str, str]:
        """The texts for people alone, by name: without figures, and without tables beside them."""
        return {**self._answer(tables=False), PAGE: self.page([], tables=False)}

    @cached_property
    def across(self) -> dict[str, list[Across]]:
        """The systems over the tasks of each section, by its name."""
        return {section.name: across(section.columns) for section in self.sections}

    def _answer(self, tables: bool) -> dict[str, str]:
        """README.md and the pictures in it: of races, and of what was tested elsewhere."""
        columns = [column for section in self.sections for column in section.columns]
        named = list(zip(columns, layout.headings(self.sections), strict=True))
        races, others = ([pair for pair in named if (pair[0].goal is None) == kind] for kind in (False, True))
        drawn = {
            RACE: pictures.race_svg(races, markdown.MOST),
            VERDICTS: pictures.verdicts_svg(others, markdown.MOST),
        }
        drawn = {name: picture for name, picture in drawn.items() if picture}
        text = markdown.readme(
            self.title, self.sections, self.cells, self.across,
            pictures=set(drawn), tables=tables, left_out=self.left_out,
        )  # fmt: skip
        return {README: text, **drawn}

    def _details(self, figures: list[Path]) -> str:
        return markdown.details(
            self.title, self.sections, self.cells, self.published, self.across, figures, self.left_out
        )

    def page(self, figures: Iterable[str], *, tables: bool = True) -> str:
        """The text of index.html; `tables`: whether those for other programs lie beside it."""
        paths = [Path(path) for path in figures]
        return page.page(self.run_files, self.title, self.sections, self.published, paths, tables=tables)


def write_report(root: Path, selection: str | None = None, published: Iterable[Path] = (), tell: Tell = refuse) -> Path:
    """Write the report of `root` into its folder; returns its README.md. Arguments as of Report. Raises UserError.

    Figures of an earlier report that are not drawn any more are removed.
    """
    report = Report(root, selection, published, tell)
    paths = [path.as_posix() for path in figures.write_figures(report.folder, report.sections)]
    _remove_figures(report.folder, paths)
    drawn = record.sha256(report.folder, *paths)
    _write(report.folder, {**report.files(drawn), PAGE: report.page(drawn)})
    return report.folder / README


def write_pages(root: Path, selection: str | None = None, published: Iterable[Path] = (), tell: Tell = refuse) -> Path:
    """As `write_report`, but README.md, its picture and index.html alone; the rest of an earlier report is removed."""
    report = Report(root, selection, published, tell)
    _remove_figures(report.folder)
    for name in (*TABLES, DETAILS):
        (report.folder / name).unlink(missing_ok=True)
    _write(report.folder, report.pages())
    return report.folder / README


def write_cards(root: Path, selection: str | None = None, published: Iterable[Path] = ()) -> Path:
    """Write cards.md into the results folder of `root`; returns its path. Arguments as of Report. Raises UserError."""
    report = Report(root, selection, published)
    _write(report.folder, {CARDS: cards.page(report.sections, report.folder)})
    return report.folder / CARDS


def show(page: Path) -> None:
    """Print the beginning of a README.md, which has the answer: with its table in a terminal, without it elsewhere."""
    from rich.markdown import Markdown

    answer, *rest = page.read_text().split("\n## ", 2)
    console = Console()
    if console.is_terminal and rest:
        console.print(Markdown(f"{answer}\n## {rest[0].partition('![')[0]}"))
    else:
        print("\n".join(answer.splitlines()[:LINES]))


def _remove_figures(folder: Path, drawn: Iterable[str] = ()) -> None:
    """Remove the figures that the earlier report in a folder lists, but for those `drawn` now."""
    with suppress(OSError, ValueError):  # of a report that has none
        for path in read_built(folder).figures.keys() - drawn:
            (folder / path).unlink(missing_ok=True)
        (folder / FIGURES).rmdir()


def _write(folder: Path, texts: Mapping[str, str]) -> None:
    for name, text in texts.items():
        write_atomic(folder / name, text.encode())


# How a report was built, as its table1.json says.


JSON = "table1.json"
TABLES = (JSON, "table1.csv", "table1.tex", "seeds.csv", "pairs.csv")
"""For other programs; where table1.json is not there, the report is README.md and index.html alone."""


class Built(schema.Checked):
    """`figures`: by path below the folder their SHA-256."""

    title: str
    selection: Literal[schema.RULES] | None
    figures: dict[Annotated[str, Field(pattern=r"^figures/[\w-]+\.(svg|png)$")], str]


def read_built(folder: Path) -> Built:
    """Raises OSError, and ValueError where it is not readable."""
    value = read_json(folder / JSON)
    schema.check(Built, value)
    return Built.model_validate(value)
