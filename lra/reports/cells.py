"""Group the runs of a report into columns and cells, and compute statistics, comparisons and footnotes.

A column holds the results of one task; a cell holds the seeds of one system in a column, with their statistics.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict
from statistics import fmean, median_low
from typing import Any

import pandas as pd

from lra.core.console import plural
from lra.core.errors import UserError, printable
from lra.reports.frame import CELL, COLUMN, MAJORITY, declared_reference, present
from lra.reports.published import Published, PublishedTable
from lra.reports.statistics import Comparison, compare, holm, summarise

VANILLA = ("softmax", "transformer")  # attention and variant of the Transformer
RATE = re.compile(r"\btrain\.lr=\S+ ?")
CASE = re.compile(r"\b(case|pretrain[\w.]*|train\.lr)=\S+ ?")  # settings in which a cell and its reference may differ
SIGNIFICANT = ("better", "worse")  # verdicts of significant differences


class Cell:
    """All seeds of one system in one column, with their statistics.

    Args:
        frame: rows of `runs_frame` for this cell, one per seed.
        source: published table with numbers for the task, if any.
    """

    def __init__(self, frame: pd.DataFrame, published: Published, source: PublishedTable | None) -> None:
        first = frame.iloc[0]
        self.frame, self.finished = frame, frame[frame.score.notna()]  # `finished`: the rows with a score
        self.system, self.attention, self.variant, self.settings = first[["system", "attention", "variant", "settings"]]
        self.base = self.system.removesuffix(f" ({self.settings})")  # name of the system without its settings
        self.without_rate = self.attention, self.variant, RATE.sub("", self.settings).strip()
        self.records = [run.record for run in present(frame)]  # of the runs that exist, finished or not
        self.order = published.order(self.attention, self.variant, self.settings)  # sort key of table rows
        self.complexity = published.complexity(self.attention)
        self.published = source.number(self.system, first.task) if source else None
        self.published_mean = source.number(self.system, first.task, "mean") if source else None
        self.published_source = source.name if source else None
        unfinished = Counter(frame.status[frame.status != "finished"])
        self.problems = ", ".join(f"{count} {status}" for status, count in sorted(unfinished.items()))
        self.scores = self.finished.score.tolist()
        self.summary = summarise(self.scores, lower_is_better="perplexity" in frame.metric.values)
        self.majority_class = int(self.finished.majority_class.sum())
        rates, validated = frame.lr.dropna().unique(), self.finished.best_val.dropna()
        self.lr = float(rates[0]) if len(rates) == 1 else None  # None if the seeds have several rates
        self.best_val = fmean(validated) if len(validated) else None
        self.is_own = any(record.row for record in self.records)  # the attention is a user's class
        configs = [record.config for record in self.records]
        self.is_pretrained = any(config.get("pretrain") for config in configs)
        self.is_initialised = self.is_pretrained or any(config.get("init") for config in configs)
        # a Transformer as in publications: random initial weights, and all of them trained
        frozen = any(config.get("train", {}).get("freeze") for config in configs)
        changed = self.is_initialised or frozen or not self.records
        self.is_vanilla = (self.attention, self.variant) == VANILLA and not changed
        self.goal = self.records[0].goal if self.records else None  # all runs of a cell have one goal
        self.ran: int | None = None
        self.solved: int | None = None
        self.median_steps: float | None = None
        if self.goal is not None:
            # a diverged seed counts as unsolved, but there is no median while failed or missing seeds can be rerun
            ended = frame[frame.status.isin(["finished", "diverged"])]
            steps = ended.steps.where(ended.solved.astype(bool), math.inf)
            self.ran, self.solved = len(ended), int(ended.solved.sum())
            if 2 * self.solved >= len(frame) == self.ran:
                self.median_steps = median_low(steps)
        # `Column` sets these by comparison with other cells
        self.best_rate: bool | None = None  # its learning rate is the best by validation; None if no system has several
        self.untuned = False  # a user's system with a learning rate of a built-in system
        # None if this cell is the reference, if its learning rate is not the best, or if there is no reference
        self.reference: Cell | None = None
        self.comparison = Comparison()
        self.p_holm: float | None = None  # corrected over all comparisons of the column

    @property
    def verdict(self) -> str | None:
        """Result of the comparison, such as `better`, from its corrected p-value; None if there is no comparison."""
        return self.comparison.word(self.p_holm) if self.reference else None

    def caveats(self) -> Iterator[str]:
        """Yield the footnotes of this cell."""
        for folder in sorted({record.kept for record in self.records if record.kept}):
            seeds = [str(record.seed) for record in self.records if record.kept == folder]
            yield f"seed{'s' * (len(seeds) > 1)} {', '.join(seeds)} reused from {folder}"
        if self.problems:
            yield f"of {plural(len(self.frame), 'seed')}, {self.problems}"
        if self.majority_class:
            yield f"{self.majority_class} of {plural(self.summary.n, 'seed')} no better than the majority class"
        # the weights of the last step were not selected, so this rule needs no footnote
        if any("best_test" in record.test for record in self.records) and self.frame.selection.iloc[0] != "last":
            yield "checkpoint selected on the test split"
        if self.is_initialised:
            yield "starts from pretrained weights"
        if inexact := sum(bool(record.inexact) for record in self.records):
            yield f"{inexact} of {plural(len(self.records), 'seed')} resumed under other conditions (resume=inexact)"
        if any(record.full_pattern for record in self.records):
            yield "attends to every pair of positions at this length, as softmax attention does"
        if self.best_rate and self.best_val is not None:
            yield "best learning rate of this system by validation"
        if self.untuned:
            yield f"untuned: learning rate {self.lr:g}, as for other systems"

    def row(self) -> dict[str, Any]:
        """Return this cell's row of table.csv by column name; `Column.rows` adds values common to all cells."""

        def values(*names: str) -> dict[str, Any]:
            return {name: getattr(self, name) for name in names}

        seconds, comparison = self.finished.train_seconds.dropna(), self.comparison
        return {
            **values("system", "attention", "variant", "settings", "complexity"),
            **asdict(self.summary),
            **values("lr", "best_val"),
            "declared": int(self.frame.declared.sum()) or None,
            **values("problems", "majority_class"),
            "train_seconds": fmean(seconds) if len(seconds) else None,
            "parameters": self.records[0].parameters if self.records else None,
            # of the first seed; seeds.csv has the device of each
            "device": self.records[0].provenance.device if self.records else None,
            **values("published", "published_mean", "published_source", "goal", "ran", "solved", "median_steps"),
            "reference": self.reference and self.reference.system,
            "difference": comparison.difference,
            "difference_low": comparison.low,
            "difference_high": comparison.high,
            "p": comparison.p,
            "p_holm": self.p_holm,
            "p_equivalent": comparison.p_equivalent,
            **values("verdict", "best_rate"),
            "seeds": " ".join(f"{score:.2f}" for score in self.scores),
            "footnotes": "; ".join(self.caveats()),
        }


