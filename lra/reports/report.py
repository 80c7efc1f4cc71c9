"""The report of a results folder."""

from functools import cached_property
from pathlib import Path

import pandas as pd

from lra.core.errors import printable
from lra.core.files import write_atomic
from lra.records.names import PAGE, README, SEEDS, SEEDS_FIGURE, TABLE, TABLE_TEX
from lra.records.runs import Run, read_runs
from lra.reports import figures, render
from lra.reports.cells import Column
from lra.reports.frame import present, runs_frame, seeds
from lra.reports.published import Published
from lra.reports.tables import Tables, tables


class Report:
    """The frames, tables and texts that make up the report of a results folder.

    Args:
        folder: a results folder, or a `runs.jsonl` file.
        selection: selection rule for all runs; None uses the rule of each run's recipe.

    Attributes:
        frame: one row per run, including declared runs that are missing.
        columns: one `Column` per task, protocol and selection rule.

    Raises:
        UserError: if there are no runs, a file is damaged, or runs cannot share a table.
    """

    def __init__(self, folder: Path, selection: str | None = None) -> None:
        self.folder = folder if folder.is_dir() else folder.parent
        self.title = printable(self.folder.resolve().name)
        self.published = Published(self.folder)
        self.frame = runs_frame(self.folder, read_runs(folder), self.published, selection)
        self.columns = [Column(runs, self.published) for _, runs in self.frame.groupby("column", sort=False)]

    @property
    def runs(self) -> list[Run]:
        """The runs that exist; declared runs that are missing are left out."""
        return present(self.frame)

    @cached_property
    def cells(self) -> pd.DataFrame:
        """The content of table.csv: one row per system and per trivial baseline of each column."""
        return pd.concat([column.rows() for column in self.columns], ignore_index=True)

    @cached_property
    def tables(self) -> Tables:
        """The tables of README.md: one row per system, one column per task, cells formatted as text."""
        return tables(self.columns)

    def texts(self) -> dict[str, str]:
        """Return the contents of README.md, table.csv, table.tex and seeds.csv by file name."""
        return {
            README: render.readme(self),
            TABLE: render.as_csv(self.cells.drop(columns=["kind", "short", "published_mean"])),
            TABLE_TEX: render.latex(self),
            SEEDS: render.as_csv(seeds(self.frame)),
        }


def write_report(folder: Path, selection: str | None = None) -> Path:
    """Write the report of `folder` into it and return the path of its README.md. For the arguments see `Report`."""
    report = Report(folder, selection)
    figure, panels = figures.drawn(report.columns)
    files = {**report.texts(), SEEDS_FIGURE: figure, PAGE: render.page(report, panels)}
    for name, text in files.items():
        write_atomic(report.folder / name, text.encode())
    return report.folder / README


def show(page: Path) -> None:
    """Print the part of a README.md before its figure, formatted if stdout is a terminal."""
    from rich.console import Console
    from rich.markdown import Markdown

    console, text = Console(), page.read_text(encoding="utf-8").partition("![")[0]
    if console.is_terminal:
        console.print(Markdown(text))
    else:
        print(text)
