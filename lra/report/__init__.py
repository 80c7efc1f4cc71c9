"""lra-report: from the records below a folder to its README.md, table1.*, seeds.csv, pairs.csv, figures and page.

    records -> table (what is said) -> layout (rows of text) -> markdown, latex;  table -> data (CSV, JSON)

A report is a function of the records, and of published numbers, alone: built twice it is the same to the byte.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

from lra import record
from lra.errors import printable
from lra.files import write_atomic
from lra.report import data, latex, markdown
from lra.report.published import Published, files
from lra.report.records import Tell, load, refuse
from lra.report.table import sections

README = "README.md"
JSON = "table1.json"
PAGE = "index.html"


class Report:
    """What the records in a folder say. Raises UserError.

    `selection`: one rule for all runs, or None for each its own; `published`: files of published numbers, besides that
    of the folder; `tell` hears of what cannot be read and is left out; `title`: the folder's name where None.
    """

    def __init__(
        self,
        folder: Path,
        selection: str | None = None,
        published: Iterable[Path] = (),
        tell: Tell = refuse,
        title: str | None = None,
    ) -> None:
        self.folder, self.selection = folder, selection
        self.title = printable(folder.resolve().name) if title is None else title
        self.left_out = 0

        def left_out(fault: str) -> None:
            self.left_out += 1
            tell(fault)

        self.cells = load(folder, selection, left_out)
        self.published = Published(*files(folder, published))
        self.sections = sections(folder, self.cells, self.published)

    def files(self, figures: Mapping[str, str]) -> dict[str, str]:
        """The text files by name, but for the page; they link to `figures`, by path below the folder their SHA-256."""
        paths = [Path(path) for path in figures]
        page = markdown.page(self.title, self.sections, self.cells, self.published, paths, self.left_out)
        how = {"title": self.title, "selection": self.selection, "figures": dict(figures)}
        return {
            README: "\n".join(page),
            "table1.csv": data.table_csv(self.sections),
            JSON: data.table_json(self.folder, self.sections, self.published, how),
            "table1.tex": "\n".join(latex.document(self.sections)) + "\n",
            "seeds.csv": data.seeds_csv(self.folder, self.sections),
            "pairs.csv": data.pairs_csv(self.sections),
        }

    def page(self, figures: Iterable[str]) -> str:
        """The text of index.html."""
        from lra.report.page import page

        return page(self.folder, self.title, self.sections, [Path(path) for path in figures])


def write_report(
    folder: Path, selection: str | None = None, published: Iterable[Path] = (), tell: Tell = refuse
) -> Path:
    """Write the report into `folder`; returns its README.md. `tell`: as in Report. Raises UserError."""
    from lra.report.figures import write_figures

    report = Report(folder, selection, published, tell)
    drawn = write_figures(folder, report.sections)
    figures = record.sha256(folder, *(path.as_posix() for path in drawn))
    for name, text in {**report.files(figures), PAGE: report.page(figures)}.items():
        write_atomic(folder / name, text.encode())
    return folder / README
