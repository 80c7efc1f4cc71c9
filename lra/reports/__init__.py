"""Reports: runs -> one DataFrame with a row a run -> one with a row a cell -> README.md, CSV, LaTeX, HTML and figures.

records/runs.py   runs below a folder, or in a runs.jsonl
frame.py          a row for each run
statistics.py     intervals and tests, on SciPy and statsmodels
tables.py         a row for each cell, and what is printed
published.py      published numbers, names and order of rows and columns
figures.py        seeds, curves, cost, accuracy by depth and length
render.py         Markdown, LaTeX, HTML
verify.py         does a report match its runs?
"""

from functools import cached_property
from pathlib import Path

import pandas as pd

from lra.core.errors import UserError, printable
from lra.core.files import write_atomic
from lra.records.names import PAGE, README, SEEDS_FIGURE
from lra.records.runs import Run, read_runs
from lra.reports import render
from lra.reports.frame import present, runs_frame
from lra.reports.published import Published
from lra.reports.tables import Matrix, cells_frame, column_notes


class Report:
    """The report of a results folder.

    Args:
        folder: a results folder, or a `runs.jsonl`.
        selection: a selection rule for all runs; None: the rule of each run's recipe.

    Raises:
        UserError: if there is nothing to read, a file is damaged, or runs do not belong together.
    """

    def __init__(self, folder: Path, selection: str | None = None) -> None:
        self.folder = folder if folder.is_dir() else folder.parent
        self.title = printable(self.folder.resolve().name)
        self.published = Published.of_folder(self.folder)
        self.frame = runs_frame(self.folder, read_runs(folder), self.published, selection)
        self.cells = cells_frame(self.frame, self.published)

    @property
    def runs(self) -> list[Run]:
        """The runs, without missing ones."""
        return present(self.frame)

    @cached_property
    def matrix(self) -> Matrix:
        """Systems by columns, as text."""
        return Matrix(self.cells, column_notes(self.cells, self.frame, self.published))

    def columns(self) -> list[tuple[str, pd.DataFrame, pd.DataFrame]]:
        """Return name, cells and runs of each column."""
        runs = dict(list(self.frame.groupby("column", sort=False)))
        return [(str(name), cells, runs[name]) for name, cells in self.cells.groupby("column", sort=False)]

    def texts(self) -> dict[str, str]:
        """Return the text files of the report by name, without the page."""
        return render.texts(self)


def write_report(folder: Path, selection: str | None = None) -> Path:
    """Write the report of `folder` into it and return the path of its README.md. Arguments as of `Report`."""
    from lra.reports.figures import drawn

    report = Report(folder, selection)
    figure, panels = drawn(report)
    for name, text in report.texts().items():
        write_atomic(report.folder / name, text.encode())
    write_atomic(report.folder / SEEDS_FIGURE, figure.encode())
    write_atomic(report.folder / PAGE, render.page(report, panels).encode())
    return report.folder / README


def show(page: Path) -> None:
    """Print the tables of a README.md, formatted in a terminal."""
    from rich.console import Console
    from rich.markdown import Markdown

    console, text = Console(), page.read_text(encoding="utf-8").partition("![")[0]
    if console.is_terminal:
        console.print(Markdown(text))
    else:
        print(text)


__all__ = ["Report", "UserError", "show", "write_report"]
