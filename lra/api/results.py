"""What runs have left, as tables for pandas, and verdicts between systems; by the code of the reports."""

import math
import warnings
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from lra.core.errors import UserError, did_you_mean
from lra.report import Report, write_report
from lra.report.read.records import Curve, read_curve, refuse_hidden_differences
from lra.report.read.schema import Question
from lra.report.render import exports
from lra.report.statistics.columns import refuse_other_labels
from lra.report.statistics.comparison import asked, verdict
from lra.report.statistics.table import TableRow, Verdict

Rule = Literal["best_val", "last", "best_test"]


class Results:
    """What the records in a results folder, or in a receipts file, say. `docs/api.md` describes every column of the
    DataFrames; in all of them `protocol`, `selection`, `task`, `system` and `seed` name a run."""

    def __init__(self, path: Path, selection: Rule | None) -> None:
        self._report = Report(path, selection, tell=_warn)
        self._rows = self._report.rows
        self._runs = [(column, row, seed) for column, row in self._rows for seed in row.cell.seeds()]

    @cached_property
    def table(self) -> pd.DataFrame:
        """A line for each system of each task: what the tables of the report show."""
        return self._frame(exports.cells(self._report))

    @cached_property
    def seeds(self) -> pd.DataFrame:
        """A line for each run, those that are missing included."""
        lines = exports.seeds(self._report)
        scores = [row.scores.get(seed) for _, row, seed in self._runs]
        frame = self._frame(lines).rename(columns={"flags": "flag"})  # `frame.flags` is something else in pandas
        return frame.assign(score=pd.Series(scores, dtype=float))

    @cached_property
    def curves(self) -> pd.DataFrame:
        """A line for each evaluation during a training; what is measured block by block is left out."""
        runs = [row.cell.runs.get(seed) for _, row, seed in self._runs]
        kept: list[Curve] = [(run and read_curve(self._report.run_files, run)) or {} for run in runs]
        names = dict.fromkeys(name for curve in kept for name, values in curve.items() if not _is_by_block(values))
        lengths = [len(curve.get("step", ())) for curve in kept]
        return self._repeated(lengths).assign(
            **{
                name: [value for curve, n in zip(kept, lengths, strict=True) for value in curve.get(name, [None] * n)]
                for name in names
            }
        )

    @cached_property
    def predictions(self) -> pd.DataFrame:
        """A line for each answer on the test split, of the runs that kept them."""
        none = np.empty((2, 0), np.uint8)
        kept = [row.predictions.get(seed, none) for _, row, seed in self._runs]
        predicted, labels = np.concatenate(kept, axis=1)
        return self._repeated([array.shape[1] for array in kept]).assign(
            example=np.concatenate([np.arange(array.shape[1]) for array in kept]),
            predicted=predicted,
            label=labels,
            correct=predicted == labels,
        )

    def system(self, name: str, *, task: str | None = None, protocol: str | None = None) -> TableRow:
        """The runs of a system on a task, for `lra.compare`. `task`: its name or its short one; it, and `protocol`, may
        be left out where there is one. Raises UserError."""
        here = [
            (column, row)
            for column, row in self._rows
            if task in (None, column.task, column.short) and protocol in (None, column.key[0])
        ]
        if not here:
            known = dict.fromkeys(f"task={column.short!r}, protocol={column.key[0]!r}" for column, _ in self._rows)
            raise UserError(f"{self!r}: no task={task!r} with protocol={protocol!r}; known: {'; '.join(known)}")
        matching = [(column, row) for column, row in here if row.name == name]
        if not matching:
            raise UserError(f"{self!r}: no system {name!r}; {did_you_mean(name, {row.name for _, row in here})}")
        if len(matching) > 1:
            places = "; ".join(f"task={column.short!r}, protocol={column.key[0]!r}" for column, _ in matching)
            raise UserError(f"{self!r}: {name!r} is in {len(matching)} columns, name one of them: {places}")
        return matching[0][1]

    def _frame(self, lines: list[dict[str, Any]]) -> pd.DataFrame:
        """The lines, and the short name of each one's task; what no line has is a number that is missing."""
        frame = pd.DataFrame(lines)
        missing = [name for name in frame if frame[name].isna().all()]
        short = {column.task: column.short for column, _ in self._rows}
        return frame.astype(dict.fromkeys(missing, float)).assign(short=[short[line["task"]] for line in lines])

    def _repeated(self, lengths: list[int]) -> pd.DataFrame:
        """The names of each run in so many lines, as categories, which take little memory."""
        names = [{**exports.names(column, row), "seed": seed} for column, row, seed in self._runs]
        frame = self._frame(names)
        frame = frame.astype(dict.fromkeys(frame.columns.difference(["seed"]), "category"))
        return frame.take(np.repeat(np.arange(len(frame)), lengths)).reset_index(drop=True)

    def __repr__(self) -> str:
        runs = sum(len(row.cell.runs) for _, row in self._rows)
        return f"results of {self._report.title!r} ({runs} runs)"


def load(path: str | Path, *, selection: Rule | None = None) -> Results:
    """The results of a folder with runs below it, or of a `receipts.zip`, which is read as it is.

    `selection`: this test result of every run, in place of what its protocol selects. What cannot be read is left out
    with a warning. Raises UserError where there is nothing to read, or where runs do not belong together.
    """
    return Results(Path(path), selection)


def compare(first: TableRow, other: TableRow, *, margin: float | None = None) -> Verdict:
    """The verdict of a report on `first` held against `other`, over the seeds that both have; in points of accuracy, or
    of perplexity, first minus other.

    The two come from `Results.system`, of the same results or of different ones. `margin`: below which a difference
    does not matter; None: what their sweeps say. `holm` is None, since one comparison needs no correction. Raises
    UserError where the two were not run on the same task and data under one protocol.
    """
    for row in (first, other):
        if not isinstance(row, TableRow):
            raise UserError(f"{row!r:.80}: expected what Results.system returned")
    if first is other:
        raise UserError(f"{first.name}: compared with itself; give another system")
    if margin is not None and not 0 < margin < math.inf:
        raise UserError(f"margin={margin}: expected points of {first.cell.metric}, more than 0")
    columns = [row.cell.key.column for row in (first, other)]
    if columns[0] != columns[1]:
        here, there = (f"{task}, protocol {protocol}, {selection}" for protocol, selection, task in columns)
        raise UserError(f"{first.name} on {here} and {other.name} on {there}: expected one task and one protocol")
    refuse_hidden_differences([first.cell, other.cell])
    refuse_other_labels([first, other])
    if margin is None:
        margin = asked([first.cell, other.cell]).margin
    judged = verdict(first, other, Question(other.name, margin))
    assert judged is not None
    return judged


def report(
    folder: str | Path, *, selection: Rule | None = None, published: str | Path | Iterable[str | Path] = ()
) -> Path:
    """Write the report of a results folder into it, as `lra-report` does, and return its README.md.

    `selection`: as of `load`; `published`: one file of published numbers, or several. What cannot be read is
    left out with a warning. Raises UserError.
    """
    paths = [published] if isinstance(published, str | Path) else published
    return write_report(Path(folder), selection, [Path(path) for path in paths], _warn)


def _is_by_block(values: list[Any]) -> bool:
    return any(isinstance(value, list) for value in values)


def _warn(fault: str) -> None:
    warnings.warn(fault, stacklevel=2)
