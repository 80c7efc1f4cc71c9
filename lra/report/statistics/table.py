"""What Table 1 says: a summary of each cell, the comparisons in each column, and which row may be bold.

row.verdict    a Verdict; None for the reference itself, and where a column has no reference
row.badges     what a reader must know of the number, shown wherever the number is shown
column.short   the task in one word, as in `listops-short`; column.title has it all
column.answer  the verdicts of a column in words, which a page opens with

A column is one task under one protocol and selection rule; a section is all columns of a protocol and rule.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from itertools import combinations
from typing import Any, TypeVar

import numpy as np

from lra.core.errors import printable
from lra.report.read.published import PublishedTable
from lra.report.read.records import Curve, Record, RecordedCell
from lra.report.statistics import inference
from lra.report.statistics.inference import Difference, Discordant
from lra.report.statistics.race import Race, race_of

T = TypeVar("T")


class Word(StrEnum):
    """A verdict in one word."""

    BETTER = "better"
    WORSE = "worse"
    EQUIVALENT = "equivalent"
    UNDECIDED = "undecided"
    UNTESTED = "untested"


SIGNS = {Word.BETTER: "+", Word.WORSE: "−", Word.EQUIVALENT: "=", Word.UNDECIDED: "?"}  # in a crowded table


@dataclass(frozen=True)
class Badge:
    """A caveat of a number. `code`: for a crowded table, as in `C2/5`; `label`: two words; `meaning`: a sentence."""

    code: str
    label: str
    meaning: str


@dataclass(frozen=True)
class Verdict:
    """A row minus its reference, seed by seed over the seeds that both have. Numbers are None where there are none.

    `estimate`: positive where the row has the higher number; `interval`: over seeds, for this test set; `crossed`: over
    seeds and examples; `p`: two-sided, `holm`: corrected over the rows of the column; `equivalence`: of two one-sided
    tests; `needed`: seeds that would decide; `of_means`: the difference of the printed means where it is another one;
    `reason`: why nothing was tested.
    """

    reference: str
    word: Word
    margin: float
    seeds: int
    estimate: float | None = None
    interval: tuple[float, float] | None = None
    crossed: tuple[float, float] | None = None
    p: float | None = None
    holm: float | None = None
    equivalence: float | None = None
    needed: int | None = None
    of_means: float | None = None
    reason: str = ""


VANILLA = ("softmax", "transformer")
CASE, DEPTH = re.compile(r"\b(case|pretrain[\w.]*)=\S+ ?"), re.compile(r"\bmodel\.depth=(\d+) ?")
FULL_PATTERN = "= softmax here"
COLLAPSED, OUTLIER = "collapsed", "outlier"  # flags of a seed
SIZES = ("window", "block", "stride", "summary", "chunk", "landmarks", "rank")  # of what an attention reads


@dataclass(frozen=True)
class Summary:
    """The numbers of one cell; None where there is none. Best is the highest accuracy, or the lowest perplexity."""

    best: float | None
    mean: float | None
    sd: float | None
    interval: tuple[float, float] | None
    minimum: float | None
    maximum: float | None
    done: int
    declared: int | None
    problems: dict[str, int]
    published_best: float | None
    published_mean: float | None

    @property
    def mean_minus_published(self) -> float | None:
        if self.mean is None or self.published_best is None:
            return None
        return self.mean - self.published_best

    @property
    def gain_of_best(self) -> float | None:
        """How much better the best seed is than the mean."""
        return None if self.best is None or self.mean is None else abs(self.best - self.mean)

    @property
    def expected_gain(self) -> float | None:
        """What best-of-n would gain if the seeds were normal with this standard deviation."""
        return None if self.sd is None else self.sd * inference.expected_maximum(self.done)

    @property
    def seeds_needed(self) -> int | None:
        return None if self.sd is None else inference.seeds_needed(self.sd)


def _known(value: T | None) -> T:
    """A value of which was asked before whether it is there."""
    assert value is not None
    return value


@dataclass(frozen=True)
class TableRow:
    """A cell in its column, and by seed what its finished runs left beside their records.

    `predictions`: classes and labels [2, n]; `costs`: of every batch; `text`: from a language model; `flags`: what is
    odd about a seed.
    """

    name: str
    order: tuple[Any, ...]
    complexity: str
    cell: RecordedCell
    summary: Summary
    predictions: dict[int, np.ndarray]
    curves: dict[int, Curve]
    costs: dict[int, np.ndarray]
    texts: dict[int, str]
    flags: dict[int, list[str]]
    verdict: Verdict | None = None
    badges: tuple[Badge, ...] = ()

    @property
    def runs(self) -> list[Record]:
        return list(self.cell.runs.values())

    @cached_property
    def scores(self) -> dict[int, float]:
        """The scores by seed, as its cell says; they are kept, since every pair of rows asks for them."""
        return self.cell.scores()

    @property
    def finished(self) -> list[Record]:
        """The runs that have a score."""
        return [self.cell.runs[seed] for seed in self.scores]

    @property
    def is_vanilla(self) -> bool:
        """Softmax in the Transformer's blocks, all of it trained, from weights that were drawn."""
        if self.system != VANILLA or self.pretrained:
            return False
        configs = [run["config"] for run in self.runs]
        helped = any(config.get("init") or config.get("train", {}).get("freeze") for config in configs)
        return bool(configs) and not helped

    @property
    def system(self) -> tuple[str, str]:
        """Attention and variant."""
        return self.cell.key.attention, self.cell.key.variant

    @property
    def pretrained(self) -> bool:
        """Whether a phase on the inputs alone came before its training."""
        return any(run["config"].get("pretrain") for run in self.runs)

    @property
    def full_pattern(self) -> bool:
        """Whether its mechanism left out no pair of positions, though it is meant to; records before that was kept
        do not say."""
        return any(run.get("full_pattern") for run in self.runs)

    @property
    def sizes(self) -> str:
        """The windows, blocks and the like that its attention ran with, as in `stride 16, summary 3`."""
        attention: dict[str, Any] = next((run["config"].get("attention", {}) for run in self.runs), {})
        return ", ".join(f"{name} {attention[name]}" for name in SIZES if attention.get(name))

    @property
    def label(self) -> str:
        """Its name, with its window, block or rank, and whether it leaves out no pair of positions."""
        return ", ".join(filter(None, [self.name, self.sizes, FULL_PATTERN * self.full_pattern]))

    @property
    def base(self) -> str:
        """Its name without its settings."""
        return self.name.removesuffix(f" ({self.cell.key.settings})")

    @cached_property
    def race(self) -> Race | None:
        """How many of its seeds reached the goal of the task, and when; None where there is no goal."""
        return race_of(self.cell)

    def reached(self, percent: int) -> int | None:
        """The steps at which half of its seeds had first reached a validation accuracy; None where fewer did."""
        runs = [run.get("reached", {}).get(str(percent)) for run in self.runs]
        steps = sorted(at["step"] for at in runs if at)
        half = (len(runs) - 1) // 2
        return steps[half] if len(steps) > half else None

    @property
    def collapsed(self) -> int:
        """How many of its seeds are."""
        return sum(COLLAPSED in flags for flags in self.flags.values())

    def has(self, code: str) -> bool:
        """Whether a caveat stands at its number."""
        return any(badge.code == code for badge in self.badges)

    @property
    def without_case(self) -> str:
        """Its settings, but for the case of an experiment and for a pretraining."""
        return CASE.sub("", self.cell.key.settings).strip()

    @property
    def independent(self) -> bool:
        """Whether each of its predictions is of an example of its own, and not of one of its positions."""
        return not any("position" in run.get("diagnostics", {}) for run in self.runs)

    def correct(self, seed: int) -> np.ndarray:
        """Which test examples [n] a seed gets right, or which answers in them."""
        predicted, labels = self.predictions[seed]
        hits: np.ndarray = predicted == labels
        return hits


