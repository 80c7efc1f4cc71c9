"""Systems over several tasks: normalised score, rank, and how often one is better than the reference.

After Agarwal et al. (2021): the runs of a task are drawn again with replacement, each system's own, task by task. With
few seeds such intervals are too narrow, which the page says.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lra.report.formats import interval
from lra.report.layout import Grid, texts
from lra.report.statistics import LEVEL
from lra.report.table import Column, TableRow

DRAWS, SEED = 2000, 7  # of the bootstrap; its draws are the same in every report
HEAD = ["system", "normalised score", "interval", "mean rank", "interval", "better than reference", "interval"]

Ends = tuple[float, float]


@dataclass(frozen=True)
class Across:
    """A system over the tasks of a table. `score`: 0 for the strongest baseline, 1 for all examples right; `rank`: 1
    for the best mean; `better`: the probability that a run of it beats one of its reference, None for that one. Each
    has its interval."""

    system: str
    score: tuple[float, Ends]
    rank: tuple[float, Ends]
    better: tuple[float, Ends] | None


def across(columns: Sequence[Column]) -> list[Across]:
    """The systems that have runs in each of these columns; none where there are not two columns of accuracies."""
    columns = [column for column in columns if column.metric == "accuracy" and column.baselines]
    orders = [{row.order: row for row in column.rows if row.summary.done} for column in columns]
    shared = sorted(set.intersection(*map(set, orders))) if len(columns) > 1 else []
    if len(shared) < 2:
        return []
    rows = [[by_order[order] for by_order in orders] for order in shared]
    scores = [[np.array(list(row.cell.scores().values())) for row in tasks] for tasks in rows]
    rng = np.random.default_rng(SEED)
    drawn = [[runs[rng.integers(0, len(runs), (DRAWS, len(runs)))] for runs in tasks] for tasks in scores]
    found = _measures([[runs[None] for runs in tasks] for tasks in scores], columns, rows)
    again = _measures(drawn, columns, rows)
    return [
        Across(tasks[0].name, *(None if one is None else (float(one[0]), _ends(many)) for one, many in parts))
        for tasks, parts in zip(rows, (zip(*pair, strict=True) for pair in zip(found, again, strict=True)), strict=True)
    ]


def _measures(
    drawn: list[list[np.ndarray]], columns: Sequence[Column], rows: list[list[TableRow]]
) -> list[tuple[np.ndarray, np.ndarray, np.ndarray | None]]:
    """Score, rank and probability [draws] of each system, from runs [draws, seeds] of systems and tasks."""
    means = np.stack([[runs.mean(axis=1) for runs in tasks] for tasks in drawn])  # [systems, tasks, draws]
    base = np.array([max(column.baselines.values()) for column in columns])[:, None]
    score = ((means - base) / (100 - base)).mean(axis=1)
    above = (means[None] > means[:, None]).sum(axis=1)
    ties = (means[None] == means[:, None]).sum(axis=1) - 1
    rank = (1 + above + ties / 2).mean(axis=1)
    return [(score[place], rank[place], _better(place, drawn, rows)) for place in range(len(rows))]


def _better(place: int, drawn: list[list[np.ndarray]], rows: list[list[TableRow]]) -> np.ndarray | None:
    """The share of pairs of runs, one of a system and one of its reference, where its is the better; ties are half."""
    verdict = rows[place][0].verdict
    names = [tasks[0].name for tasks in rows]
    if verdict is None or verdict.reference not in names:
        return None
    pairs = zip(drawn[place], drawn[names.index(verdict.reference)], strict=True)
    wins = [
        (ours[:, :, None] > theirs[:, None]).mean(axis=(1, 2))
        + (ours[:, :, None] == theirs[:, None]).mean(axis=(1, 2)) / 2
        for ours, theirs in pairs
    ]
    return np.mean(wins, axis=0)


def _ends(values: np.ndarray) -> Ends:
    low, high = np.quantile(values, ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
    return float(low), float(high)


def table(found: Sequence[Across]) -> Grid:
    """A row for each system, the best mean rank first."""
    rows = []
    for known in sorted(found, key=lambda known: known.rank[0]):
        better = ("", "") if known.better is None else (f"{known.better[0]:.2f}", interval(known.better[1]))
        numbers = [f"{known.score[0]:.3f}", interval(known.score[1]), f"{known.rank[0]:.1f}", interval(known.rank[1])]
        rows.append(texts(known.system, *numbers, *better))
    return Grid(HEAD, rows)
