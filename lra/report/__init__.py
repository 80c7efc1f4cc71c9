"""lra-report: from the records below a folder to its README.md, table1.*, seeds.csv, pairs.csv, figures and page.

    records -> table (what is said) -> layout (rows of text) -> markdown, latex;  table -> data (CSV, JSON)

A report is a function of the records, and of published numbers, alone: built twice it is the same to the byte.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from lra.core.errors import printable
from lra.core.files import write_atomic
from lra.records import record
from lra.records.names import FIGURES, PAGE, README
from lra.records.run_files import RunFiles
from lra.report import built, data, latex, markdown
from lra.report import figures as drawing
from lra.report import page as html_page
from lra.report.built import JSON, TABLES
from lra.report.columns import sections
from lra.report.published import Published, files
from lra.report.records import Tell, load, refuse


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
        self.sections = sections(self.run_files, self.cells, self.published)

    def files(self, figures: Mapping[str, str]) -> dict[str, str]:
        """The text files by name, but for the page; they link to `figures`, by path below the folder their SHA-256."""
        how = {"title": self.title, "selection": self.selection, "figures": dict(figures)}
        return {
            README: self._readme([Path(path) for path in figures], tables=True),
            "table1.csv": data.table_csv(self.sections),
            JSON: data.table_json(self.run_files, self.sections, self.published, how),
            "table1.tex": "\n".join(latex.document(self.sections)) + "\n",
            "seeds.csv": data.seeds_csv(self.run_files, self.sections),
            "pairs.csv": data.pairs_csv(self.sections),
        }

    def pages(self) -> dict[str, str]:
        """The texts for people alone, by name: without figures, and without tables beside them."""
        return {README: self._readme([], tables=False), PAGE: self.page([])}

    def _readme(self, figures: list[Path], tables: bool) -> str:
        lines = markdown.page(
            self.title, self.sections, self.cells, self.published, figures, tables=tables, left_out=self.left_out
        )
        return "\n".join(lines)

    def page(self, figures: Iterable[str]) -> str:
        """The text of index.html."""
        return html_page.page(self.run_files, self.title, self.sections, [Path(path) for path in figures])


def write_report(root: Path, selection: str | None = None, published: Iterable[Path] = (), tell: Tell = refuse) -> Path:
    """Write the report of `root` into its folder; returns its README.md. Arguments as of Report. Raises UserError."""
    report = Report(root, selection, published, tell)
    drawn = drawing.write_figures(report.folder, report.sections)
    figures = record.sha256(report.folder, *(path.as_posix() for path in drawn))
    _write(report.folder, {**report.files(figures), PAGE: report.page(figures)})
    return report.folder / README


def write_pages(root: Path, selection: str | None = None, published: Iterable[Path] = (), tell: Tell = refuse) -> Path:
    """As `write_report`, but README.md and index.html alone; tables and figures of an earlier report are removed."""
    report = Report(root, selection, published, tell)
    with suppress(OSError, ValueError):  # of a report that has none
        for path in built.read(report.folder).figures:
            (report.folder / path).unlink(missing_ok=True)
        (report.folder / FIGURES).rmdir()
    for name in TABLES:
        (report.folder / name).unlink(missing_ok=True)
    _write(report.folder, report.pages())
    return report.folder / README


def _write(folder: Path, texts: Mapping[str, str]) -> None:
    for name, text in texts.items():
        write_atomic(folder / name, text.encode())
