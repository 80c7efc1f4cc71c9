"""From rows to verdicts: which row each is held against, and what the runs say of the difference."""

from collections.abc import Iterable
from dataclasses import replace
from functools import cache

import numpy as np
import yaml

from lra.core.errors import UserError
from lra.core.paths import conf_dir
from lra.report import statistics
from lra.report.records import RecordedCell
from lra.report.schema import Question
from lra.report.table import TableRow
from lra.report.verdicts import BETTER, EQUIVALENT, UNDECIDED, UNTESTED, WORSE, Verdict

SAME = 0.005  # two numbers that print alike


def asked(cells: Iterable[RecordedCell]) -> Question:
    """What the sweeps that declared these cells ask, or the default. Raises UserError where they differ."""
    found = sorted({cell.question for cell in cells if cell.question is not None}, key=str)
    if len(found) > 1:
        words = " and ".join(f"{one.reference or 'its default'} with {one.margin}" for one in found)
        raise UserError(f"sweeps of one column ask of {words}: give sweep.reference and sweep.margin once, for all")
    return found[0] if found else _by_default()


@cache
def _by_default() -> Question:
    known = yaml.safe_load((conf_dir() / "train.yaml").read_text())["sweep"]
    return Question(known["reference"], known["margin"])


def judged(rows: list[TableRow], question: Question, metric: str) -> list[TableRow]:
    """The rows of a column with their verdicts; p is corrected after Holm over all of them."""
    found = [verdict(row, reference(row, rows, question), question, metric) for row in rows]
    tested = [place for place, known in enumerate(found) if known is not None and known.p is not None]
    for place, holm in zip(tested, statistics.holm([found[place].p for place in tested]), strict=True):
        found[place] = replace(found[place], holm=holm)
    return [replace(row, verdict=known) for row, known in zip(rows, found, strict=True)]


def reference(row: TableRow, rows: list[TableRow], question: Question) -> TableRow | None:
    """What a row is held against: the named system, else the same system from scratch where it is self-pretrained, else
    the Transformer from scratch, else the first row; that of the row's own settings where there are several."""
    measured = [other for other in rows if other.cell.scores()]
    itself = [other for other in measured if _is_scratch_of(other, row)]
    if itself and question.reference is None:
        return itself[0]
    named = [other for other in measured if _is(other, question.reference)]
    alike = [other for other in named or measured if other.without_case == row.without_case]
    if named:
        return alike[0] if alike else named[0] if len(named) == 1 else None
    if question.reference is not None or not measured:
        return None
    return alike[0] if len(alike) > 1 else measured[0]


def _is_scratch_of(other: TableRow, row: TableRow) -> bool:
    alike = (other.system, other.without_case) == (row.system, row.without_case)
    return row.pretrained and alike and not other.pretrained


def _is(row: TableRow, name: str | None) -> bool:
    return row.is_vanilla if name is None else name in (row.name, row.base)


def verdict(row: TableRow, other: TableRow | None, question: Question, metric: str) -> Verdict | None:
    """None for the reference itself."""
    if other is row:
        return None
    if other is None:
        name = question.reference or "Transformer"
        return Verdict(name, UNTESTED, question.margin, 0, reason=f"there is no {name} to hold it against")
    ours, theirs = row.cell.scores(), other.cell.scores()
    seeds = [seed for seed in ours if seed in theirs]
    difference = statistics.difference([ours[seed] for seed in seeds], [theirs[seed] for seed in seeds])
    means = None if None in (row.summary.mean, other.summary.mean) else row.summary.mean - other.summary.mean
    apart = means is not None and seeds and abs(means - difference.mean) > SAME
    known = Verdict(
        other.name, UNTESTED, question.margin, len(seeds), difference.mean, of_means=means if apart else None
    )
    reason = _untested(row, other, difference)
    if reason:
        return replace(known, reason=reason)
    equivalence = difference.equivalence(question.margin)
    word = _word(difference, equivalence, lower=metric == "perplexity")
    stuck = next((system.name for system in (other, row) if system.collapsed == system.summary.done), None)
    if stuck and word in (EQUIVALENT, UNDECIDED):
        return replace(known, reason=f"{stuck} collapsed in every seed")
    return replace(
        known,
        word=word,
        interval=difference.interval,
        crossed=_crossed(row, other, seeds),
        p=difference.p,
        equivalence=equivalence,
        needed=statistics.seeds_to_decide(difference.sd, question.margin, difference.mean),
    )


def _untested(row: TableRow, other: TableRow, difference: statistics.Difference) -> str:
    if difference.seeds < 2:
        return "fewer than two seeds in common"
    if row.collapsed == row.summary.done and other.collapsed == other.summary.done:
        return "both collapsed in every seed"
    return "" if difference.p is not None else "their runs do not vary"


def _word(difference: statistics.Difference, equivalence: float, lower: bool) -> str:
    """What does not matter is equivalent, even where it is sure."""
    if equivalence < statistics.ALPHA:
        return EQUIVALENT
    if difference.p >= statistics.ALPHA:
        return UNDECIDED
    return BETTER if (difference.mean < 0) == lower else WORSE


def _crossed(row: TableRow, other: TableRow, seeds: list[int]) -> tuple[float, float] | None:
    """Where both kept the predictions of all these seeds."""
    if not all(seed in system.predictions for system in (row, other) for seed in seeds):
        return None
    ours, theirs = (np.stack([system.correct(seed) for seed in seeds]) for system in (row, other))
    return statistics.crossed(ours, theirs)
