"""What the runs of a column say of its question, in words: in a sentence that needs no statistics, and in full; and
numbers as text."""

import math
from collections.abc import Iterator, Sequence

from lra.report.statistics.inference import ALPHA
from lra.report.statistics.race import grouped, span
from lra.report.statistics.table import Column, Summary, TableRow, Word, p_text

NAMED = 3  # rows of one verdict that a sentence names


def plain(column: Column) -> str:
    """A sentence or two for a reader who knows the systems and no test. What is better or worse here remains so after
    Holm's correction over the rows; what does not counts as not told apart."""
    if column.goal is not None:
        return f"{_learners(column)}{_trivial(column)}"
    rows = [row for row in column.rows if row.verdict is not None and row.verdict.seeds]
    done = [row for row in column.rows if row.summary.done]
    if not done:
        return "No run is finished."
    reasons = {row.verdict.reason for row in rows if row.verdict.word == Word.UNTESTED}
    if not all(row.verdict.word == Word.UNTESTED for row in rows):
        return f"{_told_apart(column, rows)}.{_stuck(column)}{_trivial(column)}"
    if rows and all(row.collapsed == row.summary.done for row in done):
        return f"Nothing is told apart: the runs answer as one that has learned nothing does.{_trivial(column)}"
    alone = _list([f"{row.name} has {mean_sd(row.summary)}" for row in done])
    test = f"no test: {min(reasons)}" if rows else "nothing is compared"
    return f"{alone}; {test}.{_stuck(column)}{_trivial(column)}"


def _told_apart(column: Column, rows: list[TableRow]) -> str:
    """Who is better or worse than the reference, and who is not."""
    names = list(dict.fromkeys(row.verdict.reference for row in rows))
    mean = next((row.summary.mean for row in column.rows if row.name == names[0]), None)
    reference, again = f"{names[0]} ({decimals(mean)})", "it"
    if len(names) > 1:
        reference = again = "the reference of its settings"
    first, *more = _relations({word: [row for row in rows if firm(row) == word] for word in RELATIONS})
    return "; ".join([first.format(reference), *(text.format(again) for text in more)])


RELATIONS = {
    Word.BETTER: "better than {}",
    Word.WORSE: "worse than {}",
    Word.EQUIVALENT: "as good as {}",
    Word.UNDECIDED: "not told apart from {} by these seeds",
}


def _relations(rows: dict[str, list[TableRow]]) -> Iterator[str]:
    """A text for each verdict that rows have, the largest differences first, with a field for the reference."""
    for word, alike in rows.items():
        if alike:
            if word in (Word.BETTER, Word.WORSE):
                alike = sorted(alike, key=lambda row: -abs(row.verdict.estimate))
            subject = f"{_list([row.name for row in alike])} {'is' if len(alike) == 1 else 'are'}"
            yield f"{subject.replace('{', '{{').replace('}', '}}')} {RELATIONS[word]}"


def firm(row: TableRow) -> str:
    """The word of its verdict, after Holm's correction over the rows: what it takes away is undecided."""
    verdict = row.verdict
    lost = verdict.word in (Word.BETTER, Word.WORSE) and verdict.holm is not None and verdict.holm >= ALPHA
    return Word.UNDECIDED if lost else verdict.word


def _list(names: list[str]) -> str:
    if len(names) > NAMED + 1:
        names = [*names[:NAMED], f"{len(names) - NAMED} more"]
    return ", ".join(names[:-1]) + " and " * (len(names) > 1) + names[-1]


def _learners(column: Column) -> str:
    """Who reaches the goal, the quickest first, and who has not, after how many steps."""
    every, some, none, unknown = _raced(column)
    parts = []
    if every:
        steps = f"in {every[0].race.median:,} steps"
        first = [row.name for row in every if row.race.median == every[0].race.median]
        order = f", {steps}" if len(first) == len(every) else f", {_list(first)} first ({steps})"
        learn = "learn" if len(every) > 1 else "learns"
        parts.append(f"{_list([row.name for row in every])} {learn} it in every seed{order}")
    parts += [f"{row.name} in {row.race.seeds} ({_scores(row)})" for row in some]
    if none:
        names = _list([f"{row.name} ({_scores(row)})" for row in none])
        have, steps = "have" if len(none) > 1 else "has", span(*(row.race for row in none))
        parts.append(f"{names} {have} not{'' if parts else ' learned it'} in {steps} steps")
    parts += [f"{row.name} ({_scores(row)}) {row.race.word}" for row in unknown]
    return "Learned: " * (not every and bool(some)) + "; ".join(parts) + "."