@dataclass(frozen=True)
class Comparison:
    """Two rows over the seeds that both have, or a row and a trivial baseline (`other`): first minus other."""

    first: str
    other: str
    is_baseline: bool
    difference: Difference
    discordant: dict[int, Discordant]

    @property
    def seeds_needed(self) -> int | None:
        sd = self.difference.sd
        return None if sd is None else inference.seeds_needed(sd)


@dataclass(frozen=True)
class RaceTest:
    """A row beside its reference, on the way to the goal of their task. `p`: of the log-rank test; `holm`: corrected
    over the rows of the column."""

    row: TableRow
    reference: str
    quicker: bool
    p: float
    holm: float

    @property
    def word(self) -> str:
        """What holds after the correction."""
        if self.holm >= inference.ALPHA:
            return Word.UNDECIDED
        return "quicker" if self.quicker else "slower"


@dataclass(frozen=True)
class Column:
    """One task under one protocol and rule. `adjusted`: `p`, corrected over the columns; `short`: the task in one word;
    `name`: what it is called beside all others, its protocol and rule included where there are several; `plain`: what
    the verdicts say, in a sentence; `answer`: all of them in words."""

    key: tuple[str, str, str]
    title: str
    metric: str
    baselines: dict[str, float]
    rows: list[TableRow]
    source: PublishedTable | None
    adjusted: float | None = None
    short: str = ""
    name: str = ""
    plain: str = ""
    answer: str = ""

    @property
    def task(self) -> str:
        return self.key[2]

    @property
    def runs(self) -> list[Record]:
        return [run for row in self.rows for run in row.runs]

    @cached_property
    def by_order(self) -> dict[tuple[Any, ...], TableRow]:
        """The rows by their places in tables."""
        return {row.order: row for row in self.rows}

    @property
    def goal(self) -> float | None:
        """The validation accuracy at which runs ended, solved; None where there was none, or where rows that are named
        for it had others."""
        goals = {row.race.goal if row.race else None for row in self.rows if row.race or row.summary.done}
        return goals.pop() if len(goals) == 1 else None

    @cached_property
    def race_tests(self) -> dict[str, RaceTest]:
        """The tests of the rows that have a reference, by name. Those are left out of which the seeds cannot say who is
        quicker: nobody reached the goal, all reached it at once, or whoever did was alone by then."""
        by_name = {row.name: row for row in self.rows}
        tested = []
        for row in self.rows:
            other = by_name.get(row.verdict.reference) if row.verdict else None
            if other and row.race and other.race and (result := inference.log_rank(row.race.times, other.race.times)):
                tested.append((row, other.name, *result))
        corrected = inference.holm([p for *_, p in tested])
        return {test[0].name: RaceTest(*test, holm) for test, holm in zip(tested, corrected, strict=True)}

    @property
    def strongest(self) -> tuple[str, float] | None:
        """The best trivial baseline and its number."""
        best = min if self.metric == "perplexity" else max
        return best(self.baselines.items(), key=lambda known: known[1], default=None)

    @cached_property
    def leader(self) -> TableRow | None:
        """The row with the best mean, the first of equals."""
        sign = -1 if self.metric == "perplexity" else 1
        rows = [row for row in self.rows if row.summary.mean is not None]
        return max(rows, key=lambda row: sign * _known(row.summary.mean), default=None)

    @cached_property
    def by_depth(self) -> dict[str, dict[int, TableRow]]:
        """Systems of several depths, by their name without the depth; empty where no sweep varied it (Table 2)."""
        systems: dict[str, dict[int, TableRow]] = {}
        for row in self.rows:
            settings = row.cell.key.settings
            depth = DEPTH.search(settings)
            if depth:
                rest = DEPTH.sub("", settings).strip()
                systems.setdefault(f"{row.base} ({rest})" if rest else row.base, {})[int(depth[1])] = row
        return {name: dict(sorted(rows.items())) for name, rows in systems.items() if len(rows) > 1}

    @property
    def full_pattern(self) -> bool:
        """Whether a row of it left out no pair of positions, though it is meant to."""
        return any(row.full_pattern for row in self.rows)

    @property
    def shared(self) -> list[Badge]:
        """The caveats of every row that has a number."""
        badges = [row.badges for row in self.rows if row.summary.done]
        return [badge for badge in badges[0] if all(badge in others for others in badges)] if len(badges) > 1 else []

    @property
    def published(self) -> str:
        """What the published numbers are, and which settings of our runs are not theirs; empty where there are none."""
        if self.source is None:
            return ""
        configs = [run["config"] for run in self.runs]
        others = []
        for key, theirs in self.source.settings.get(self.task, {}).items():
            group, name = key.split(".")
            groups = [part for config in configs if isinstance(part := config.get(group), dict)]
            ours = {printable(str(part[name])) for part in groups if name in part and part[name] != theirs}
            if ours:
                others.append(f"{key} {', '.join(sorted(ours))} ({theirs} there)")
        source = f"Published: {self.source.name} ({self.source.numbers})."
        return f"{source} Other settings here: {'; '.join(others)}." if others else source

    def vanilla(self, row: TableRow) -> TableRow | None:
        """The one Transformer from scratch that a row stands beside: of its settings, whatever its case."""
        beside = [other for other in self.rows if other.is_vanilla and other.without_case == row.without_case]
        return beside[0] if len(beside) == 1 else None

    @property
    def not_tested(self) -> str | None:
        """Why no test decides about bold here; None where one does."""
        if self.leader is None or len(self.rows) < 2:
            return "there are no two systems to compare"
        undeclared = [row.name for row in self.rows if not row.cell.declared]
        if undeclared:
            return f"no sweep declared which seeds there are to be of {', '.join(undeclared)}"
        incomplete = [row.name for row in self.rows if not row.cell.complete]
        if incomplete:
            return f"not all seeds that a sweep declared are done of {', '.join(incomplete)}"
        if any(comparison.difference.seeds < 2 for comparison in self.against):
            return "a test needs at least two seeds in common"
        if any(comparison.difference.p is None for comparison in self.against):
            return "a test needs runs that vary"
        return None

    @property
    def p(self) -> float | None:
        """That no other row is as good as the leader: the largest of its tests (an intersection-union test)."""
        return None if self.not_tested else max(_known(comparison.difference.p) for comparison in self.against)

    @property
    def bold(self) -> str | None:
        """The row that is better than every other of the column."""
        if self.not_tested or not all(map(self._ahead, self.against)) or _known(self.adjusted) >= inference.ALPHA:
            return None
        return _known(self.leader).name

    def _ahead(self, comparison: Comparison) -> bool:
        mean = _known(comparison.difference.mean)
        return mean < 0 if self.metric == "perplexity" else mean > 0

    def _weakness(self, comparison: Comparison) -> tuple[bool, float]:
        """How far the leader is from being better than another: behind it by so much, or ahead by chance."""
        behind, difference = not self._ahead(comparison), comparison.difference
        return behind, abs(_known(difference.mean)) if behind else _known(difference.p)

    @property
    def verdict(self) -> str:
        """Why a row is bold, or why none is."""
        if self.not_tested:
            return f"No row is bold: {self.not_tested}."
        weakest = max(self.against, key=self._weakness)
        closest = f"{weakest.difference.mean:+.2f} to {weakest.other}, {p_text(_known(weakest.difference.p))}"
        if self.adjusted != self.p:
            closest += f", {p_text(_known(self.adjusted))} corrected over columns"
        if self.bold:
            return f"{self.bold} is better than every other row (the closest call: {closest})."
        return f"No row is bold: {_known(self.leader).name} has the best mean, but {closest}."

    @cached_property
    def against(self) -> list[Comparison]:
        """The row with the best mean beside every other and every trivial baseline."""
        if self.leader is None:
            return []
        name, scores = self.leader.name, list(self.leader.scores.values())
        of_baselines = [
            Comparison(name, trivial, True, inference.difference(scores, [value] * len(scores)), {})
            for trivial, value in sorted(self.baselines.items())
        ]
        return [compare(self.leader, row) for row in self.rows if row is not self.leader] + of_baselines

    @cached_property
    def pairs(self) -> list[Comparison]:
        """All pairs of rows, the leader first in its own."""
        others = [row for row in self.rows if row is not self.leader]
        of_leader = [pair for pair in self.against if not pair.is_baseline]
        return of_leader + [compare(first, other) for first, other in combinations(others, 2)]


