"""Read results folders into pandas DataFrames, compare systems and write reports."""

import math
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from lra.core.errors import UserError, did_you_mean
from lra.reports import Report, write_report
from lra.reports.frame import CELL, default_reference, present, refuse_hidden_differences
from lra.reports.statistics import Comparison
from lra.reports.statistics import compare as compare_scores

Rule = Literal["best_val", "last", "best_test"]
# Columns that identify the run of a row.
NAMES = ["protocol", "selection", "task", "short", "system", "attention", "variant", "settings", "metric", "seed"]


class Results(Report):
    """The runs of a results folder, as `lra.load` returns them. `docs/api.md` describes every column."""

    @cached_property
    def table(self) -> pd.DataFrame:
        """One row for each system on each task, with the numbers of the report."""
        return self.cells[self.cells.kind == "system"].reset_index(drop=True).drop(columns=["kind", "column"])

    @cached_property
    def curves(self) -> pd.DataFrame:
        """One row for each evaluation during training, without measurements of single blocks."""
        lines = [
            {name: value for name, value in line.items() if not isinstance(value, list)} | {"index": index}
            for index, run in self._runs()
            for line in run.metrics
            if "phase" not in line  # lines with a phase are of self-pretraining
        ]
        frame = self._named(pd.DataFrame(lines, columns=None if lines else ["index", "step", "val_loss"]))
        return frame.assign(val_perplexity=np.exp(frame.val_loss.astype(float).clip(upper=700)))  # exp(710) overflows

    @cached_property
    def predictions(self) -> pd.DataFrame:
        """One row for each test prediction of the runs that kept their predictions."""
        kept = [(index, run.predictions) for index, run in self._runs() if run.predictions is not None]
        arrays = [array for _, array in kept] or [np.empty((2, 0), np.uint8)]
        predicted, labels = np.concatenate(arrays, axis=1)
        frame = pd.DataFrame(
            {
                "index": np.repeat([index for index, _ in kept], [array.shape[1] for _, array in kept]).astype(int),
                "example": np.concatenate([np.arange(array.shape[1]) for array in arrays]),
                "predicted": predicted,
                "label": labels,
                "correct": predicted == labels,
            }
        )
        return self._named(frame)

    def system(self, name: str, *, task: str | None = None, protocol: str | None = None) -> pd.DataFrame:
        """Return the runs of a system on a task, one per row, for `lra.compare`.

        `task` (full or short name) and `protocol` may be left out if equal in all runs of the system. Raises UserError.
        """
        frame = self.frame
        matching = frame[
            (frame.system == name)
            & ((frame.task == task) | (frame.short == task) | (task is None))
            & ((frame.protocol == protocol) | (protocol is None))
        ]
        if matching.empty:
            known = did_you_mean(name, set(frame.system))
            raise UserError(f"{self!r}: no {name!r} with task={task!r} and protocol={protocol!r}; {known}")
        columns = matching[["short", "protocol"]].drop_duplicates().values.tolist()
        if len(columns) > 1:
            raise UserError(
                f"{self!r}: {name!r} has several tasks or protocols; choose one by task= and protocol=: {columns}"
            )
        return matching.reset_index(drop=True)

    def _runs(self) -> list[tuple[int, Any]]:
        return [(index, run) for index, run in enumerate(self.frame.run) if run is not None]

    def _named(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Return `frame` with the columns `NAMES` of each row's run. Names are categories, which take little memory."""
        names = self.frame[NAMES].astype({name: "category" for name in NAMES if name != "seed"})
        taken = names.take(frame["index"].astype(int).to_numpy()).reset_index(drop=True)
        return pd.concat([taken, frame.drop(columns="index").reset_index(drop=True)], axis=1)

    def __repr__(self) -> str:
        return f"results of {self.title!r} ({len(self.runs)} runs)"


def load(path: str | Path, *, selection: Rule | None = None) -> Results:
    """Return the results in a results folder or in a `runs.jsonl` file.

    Args:
        path: a folder with runs below it or kept runs in it, or a `runs.jsonl` file.
        selection: a selection rule for all runs; default: the rule of each run's protocol.

    Raises:
        UserError: there is nothing to read, a file is damaged, or the runs cannot be compared.
    """
    return Results(Path(path), selection)


def compare(first: pd.DataFrame, other: pd.DataFrame, *, margin: float | None = None) -> Comparison:
    """Return Welch's t-test of two systems: first minus other, in percentage points or units of perplexity.

    Args:
        first, other: runs of a system, as `Results.system` returns them, from one results folder or two.
        margin: positive; a difference of smaller size counts as irrelevant; default: `sweep.margin` in conf/train.yaml.

    Raises:
        UserError: the systems were not run on the same task and data under one protocol, or `margin` is not above 0.
    """
    margin = default_reference()[1] if margin is None else margin
    if not 0 < margin < math.inf:
        raise UserError(f"margin={margin}: expected a number of points above 0")
    here, there = (", ".join(map(str, rows[["task", "protocol", "selection"]].iloc[0])) for rows in (first, other))
    if here != there:
        raise UserError(
            f"{first.system.iloc[0]} on {here} and {other.system.iloc[0]} on {there}: expected one task and protocol"
        )
    # Skip the check for one cell that is read from two folders: the check refuses a cell in which a seed occurs twice.
    if not first[CELL].iloc[0].equals(other[CELL].iloc[0]):
        refuse_hidden_differences(pd.concat([first, other]))
    runs = present(first)
    lower = bool(runs) and runs[0].record.metric == "perplexity"
    # Failed and diverged seeds have no score.
    ours, theirs = first.score.dropna().tolist(), other.score.dropna().tolist()
    return compare_scores(ours, theirs, margin, lower_is_better=lower)


def report(folder: str | Path, *, selection: Rule | None = None) -> Path:
    """Write the report of a results folder into it, as `lra-report` does, and return the path of its README.md.

    Args:
        folder: a results folder.
        selection: as for `load`.

    Raises:
        UserError: as for `load`.
    """
    return write_report(Path(folder), selection)
