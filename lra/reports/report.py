"""Build and write the files of a report: README.md, table.csv, table.tex, seeds.csv, seeds.svg and index.html."""

import re
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from lra.core.errors import printable
from lra.core.files import write_atomic
from lra.records.names import PAGE, README, SEEDS, SEEDS_FIGURE, TABLE, TABLE_TEX
from lra.records.runs import Run, read_runs
from lra.reports import figures
from lra.reports.cells import Column
from lra.reports.frame import CELL, INTERNAL, present, runs_frame
from lra.reports.published import Published
from lra.reports.render import as_csv, html, markdown, number, template
from lra.reports.tables import Tables, significance, unbeaten

METRICS = {"accuracy": "accuracy in percent", "perplexity": "perplexity"}
RULES = {
    "last": "after the last step (`last`)",
    "best_val": "at the best validation result (`best_val`)",
    "best_test": "at the best result on the test split itself (`best_test`)",
}
SHOWN = {  # columns of `Report.cells` that index.html shows, with their headers
    "system": "system", "mean": "mean", "sd": "sd", "n": "n", "interval": "interval", "published": "published",
    "difference": "difference", "difference_interval": "its interval", "p_holm": "p (Holm)", "verdict": "verdict",
    "best": "best", "expected_best": "expected best", "majority_class": "at majority", "solved": "solved",
    "median_steps": "median steps", "lr": "learning rate", "best_val": "best validation",
    "train_seconds": "training (s)", "parameters": "parameters", "complexity": "complexity",
}  # fmt: skip


class Report:
    """The report of a results folder: its DataFrames, tables and texts.

    Args:
        folder: a results folder, or a `runs.jsonl` file.
        selection: rule that selects the tested checkpoint of all runs: `last`, `best_val` or `best_test`. None uses the
            rule in each run's recipe.

    Attributes:
        frame: one row per run, including missing runs: those that a sweep declared but that do not exist.
        columns: one `Column` per task, protocol and selection rule.

    Raises:
        UserError: if there are no runs, a file is damaged, or runs of a cell or a column differ in settings that no
            table shows.
    """

    def __init__(self, folder: Path, selection: str | None = None) -> None:
        self.folder = folder if folder.is_dir() else folder.parent
        self.title = printable(self.folder.resolve().name)
        self.published = Published(self.folder)
        self.frame = runs_frame(self.folder, read_runs(folder), self.published, selection)
        self.columns = [Column(runs, self.published) for _, runs in self.frame.groupby("column", sort=False)]

    @property
    def runs(self) -> list[Run]:
        """The runs that exist, without the missing ones."""
        return present(self.frame)

    @cached_property
    def seeds(self) -> pd.DataFrame:
        """The content of seeds.csv: one row per run, including missing runs."""
        names = [run.name if run is not None else "" for run in self.frame.run]
        return self.frame.drop(columns=INTERNAL).assign(name=names)

    @cached_property
    def cells(self) -> pd.DataFrame:
        """One row per system and per trivial baseline of each `Column`.

        The row has the values of table.csv, and `kind`, `short` and `published_mean`.
        """
        return pd.concat([column.rows() for column in self.columns], ignore_index=True)

    @cached_property
    def tables(self) -> Tables:
        """The tables of README.md: one row per system, one column per task, cells formatted as text."""
        return Tables(self.columns)

    def texts(self) -> dict[str, str]:
        """Return the contents of README.md, table.csv, table.tex and seeds.csv by file name."""
        return {
            README: self.readme(),
            TABLE: as_csv(self.cells.drop(columns=["kind", "short", "published_mean"])),
            TABLE_TEX: self.latex(),
            SEEDS: as_csv(self.seeds),
        }

    def readme(self) -> str:
        """Return the content of README.md."""
        tables = self.tables
        return template("readme.md.j2").render(
            **self._summary(),
            figure=SEEDS_FIGURE,
            subject=self._subject(),
            results=markdown(tables.results),
            solved=markdown(tables.solved, left=1) if len(tables.solved) else "",
            steps=markdown(tables.steps, left=1) if len(tables.steps) else "",
            notes=tables.notes,
            significance=significance(self.columns),
            unbeaten=unbeaten(self.columns),
        )  # fmt: skip

    def latex(self) -> str:
        """Return the content of table.tex: the table of results, for the LaTeX packages booktabs and threeparttable."""
        frame, systems = self.tables.results, len({cell.system for column in self.columns for cell in column.cells})
        trivial = "Below the second line: trivial baselines." if len(frame) > systems else ""
        return template("table.tex.j2").render(
            caption=" ".join(filter(None, [self._subject(), trivial, unbeaten(self.columns)])),
            label=re.sub("[^a-z0-9]+", "-", self.title.lower()).strip("-"),
            # a header is broken into lines after each comma and before `(n = 3)`
            headers=[re.sub(r"(?<=,) | (?=\(n = )", "\n", name) for name in frame.columns],
            rows=frame.values.tolist(),
            systems=systems,
            notes=self.tables.notes,
            significance=significance(self.columns),
        )

    def page(self, panels: Mapping[str, list[str]]) -> str:
        """Return the content of index.html, one file with its script and figures; `panels` has SVGs by figure title."""
        runs = self.seeds.drop(columns=CELL).dropna(axis="columns", how="all")
        first, assets = ["short", "system"], Path(__file__).with_name("assets")
        return template("page.html.j2").render(
            **self._summary(),
            sections=map(section, self.columns),
            figures=panels,
            seeds=html(runs[[*first, *runs.columns.drop(first)]]),
            script=(assets / "sortable.min.js").read_text(encoding="utf-8"),
            licence=(assets / "sortable.LICENSE").read_text(encoding="utf-8"),
        )  # fmt: skip

    def _subject(self) -> str:
        """Return a sentence that names the metric and the selection rule of the table."""
        metrics = " or ".join(METRICS[name] for name in dict.fromkeys(column.metric for column in self.columns))
        rules = " or ".join(RULES[rule] for rule in self.frame.selection.unique())
        return f"Test {metrics}, mean ± sd over seeds, {rules}."

    def _summary(self) -> dict[str, Any]:
        """Return template values that README.md and index.html share: title, counts, hours, hardware and commits."""
        records = [run.record for run in self.runs]
        machines = [record.provenance for record in records]
        commits = [machine.commit or "unknown" for machine in machines]
        return {
            "title": self.title,
            "caption": figures.caption(self.columns),
            "done": int(self.frame.score.notna().sum()),
            "expected": len(self.frame),
            "runs": len(records),
            "hours": f"{sum(sum(record.seconds.values()) for record in records) / 3600:.1f}",
            "hardware": sorted({machine.cpu if machine.device == "cpu" else machine.device for machine in machines}),
            # shorten hashes, but not "lra VERSION, installed", which runs of an installed package have as commit
            "commits": sorted({re.sub("^([0-9a-f]{9})[0-9a-f]{31}$", r"\1", commit) for commit in commits}),
        }