def _scores(row: TableRow) -> str:
    """Its test accuracy, or that of each group of its seeds."""
    return grouped(row.scores) or (f"{row.summary.mean:.1f} %" if row.summary.done else "diverged")


def _raced(column: Column) -> tuple[list[TableRow], ...]:
    """The rows that learned the task in every declared seed, in some or in some so far, in none, and in none so far:
    those of most solved seeds first, then the quickest, then those of the best mean."""

    def weight(row: TableRow) -> tuple[float, ...]:
        return -len(row.race.solved) / len(row.race.steps), row.race.median or math.inf, -(row.summary.mean or 0)

    groups: tuple[list[TableRow], ...] = ([], [], [], [])
    for row in sorted((row for row in column.rows if row.race is not None), key=weight):
        place = 0 if row.race.learned else 1 if row.race.solved else 2 if row.race.complete else 3
        groups[place].append(row)
    return groups


def _stuck(column: Column) -> str:
    """Name the rows of whose seeds some give one answer to everything: the mean is that of two kinds of seeds."""
    rows = [row for row in column.rows if 0 < row.collapsed < row.summary.done]
    if not rows:
        return ""
    rows.sort(key=lambda row: -row.collapsed / row.summary.done)
    names = _list([f"{row.name} {row.collapsed} of {row.summary.done}" for row in rows])
    return f" Seeds with one answer to everything: {names}."


def _trivial(column: Column) -> str:
    """Where a trivial baseline is above systems."""
    done, below = _below(column)
    if not below:
        return ""
    name, value = column.strongest
    which = "every system" if below == done else f"{below} of {done} systems"
    beats = "below" if column.metric == "perplexity" else "above"
    return f" A trivial baseline, {name} ({value:.2f}), is {beats} {which}, beyond chance."


def answer(column: Column) -> str:
    """What the runs of a column say of its question."""
    if column.goal is not None:
        return f"{_race(column)}{_baselines(column)}"
    judged = [row for row in column.rows if row.verdict is not None]
    if not judged:
        return "One system alone, so nothing is compared." + _baselines(column)
    if not any(row.verdict.seeds for row in judged):
        reference = judged[0].verdict.reference
        return f"Nothing is compared: no row has a seed in common with {reference}.{_baselines(column)}"
    best = f" {column.bold} is better than every other row." if column.bold else ""
    parts = "; ".join(_parts(judged))
    return f"{_against(column, judged)}: {parts}.{_holm(judged)}{_means(judged)}{best}{_baselines(column)}"


def _race(column: Column) -> str:
    """Who learns a task with a goal, and who is quicker or slower than the reference."""
    every, some, none, unknown = _raced(column)
    groups = {
        "learn it": [f"{row.name} in {row.race.median:,}" for row in every],
        "learn it in some seeds": [f"{row.name} {row.race.share}" for row in some],
        "do not": [f"{row.name} {decimals(row.summary.mean)} after {span(row.race)}" for row in none],
        "do not so far": [f"{row.name} {row.race.share}" for row in unknown],
    }
    parts = [f"{len(rows)} {what} ({_some(rows)})" for what, rows in groups.items() if rows]
    return f"To {column.goal:g} % of validation, in steps: {'; '.join(parts)}.{_quicker(column)}"


def _quicker(column: Column) -> str:
    """Whose steps to the goal differ from those of the reference."""
    tests = column.race_tests.values()
    if not tests:
        return ""
    words = {word: [test.row.name for test in tests if test.word == word] for word in ("quicker", "slower")}
    said = "; ".join(f"{word}: {_some(rows)}" for word, rows in words.items() if rows)
    names = {test.reference for test in tests}
    reference = min(names) if len(names) == 1 else "the reference of its settings"
    return f" Beside {reference} (log-rank, Holm) {said or 'nobody is quicker or slower beyond chance'}."


