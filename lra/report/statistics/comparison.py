"""From rows to verdicts: which row each is held against, what the runs say of the difference, the caveats of each
number, and systems over several tasks."""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import yaml

from lra.core.errors import UserError
from lra.core.paths import conf_dir
from lra.report.read.published import PublishedTable
from lra.report.read.records import RecordedCell
from lra.report.read.schema import Question
from lra.report.statistics import inference
from lra.report.statistics.inference import ENOUGH, LEVEL
from lra.report.statistics.table import Badge, Column, TableRow, Verdict, Word, by_system, paired

SAME = 0.005  # two numbers that print alike


def asked(cells: Iterable[RecordedCell]) -> Question:
    """What the sweeps that declared these cells ask, or the default. Raises UserError where they differ."""
    questions = sorted({cell.question for cell in cells if cell.question is not None}, key=str)
    if len(questions) > 1:
        words = " and ".join(f"{question.reference or 'its default'} with {question.margin}" for question in questions)
        raise UserError(f"sweeps of one column ask of {words}: give sweep.reference and sweep.margin once, for all")
    return questions[0] if questions else _by_default()


@cache
def _by_default() -> Question:
    sweep = yaml.safe_load((conf_dir() / "train.yaml").read_text())["sweep"]
    return Question(sweep["reference"], sweep["margin"])


def judged(rows: list[TableRow], question: Question) -> list[TableRow]:
    """The rows of a column with their verdicts; p is corrected after Holm over all of them."""
    verdicts = [verdict(row, reference(row, rows, question), question) for row in rows]
    tested = [place for place, outcome in enumerate(verdicts) if outcome is not None and outcome.p is not None]
    for place, holm in zip(tested, inference.holm([verdicts[place].p for place in tested]), strict=True):
        verdicts[place] = replace(verdicts[place], holm=holm)
    return [replace(row, verdict=outcome) for row, outcome in zip(rows, verdicts, strict=True)]


def reference(row: TableRow, rows: list[TableRow], question: Question) -> TableRow | None:
    """What a row is held against: the named system, else the same system from scratch where it is self-pretrained, else
    the Transformer from scratch, else the first row; that of the row's own settings where there are several."""
    measured = [other for other in rows if other.scores]
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


def verdict(row: TableRow, other: TableRow | None, question: Question) -> Verdict | None:
    """None for the reference itself."""
    if other is row:
        return None
    if other is None:
        name = question.reference or "Transformer"
        return Verdict(name, Word.UNTESTED, question.margin, 0, reason=f"there is no {name} to hold it against")
    seeds, difference = paired(row, other)
    means = None if None in (row.summary.mean, other.summary.mean) else row.summary.mean - other.summary.mean
    apart = means is not None and seeds and abs(means - difference.mean) > SAME
    untested = Verdict(
        other.name, Word.UNTESTED, question.margin, len(seeds), difference.mean, of_means=means if apart else None
    )
    reason = _untested(row, other, difference)
    if reason:
        return replace(untested, reason=reason)
    equivalence = difference.equivalence(question.margin)
    word = _word(difference, equivalence, lower=row.cell.metric == "perplexity")
    stuck = next((system.name for system in (other, row) if system.collapsed == system.summary.done), None)
    if stuck and word in (Word.EQUIVALENT, Word.UNDECIDED):
        return replace(untested, reason=f"{stuck} collapsed in every seed")
    return replace(
        untested,
        word=word,
        interval=difference.interval,
        crossed=_crossed(row, other, seeds),
        p=difference.p,
        equivalence=equivalence,
        needed=inference.seeds_to_decide(difference.sd, question.margin, difference.mean),
    )


def _untested(row: TableRow, other: TableRow, difference: inference.Difference) -> str:
    if difference.seeds < 2:
        return "fewer than two seeds in common"
    if row.collapsed == row.summary.done and other.collapsed == other.summary.done:
        return "both collapsed in every seed"
    return "" if difference.p is not None else "their runs do not vary"


def _word(difference: inference.Difference, equivalence: float, lower: bool) -> str:
    """What does not matter is equivalent, even where it is sure."""
    if equivalence < inference.ALPHA:
        return Word.EQUIVALENT
    if difference.p >= inference.ALPHA:
        return Word.UNDECIDED
    return Word.BETTER if (difference.mean < 0) == lower else Word.WORSE


def _crossed(row: TableRow, other: TableRow, seeds: list[int]) -> tuple[float, float] | None:
    """Where both kept the predictions of all these seeds; None where several are of one example, which are right or
    wrong together."""
    if not row.independent or not all(seed in system.predictions for system in (row, other) for seed in seeds):
        return None
    ours, theirs = (np.stack([system.correct(seed) for seed in seeds]) for system in (row, other))
    return inference.crossed(ours, theirs)


# The caveats of a number, by rules that need no judgement; each is shown wherever the number is.
#
# False alarms, for a system with nothing wrong, as tests/test_significance.py simulates them: none of selected on test,
# pretrained, partial data, narrow, few seeds and untested, which are facts; of `collapsed` none where predictions are
# kept, else 1 / sqrt(2 pi n p (1 - p)) of runs that are as good as the majority's share p of n examples, whose count
# they meet by chance (2.4 % for 2,000 examples of ListOps); of `below baseline` 2.5 % of systems that are as good
# as the baseline.