@dataclass(frozen=True)
class Section:
    protocol: str
    selection: str
    columns: list[Column]

    @property
    def name(self) -> str:
        return f"protocol {self.protocol}, selection {self.selection}"


def by_system(columns: Iterable[Column]) -> dict[tuple[Any, ...], list[tuple[Column, TableRow]]]:
    """The rows of each system with their columns, by its place in tables, in order."""
    cells: dict[tuple[Any, ...], list[tuple[Column, TableRow]]] = {}
    for column in columns:
        for row in column.rows:
            cells.setdefault(row.order, []).append((column, row))
    return dict(sorted(cells.items()))


def paired(first: TableRow, other: TableRow) -> tuple[list[int], Difference]:
    """The seeds that both have, and the difference over these."""
    ours, theirs = first.scores, other.scores
    seeds = [seed for seed in ours if seed in theirs]
    return seeds, inference.difference([ours[seed] for seed in seeds], [theirs[seed] for seed in seeds])


def compare(first: TableRow, other: TableRow) -> Comparison:
    seeds, difference = paired(first, other)
    discordant = {
        seed: inference.mcnemar(first.correct(seed), other.correct(seed))
        for seed in seeds
        if seed in first.predictions and seed in other.predictions and first.independent
    }
    return Comparison(first.name, other.name, False, difference, discordant)


def p_text(p: float) -> str:
    return f"p = {p:.3f}" if p >= 0.0005 else "p < 0.001"
