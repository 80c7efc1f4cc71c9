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
from lra.reports.cells import Column
from lra.reports.frame import CELL, INTERNAL, present, runs_frame
from lra.reports.published import Published
from lra.reports.render import as_csv, html, number, template
from lra.reports.tables import Tables, significance, unbeaten

METRICS = {"accuracy": "accuracy in percent", "perplexity": "perplexity"}
RULES = {
    "last": "after the last step (`last`)",
    "best_val": "at the best validation result (`best_val`)",
    "best_test": "at the best result on the test split itself (`best_test`)",
}
SHOWN = {  # columns of `Column.rows`, and the intervals that `section` adds, with their headers in index.html
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
        tables: the tables of README.md.

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
        self.tables = Tables(self.columns)

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
        """One row per system and per trivial baseline of each `Column`: table.csv, with some more columns."""
        return pd.concat([column.rows() for column in self.columns], ignore_index=True)

    @cached_property
    def context(self) -> dict[str, Any]:
        """The values that the templates share: sentences, tables, counts, hours, hardware and commits."""
        records = [run.record for run in self.runs]
        machines = [record.provenance for record in records]
        metrics = " or ".join(METRICS[name] for name in dict.fromkeys(column.metric for column in self.columns))
        rules = " or ".join(RULES[rule] for rule in self.frame.selection.unique())
        marks = ["Dot: seed", "bar: mean"]
        if any(cell.published is not None for column in self.columns for cell in column.cells):
            marks.append("cross: published value")
        if any(column.baselines for column in self.columns):
            marks.append("dashed line: best trivial baseline")
        return {
            "title": self.title,
            "label": re.sub("[^a-z0-9]+", "-", self.title.lower()).strip("-"),
            "subject": f"Test {metrics}, mean ± sd over seeds, {rules}.",
            "unbeaten": unbeaten(self.columns),
            "tables": self.tables,
            "significance": significance(self.columns),
            "caption": "; ".join(marks) + ".",
            "done": int(self.frame.score.notna().sum()),
            "expected": len(self.frame),
            "runs": len(records),
            "hours": sum(sum(record.seconds.values()) for record in records) / 3600,
            "hardware": sorted({machine.cpu if machine.device == "cpu" else machine.device for machine in machines}),
            # shorten hashes, but not "lra VERSION, installed", which runs of an installed package have as commit
            "commits": sorted(
                {re.sub("^([0-9a-f]{9})[0-9a-f]{31}$", r"\1", machine.commit or "unknown") for machine in machines}
            ),
        }

    def texts(self) -> dict[str, str]:
        """Return the contents of README.md, table.csv, table.tex and seeds.csv by file name."""
        return {
            README: template("readme.md.j2").render(self.context),
            TABLE: as_csv(self.cells.drop(columns=["kind", "short", "published_mean"])),
            TABLE_TEX: template("table.tex.j2").render(self.context),
            SEEDS: as_csv(self.seeds),
        }

    def page(self, panels: Mapping[str, list[str]]) -> str:
        """Return the content of index.html, one file with its script and figures; `panels` has SVGs by figure title."""
        runs = self.seeds.drop(columns=CELL).dropna(axis="columns", how="all")
        first, assets = ["short", "system"], Path(__file__).with_name("assets")
        return template("page.html.j2").render(
            self.context,
            sections=map(section, self.columns),
            figures=panels,
            seeds=html(runs[[*first, *runs.columns.drop(first)]]),
            script=(assets / "sortable.min.js").read_text(encoding="utf-8"),
            licence=(assets / "sortable.LICENSE").read_text(encoding="utf-8"),
        )


def section(column: Column) -> dict[str, Any]:
    """Return the template values of a column in index.html: name, note, HTML table and caveats."""
    rows = column.rows()
    for name in ("", "difference_"):
        limits = zip(rows[f"{name}low"], rows[f"{name}high"], strict=True)
        rows[f"{name}interval"] = ["" if pd.isna(low) else f"{low:.2f} to {high:.2f}" for low, high in limits]
    rows = rows.assign(
        system=rows.system.where(rows.kind == "system", "baseline: " + rows.system),
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
    # leave out columns without values, such as `published` for a task without published numbers
    shown = rows[[*SHOWN]].replace("", None).dropna(axis="columns", how="all")
    systems: dict[str, list[str]] = {}
    for cell in column.cells:
        for caveat in cell.caveats():
            systems.setdefault(caveat, []).append(cell.system)
    return {
        "name": column.name,
        "note": " ".join(filter(None, [*notes, unbeaten([column])])),
        "table": html(shown.rename(columns=SHOWN)),
        "caveats": [  # a single system is named, not "All systems"
            f"{'All systems' if len(names) == len(column.cells) > 1 else ', '.join(names)}: {caveat}"
            for caveat, names in systems.items()
        ],
    }


def write_report(folder: Path, selection: str | None = None) -> Path:
    """Write the files of a report into its folder and return the path of README.md. For the arguments see `Report`."""
    from lra.reports import figures  # here, because matplotlib loads slowly, and reading a report needs no figures

    report = Report(folder, selection)
    figure, panels = figures.drawn(report.columns)
    files = {**report.texts(), SEEDS_FIGURE: figure, PAGE: report.page(panels)}
    for name, text in files.items():
        write_atomic(report.folder / name, text.encode())  # an interrupt leaves the old file whole
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