PARTIAL = re.compile(r"\blimit \d+|k train\b")  # in the name of a task
TWO_SIDED = 1.96  # sd of a normal
KINDS = {
    "T": ("selected on test", "the checkpoint was chosen by the split that it is tested on"),
    "C": ("collapsed", "so many seeds answer one class, or as the majority does"),
    "B": ("below baseline", "a trivial baseline is better than the whole interval of the mean"),
    "n": ("few seeds", f"fewer than {ENOUGH}: the interval leans on the runs' being normal"),
    "U": ("untested", "no test could be made against the reference"),
    "P": ("partial data", "a part of the published data"),
    "N": ("narrow", "the model is narrower than the one that the published number is of"),
    "W": ("pretrained", "weights of another training were taken"),
}
"""By the first letter of a code, what it is called and what it means."""


def badges(row: TableRow, baselines: dict[str, float], published: PublishedTable | None) -> tuple[Badge, ...]:
    """What a reader must know of the numbers of a row; `published`: the table whose numbers stand beside them."""
    done, selection = row.summary.done, row.cell.key.selection
    if not done:
        return ()
    on_test = selection == "best_val" and any("best_test" in run["test"] for run in row.finished)
    shown = {
        "T": on_test or selection == "best_test",
        "C": bool(row.collapsed),
        "B": _below(row, baselines),
        "n": done < ENOUGH,
        "U": row.verdict is not None and row.verdict.word == Word.UNTESTED,
        "P": bool(PARTIAL.search(row.cell.key.task)),
        "N": published is not None and _narrow(row, published),
        "W": row.pretrained or any(run["config"].get("init") for run in row.finished),
    }
    numbers = {"C": (f"{row.collapsed}/{done}", f"collapsed {row.collapsed}/{done}"), "n": (str(done), f"n = {done}")}
    caveats = []
    for kind in (kind for kind, is_shown in shown.items() if is_shown):
        number, label = numbers.get(kind, ("", KINDS[kind][0]))
        caveats.append(Badge(f"{kind}{number}", label, KINDS[kind][1]))
    return tuple(caveats)


def _narrow(row: TableRow, published: PublishedTable) -> bool:
    theirs = published.settings.get(row.cell.key.task, {}).get("model.dim")
    widths = [run["config"].get("model", {}).get("dim") for run in row.runs]
    return theirs is not None and any(width is not None and width < theirs for width in widths)


def _below(row: TableRow, baselines: dict[str, float]) -> bool:
    """Whether the 95 % interval of the mean leaves out the strongest baseline, on the wrong side; with one seed, the
    interval over examples."""
    sign = -1 if row.cell.metric == "perplexity" else 1
    strongest = max((sign * value for value in baselines.values()), default=-math.inf)
    if row.summary.interval is not None:
        return max(sign * end for end in row.summary.interval) < strongest
    return sign * row.summary.mean + _of_examples(row) < strongest


def _of_examples(row: TableRow) -> float:
    if row.cell.metric == "perplexity":
        return 0.0
    [seed] = row.scores
    entry = row.cell.runs[seed]["test"][row.cell.key.selection]
    share = entry["correct"] / entry["examples"]
    return 100 * TWO_SIDED * math.sqrt(share * (1 - share) / entry["examples"])


# Systems over several tasks: normalised score, rank, and how often one is better than the reference.
#
# After Agarwal et al. (2021): the runs of a task are drawn again with replacement, each system's own, task by task.
# With few seeds such intervals are too narrow, which the page says.


DRAWS, SEED = 2000, 7  # of the bootstrap; its draws are the same in every report

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
    measured = [[row for _, row in line if row.summary.done] for line in by_system(columns).values()]
    rows = [tasks for tasks in measured if len(tasks) == len(columns)]
    if len(columns) < 2 or len(rows) < 2:
        return []
    scores = [[np.array(list(row.scores.values())) for row in tasks] for tasks in rows]
    rng = np.random.default_rng(SEED)
    drawn = [[runs[rng.integers(0, len(runs), (DRAWS, len(runs)))] for runs in tasks] for tasks in scores]
    once = _measures([[runs[None] for runs in tasks] for tasks in scores], columns, rows)
    again = _measures(drawn, columns, rows)
    return [
        Across(tasks[0].name, *map(_with_ends, task_ends, many))
        for tasks, task_ends, many in zip(rows, once, again, strict=True)
    ]


def _measures(
    drawn: list[list[np.ndarray]], columns: Sequence[Column], rows: list[list[TableRow]]
) -> list[tuple[np.ndarray, np.ndarray, np.ndarray | None]]:
    """Score, rank and probability [draws] of each system, from runs [draws, seeds] of systems and tasks."""
    from scipy.stats import rankdata

    means = np.stack([[runs.mean(axis=1) for runs in tasks] for tasks in drawn])  # [systems, tasks, draws]
    base = np.array([max(column.baselines.values()) for column in columns])[:, None]
    score = ((means - base) / (100 - base)).mean(axis=1)
    rank = rankdata(-means, axis=0).mean(axis=1)
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


def _with_ends(value: np.ndarray | None, drawn: np.ndarray) -> tuple[float, Ends] | None:
    if value is None:
        return None
    low, high = np.quantile(drawn, ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
    return float(value[0]), (float(low), float(high))
