"""lra-report: from the records below a folder to its README.md, table1.*, seeds.csv, pairs.csv, figures and page.

    records -> table (what is said) -> layout (rows of text) -> markdown, latex;  table -> data (CSV, JSON)

A report is a function of the records, and of published numbers, alone: built twice it is the same to the byte.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

from lra.files import write_atomic
from lra.report import data, latex, markdown
from lra.report.published import Published, files
from lra.report.records import load
from lra.report.table import sections

README = "README.md"
JSON = "table1.json"


class Report:
    """What the records in a folder say. Raises UserError.

    `selection`: one rule for all runs, or None for each its own; `published`: files of published numbers, besides that
    of the folder.
    """

    def __init__(self, folder: Path, selection: str | None = None, published: Iterable[Path] = ()) -> None:
        self.folder, self.selection = folder, selection
        self.cells = load(folder, selection)
        self.published = Published(*files(folder, published))
        self.sections = sections(folder, self.cells, self.published)

    def files(self, figures: Sequence[Path]) -> dict[str, str]:
        """The text files by name; they link to `figures`."""
        page = markdown.page(self.folder.resolve().name, self.sections, self.cells, self.published, figures)
        return {
            README: "\n".join(page),
            "table1.csv": data.table_csv(self.sections),
            JSON: data.table_json(self.folder, self.sections, self.published, self.selection, figures),
            "table1.tex": "\n".join(latex.document(self.sections)) + "\n",
            "seeds.csv": data.seeds_csv(self.folder, self.sections),
            "pairs.csv": data.pairs_csv(self.sections),
        }


def write_report(folder: Path, selection: str | None = None, published: Iterable[Path] = ()) -> Path:
    """Write the report into `folder`; returns its README.md. Raises UserError."""
    from lra.report.figures import write_figures
    from lra.report.page import write_page

    report = Report(folder, selection, published)
    figures = write_figures(folder, report.sections)
    for name, text in report.files(figures).items():
        write_atomic(folder / name, text.encode())
    write_page(folder, report.sections, figures)
    return folder / README