class Column:
    """The results of all systems on one task under one protocol and selection rule.

    Raises:
        UserError: if runs differ in the majority class, or sweeps declared different references or margins.
    """

    def __init__(self, frame: pd.DataFrame, published: Published) -> None:
        self.frame = frame  # rows of `runs_frame`
        self.name, self.short, self.task = frame[["column", "short", "task"]].iloc[0]
        records, source = [run.record for run in present(frame)], published.source(self.task)
        self.metric = records[0].metric if records else "accuracy"
        self.lower_is_better = self.metric == "perplexity"
        self.best: Callable[..., Any] = min if self.lower_is_better else max
        # one cell per system, in the order of table rows
        self.cells = [Cell(cell, published, source) for _, cell in frame.groupby(CELL, sort=False)]
        # rounding, which depends on the processor, changes baselines that fit weights: take the best among the runs
        measured = pd.DataFrame([record.baselines for record in records], dtype=float)
        found = measured.min() if self.lower_is_better else measured.max()
        if MAJORITY in measured and measured[MAJORITY].nunique() > 1:
            values = ", ".join(f"{value:.2f}" for value in measured[MAJORITY].unique())
            raise UserError(
                f"{self.task}: expected runs with one result of the majority class, found {values}; use two folders"
            )
        # a baseline of our runs replaces a published one of the same name
        self.baselines = dict(sorted((published.baselines.get(self.task, {}) | found.to_dict()).items()))
        self.notes = [f"data: {self.task}"] if self.task.casefold() != self.short.casefold() else []
        if seen := max((record.test_in_train or 0 for record in records), default=0):
            self.notes.append(f"{seen:.1f} % of the test examples are also in the training set")
        if source is not None and any(cell.published is not None for cell in self.cells):
            others = _other_settings(source, self.task, [record.config for record in records])
            self.notes.append(f"published numbers: {source.name} ({source.numbers}){others}")
        # built-in systems have tuned learning rates, which may not suit a user's system
        rates = {cell.lr for cell in self.cells if not cell.is_own and cell.lr is not None}
        chosen = self._chosen()
        for cell in self.cells:
            # None where no system has several rates: nothing was chosen
            cell.best_rate = cell in chosen if len(chosen) < len(self.cells) else None
            cell.untuned = cell.is_own and cell.lr in rates
        # only the best rates are tested, because each further test makes Holm's correction stricter
        name, margin = declared_reference(frame)
        for cell in chosen:
            other = reference(cell, chosen, name)
            if other is not None and other is not cell:
                cell.reference = other
                cell.comparison = compare(cell.scores, other.scores, margin, lower_is_better=self.lower_is_better)
        tested = {cell: cell.comparison.p for cell in chosen if cell.comparison.p is not None}
        for cell, p in zip(tested, holm([*tested.values()]), strict=True):
            cell.p_holm = p

    @property
    def best_baseline(self) -> tuple[str, float] | None:
        """(name, test result) of the best trivial baseline; None if there is no baseline."""
        return self.best(self.baselines.items(), key=lambda item: item[1], default=None)

    def rows(self) -> pd.DataFrame:
        """Return this column's rows of table.csv: its systems, then its trivial baselines, which have only a mean."""
        names = {name: self.frame[name].iloc[0] for name in (*COLUMN, "short", "column")} | {"metric": self.metric}
        trivial = [{"system": name, "mean": mean, "kind": "baseline"} for name, mean in self.baselines.items()]
        return pd.DataFrame([{**names, "kind": "system", **row} for row in (*(c.row() for c in self.cells), *trivial)])

    def _chosen(self) -> list[Cell]:
        """Return the cells; of cells that differ only in the learning rate, return the one with the best validation."""
        chosen = []
        for cell in self.cells:
            same = [other for other in self.cells if other.without_rate == cell.without_rate]
            tried = {other: other.best_val for other in same if other.best_val is not None}
            if not tried or cell is self.best(tried, key=tried.__getitem__):
                chosen.append(cell)
        return chosen