def section(column: Column) -> dict[str, Any]:
    """Return the template values of a column in index.html: name, note, HTML table and caveats."""
    rows = column.rows()
    rows = rows.assign(
        system=rows.system.where(rows.kind == "system", "baseline: " + rows.system),
        interval=_intervals(rows.low, rows.high),
        difference_interval=_intervals(rows.difference_low, rows.difference_high),
        # a row without a test has NaN, which is not below 0.001 and which `number` turns into an empty string
        p_holm=["<0.001" if p < 0.001 else number(p, ".3f") for p in rows.p_holm.astype(float)],
    )
    rates, goals = rows.lr.dropna().unique(), rows.goal.dropna().unique()
    notes = [f"Goal: {goal:g} % validation accuracy." for goal in goals]
    if len(rates) == 1:  # one learning rate for all systems: state it in a sentence instead of a column
        notes.append(f"Learning rate: {rates[0]:g}.")
        rows = rows.assign(lr=None)
    if not rows.majority_class.fillna(0).any():
        rows = rows.assign(majority_class=None)  # hide a column of zeros
    filled = [name for name in SHOWN if rows[name].replace("", None).notna().any()]
    systems: dict[str, list[str]] = {}
    for cell in column.cells:
        for caveat in cell.caveats():
            systems.setdefault(caveat, []).append(cell.system)
    everyone = len(column.cells) if len(column.cells) > 1 else None  # a single system is named, not "All systems"
    return {
        "name": column.name,
        "note": " ".join(filter(None, [*notes, unbeaten([column])])),
        "table": html(rows[filled].rename(columns=SHOWN)),
        "caveats": [
            f"{'All systems' if len(names) == everyone else ', '.join(names)}: {caveat}"
            for caveat, names in systems.items()
        ],
    }


def _intervals(low: pd.Series, high: pd.Series) -> list[str]:
    return ["" if pd.isna(start) else f"{start:.2f} to {end:.2f}" for start, end in zip(low, high, strict=True)]


def write_report(folder: Path, selection: str | None = None) -> Path:
    """Write the files of a report into its folder and return the path of README.md. For the arguments see `Report`."""
    report = Report(folder, selection)
    figure, panels = figures.drawn(report.columns)
    files = {**report.texts(), SEEDS_FIGURE: figure, PAGE: report.page(panels)}
    for name, text in files.items():
        write_atomic(report.folder / name, text.encode())
    return report.folder / README


def show(page: Path) -> None:
    """Print the README.md `page` up to its figure: formatted if stdout is a terminal, else as Markdown."""
    from rich.console import Console
    from rich.markdown import Markdown

    console, text = Console(), page.read_text(encoding="utf-8").partition("![")[0]
    if console.is_terminal:
        console.print(Markdown(text))
    else:
        print(text)