def _some(rows: list[str]) -> str:
    return ", ".join(rows[:NAMED] + [f"{len(rows) - NAMED} more"] * (len(rows) > NAMED))


def _against(column: Column, judged: list[TableRow]) -> str:
    """The references, with their numbers where there is a single one."""
    names = list(dict.fromkeys(row.verdict.reference for row in judged))
    margin = f"margin {judged[0].verdict.margin:g}"
    if len(names) > 1:
        itself = ", what is self-pretrained against itself from scratch" * any(row.pretrained for row in judged)
        return f"Each against the reference of its settings{itself} ({names[0]} and so on; {margin})"
    rows = [row for row in column.rows if row.name == names[0]]
    return f"Against {names[0]} ({', '.join([mean_sd(row.summary) for row in rows] + [margin])})"


def _parts(judged: list[TableRow]) -> list[str]:
    parts = []
    for word in Word:
        rows = [row for row in judged if row.verdict.word == word]
        if rows:
            rows.sort(key=_weight)
            shown = [f"{row.name}: {row.verdict.reason}" if word == Word.UNTESTED else _number(row) for row in rows]
            parts.append(f"{len(rows)} {word} ({_some(shown)})")
    return parts


def _weight(row: TableRow) -> tuple[float, float]:
    """What sorts verdicts: of what is not told apart, that of most seeds first; else large differences before small
    ones."""
    verdict = row.verdict
    if verdict.word in (Word.EQUIVALENT, Word.UNDECIDED):
        return -verdict.seeds, verdict.needed
    return 0, -abs(verdict.estimate or 0)


def _number(row: TableRow) -> str:
    verdict = row.verdict
    text = f"{row.name} {signed(verdict.estimate)} {interval(verdict.interval)}"
    return text + f", {verdict.needed:,} seeds each would decide" * (verdict.word == Word.UNDECIDED)


def _means(judged: list[TableRow]) -> str:
    """Where the differences are not those of the means that stand beside them."""
    apart = [abs(row.verdict.of_means - row.verdict.estimate) for row in judged if row.verdict.of_means is not None]
    if not apart:
        return ""
    return f" Differences are over common seeds, and up to {max(apart):.2f} from those of the printed means."


def _holm(judged: list[TableRow]) -> str:
    """Which differences stand when all rows are held against the reference at once."""
    claimed = [row for row in judged if row.verdict.word in (Word.BETTER, Word.WORSE)]
    tested = sum(row.verdict.holm is not None for row in judged)
    if not claimed or tested < 2:
        return ""
    held = [row.name for row in claimed if row.verdict.holm < ALPHA]
    names = ", ".join(held[:NAMED]) + f" and {len(held) - NAMED} more" * (len(held) > NAMED)
    return f" After Holm's correction over {tested} rows {names or 'none'} remain{'s' * (len(held) < 2)}."


def _baselines(column: Column) -> str:
    done, below = _below(column)
    if not below:
        return ""
    name, value = column.strongest
    worse = "above" if column.metric == "perplexity" else "below"
    return f" {below} of {done} {worse} the strongest baseline ({name}, {value:.2f})."


def _below(column: Column) -> tuple[int, int]:
    """How many systems have a finished run, and how many of these are worse than the strongest baseline."""
    done = [row for row in column.rows if row.summary.done]
    return len(done), sum(row.has("B") for row in done)


# Numbers as text.


def decimals(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def signed(value: float | None) -> str:
    return "" if value is None else f"{value:+.2f}"


def interval(ends: Sequence[float] | None) -> str:
    return "" if ends is None else f"[{ends[0]:.2f}, {ends[1]:.2f}]"


def mean_sd(summary: Summary) -> str:
    return decimals(summary.mean) + ("" if summary.sd is None else f" ± {summary.sd:.2f}")


def count(summary: Summary) -> str:
    """Seeds done of seeds declared, and what became of the others."""
    done = str(summary.done) if summary.declared is None else f"{summary.done}/{summary.declared}"
    return done + "".join(f", {number} {state}" for state, number in summary.problems.items())


def whole(value: int | None) -> str:
    return "" if value is None else f"{value:,}"


def short_p(p: float | None) -> str:
    return "" if p is None else p_text(p).removeprefix("p = ").removeprefix("p ")