def reference(cell: Cell, cells: list[Cell], name: str | None) -> Cell | None:
    """Return the cell with which `cell` is compared, or None.

    It is the system `name` if that is given. Otherwise it is the same system trained from scratch if `cell` is
    pretrained, else the Transformer trained from scratch, else the first cell with results. Of several candidates, it
    is the one with the settings of `cell`; settings that match `CASE` may differ.
    """
    measured = [other for other in cells if other.scores]
    settings = CASE.sub("", cell.settings).strip()
    same_settings = [other for other in measured if CASE.sub("", other.settings).strip() == settings]
    if name is None and cell.is_pretrained:
        system = cell.attention, cell.variant
        for other in same_settings:
            if not other.is_pretrained and (other.attention, other.variant) == system:
                return other
    named = [other for other in measured if (other.is_vanilla if name is None else name in (other.system, other.base))]
    if named:
        same = [other for other in same_settings if other in named]
        # of several rows that all have other settings, any choice would be arbitrary
        return same[0] if same else named[0] if len(named) == 1 else None
    if name is not None or not measured:
        return None
    # `same_settings` contains `cell` itself, if it has results
    return same_settings[0] if len(same_settings) > 1 else measured[0]


def _other_settings(source: PublishedTable, task: str, configs: list[dict[str, Any]]) -> str:
    """Return a clause that lists the settings in which our runs differ from the published ones; empty if none do."""
    differing = []
    for key, theirs in source.settings.get(task, {}).items():
        group, name = key.split(".")
        ours = {str(config[group][name]) for config in configs if config.get(group, {}).get(name, theirs) != theirs}
        if ours:
            differing.append(f"{key} {', '.join(sorted(ours))} ({theirs} there)")
    return printable(f". Other settings here: {'; '.join(differing)}") if differing else ""
