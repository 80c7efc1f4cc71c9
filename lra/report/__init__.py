"""lra-report: from the records below a folder to its README.md, details.md, table1.*, seeds.csv, pairs.csv,
figures and page.

    records -> Tables (what is said) -> layout (rows of text), pictures -> pages
                                     -> exports (CSV, JSON), figures

A report is a function of the records, and of published numbers, alone: built twice it is the same to the byte. Here it
is put together; the rooms below import downwards only.

    read/records.py           runs, the cells that they make, their curves
    read/schema.py            what must stand in a record and in a sweep.json
    read/published.py         numbers of papers, names and order of rows
    read/pack.py              a finished sweep in one file
    statistics/inference.py   tests and intervals, numbers in and numbers out
    statistics/race.py        who learns a task, and in how many steps
    statistics/table.py       what is said: rows, columns, sections
    statistics/comparison.py  verdicts, caveats, systems over several tasks
    statistics/words.py       answers in words, numbers as text
    statistics/columns.py     Tables: from a folder to its columns
    render/layout.py          tables as rows of text
    render/pictures.py        what stands where in pictures that are templates
    render/markup.py          templates; text as Markdown, LaTeX, HTML
    render/figures.py         figures by matplotlib
    render/pages.py           README.md, details.md, table1.tex, index.html
    render/cards.py           cards.md
    render/site.py            the page over many results
    render/exports.py         CSV and JSON
    __init__.py               Report: all files of a folder
    check/verify.py           do records and files say the same?
    check/numbers.py          do texts?
    check/overview.py         the pages over many folders, and boards
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field
from rich.console import Console

from lra.core.errors import UserError
from lra.core.files import read_json, write_atomic
from lra.records import record
from lra.records.names import CARDS, DETAILS, FIGURES, PAGE, README
from lra.report.read import schema
from lra.report.read.records import Tell, refuse
from lra.report.render import cards, exports, figures, pages
from lra.report.statistics.columns import Tables

LINES = 12  # of an answer that is printed at most


class Report(Tables):
    """The tables of a folder, and the files that show them."""

    def files(self, figures: Mapping[str, str]) -> dict[str, str]:
        """The text files by name, but for the page; they link to `figures`, by path below the folder their SHA-256."""
        how = {"title": self.title, "selection": self.selection, "figures": dict(figures)}
        return {
            **pages.readme(self, files=True),
            DETAILS: pages.details(self, [Path(path) for path in figures]),
            "table1.csv": exports.as_csv(exports.cells(self)),
            JSON: exports.table_json(self, how),
            "table1.tex": pages.table_tex(self.sections),
            "seeds.csv": exports.as_csv(exports.seeds(self)),
            "pairs.csv": exports.pairs_csv(self),
        }

    def pages(self) -> dict[str, str]:
        """The texts for people alone, by name: without figures, and without tables beside them."""
        return {**pages.readme(self, files=False), PAGE: self.page([], files=False)}

    def page(self, figures: Iterable[str], *, files: bool = True) -> str:
        """The text of index.html; `files`: whether those for other programs lie beside it."""
        return pages.page(self, [Path(path) for path in figures], files=files)


def write_report(root: Path, selection: str | None = None, published: Iterable[Path] = (), tell: Tell = refuse) -> Path:
    """Write the report of `root` into its folder; returns its README.md. Arguments as of Tables. Raises UserError.

    Figures of an earlier report that are not drawn any more are removed.
    """
    report = _of_folder(root, selection, published, tell)
    paths = [path.as_posix() for path in figures.write_figures(report.folder, report.columns)]
    _remove_figures(report.folder, paths)
    drawn = record.sha256(report.folder, *paths)
    _write(report.folder, {**report.files(drawn), PAGE: report.page(drawn), **_kept_cards(report)})
    return report.folder / README


def write_pages(root: Path, selection: str | None = None, published: Iterable[Path] = (), tell: Tell = refuse) -> Path:
    """Write, of what `write_report` writes, README.md, its picture and index.html alone; the rest of an earlier report
    is removed."""
    report = _of_folder(root, selection, published, tell)
    _remove_figures(report.folder)
    for name in (*TABLES, DETAILS):
        (report.folder / name).unlink(missing_ok=True)
    _write(report.folder, {**report.pages(), **_kept_cards(report)})
    return report.folder / README


def write_cards(root: Path, selection: str | None = None, published: Iterable[Path] = ()) -> Path:
    """Write cards.md into the results folder of `root`; returns its path. Arguments as of Tables. Raises UserError."""
    report = _of_folder(root, selection, published)
    _write(report.folder, {CARDS: cards.page(report)})
    return report.folder / CARDS


def _of_folder(root: Path, *arguments: Any) -> Report:
    if root.is_file():
        raise UserError(f"{root}: a report is of all runs in a folder; expected {root.parent}")
    return Report(root, *arguments)


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


def _kept_cards(report: Report) -> dict[str, str]:
    """cards.md anew, where it was asked for."""
    return {CARDS: cards.page(report)} if (report.folder / CARDS).exists() else {}


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
    return schema.check(Built, read_json(folder / JSON))
