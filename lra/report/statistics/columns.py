"""From the cells of a results folder to the columns of its tables: who stands there, which tests are made, what they
say in words, and what the records say of whether anything was learned."""

import math
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import replace
from functools import partial
from itertools import groupby
from statistics import fmean, stdev
from typing import TypeVar

import numpy as np

from lra.core.errors import UserError
from lra.records.run_files import RunFiles
from lra.report.read import records
from lra.report.read.published import Published
from lra.report.read.records import Record, RecordedCell
from lra.report.statistics import formats, inference
from lra.report.statistics.comparison import asked, badges, judged, race_tests
from lra.report.statistics.inference import ALPHA
from lra.report.statistics.table import (
    BETTER,
    COLLAPSED,
    EQUIVALENT,
    OUTLIER,
    UNDECIDED,
    UNTESTED,
    WORSE,
    Column,
    Comparison,
    Section,
    Summary,
    TableRow,
    compare,
)

T = TypeVar("T")
MAJORITY = "majority class"
RANGE = {"accuracy": (0.0, 100.0), "perplexity": (1.0, math.inf)}  # of the numbers of a metric


def sections(files: RunFiles, cells: list[RecordedCell], published: Published) -> list[Section]:
    """The tables that `cells` make. Raises UserError where a column's runs disagree about the data."""
    titles = {task: title for task, title in published.tasks.items() if published.source(task) is None}
    tables, short = [], short_names(dict.fromkeys(cell.key.task for cell in cells), published.tasks, titles)
    for (protocol, selection), group in groupby(cells, key=lambda cell: (cell.key.protocol, cell.key.selection)):
        by_task: dict[str, list[RecordedCell]] = {}
        for cell in group:
            by_task.setdefault(cell.key.task, []).append(cell)
        columns = [_column(files, by_task[task], published) for task in sorted(by_task, key=published.task_order)]
        columns = [replace(column, short=short[column.task], answer=answer(column)) for column in _corrected(columns)]
        tables.append(Section(protocol, selection, columns))
    return tables


def _column(files: RunFiles, cells: list[RecordedCell], published: Published) -> Column:
    task = cells[0].key.task
    trivial = baselines(cells)
    cells = sorted(cells, key=lambda cell: published.order(cell.key))
    metric = next((cell.metric for cell in cells if cell.runs), cells[0].metric)
    rows = [_row(files, cell, published, trivial.get(MAJORITY)) for cell in cells]
    refuse_other_labels(rows)
    source = published.source(task)
    rows = [replace(row, badges=badges(row, trivial, metric, source)) for row in judged(rows, asked(cells), metric)]
    column = Column(
        key=cells[0].key.column,
        title=published.title(task),
        metric=metric,
        baselines=trivial,
        rows=rows,
        source=source,
    )
    if column.leader is None:
        return column
    others = [compare(column.leader, row) for row in column.rows if row is not column.leader]
    return replace(
        column, against=others + [_beside(column.leader, name, value) for name, value in sorted(trivial.items())]
    )


def _row(files: RunFiles, cell: RecordedCell, published: Published, majority: float | None) -> TableRow:
    def of_seeds(read: Callable[[RunFiles, Record], T | None]) -> dict[int, T]:
        values = {seed: read(files, cell.runs[seed]) for seed in cell.scores()}
        return {seed: value for seed, value in values.items() if value is not None}

    known = of_seeds(partial(records.predictions, selection=cell.key.selection))
    return TableRow(
        name=published.name(cell.key),
        order=published.order(cell.key),
        complexity=published.complexity(cell.key),
        cell=cell,
        summary=summarise(cell, published),
        predictions=known,
        curves=of_seeds(records.read_curve),
        costs=of_seeds(records.costs),
        texts=of_seeds(records.text),
        flags=_flags(cell.scores(), known, majority),
    )


def _flags(
    scores: dict[int, float], predictions: dict[int, np.ndarray], majority: float | None
) -> dict[int, list[str]]:
    """Runs with one answer for all, or, where none is kept, at the majority class; and outliers among the seeds."""
    flags = {}
    odd = inference.outliers(list(scores.values()))
    for (seed, score), is_outlier in zip(scores.items(), odd, strict=True):
        if seed in predictions:
            collapsed = np.ptp(predictions[seed][0]) == 0
        else:
            collapsed = majority is not None and abs(score - majority) < 0.005
        flags[seed] = [COLLAPSED] * bool(collapsed) + [OUTLIER] * is_outlier
    return flags


def refuse_other_labels(rows: list[TableRow]) -> None:
    """Raises UserError where two rows of a column kept predictions of different test examples."""
    known = [(row.cell.runs[seed]["path"], array[1]) for row in rows for seed, array in row.predictions.items()]
    for path, labels in known[1:]:
        if not np.array_equal(labels, known[0][1]):
            raise UserError(f"{path} and {known[0][0]} were tested on different labels, yet share a column")


def _beside(row: TableRow, name: str, value: float) -> Comparison:
    scores = list(row.cell.scores().values())
    return Comparison(row.name, name, True, inference.difference(scores, [value] * len(scores)), {})


def _corrected(columns: list[Column]) -> list[Column]:
    """Hochberg's correction over the columns of a table, whose tasks are independent of each other."""
    tested = [place for place, column in enumerate(columns) if not column.not_tested]
    adjusted = dict(zip(tested, inference.hochberg([columns[place].p for place in tested]), strict=True))
    return [replace(column, adjusted=adjusted.get(place)) for place, column in enumerate(columns)]


def baselines(cells: Iterable[RecordedCell]) -> dict[str, float]:
    """The trivial baselines that the records of one column carry; they must agree."""
    known: dict[str, float] = {}
    for cell in cells:
        for run in cell.runs.values():
            for name, value in run.get("baselines", {}).items():
                if known.setdefault(name, value) != value:
                    raise UserError(f"{run['path']}: baseline {name!r} is {value}, elsewhere {known[name]}")
    return known


def summarise(cell: RecordedCell, published: Published) -> Summary:
    values = list(cell.scores().values())
    best = min if cell.metric == "perplexity" else max
    states = Counter(cell.status(seed) for seed in cell.seeds())
    return Summary(
        best=best(values, default=None),
        mean=fmean(values) if values else None,
        sd=stdev(values) if len(values) > 1 else None,
        interval=inference.mean_interval(values, *RANGE[cell.metric]),
        minimum=min(values, default=None),
        maximum=max(values, default=None),
        done=len(values),
        declared=None if cell.declared is None else len(cell.seeds()),
        problems={state: count for state, count in sorted(states.items()) if state != "finished"},
        published_best=published.value(cell.key, "best"),
        published_mean=published.value(cell.key, "mean"),
    )


# The verdicts of a column in words, and the tasks' short names.


NAMED = 3  # rows of one verdict that a sentence names


def short_names(tasks: Iterable[str], published: Container[str], titles: Mapping[str, str]) -> dict[str, str]:
    """Each task in a few words: its title where `titles` has one, `listops`, and `listops-short` where sizes are not
    those of a published table, `image-copies` where the data alone are not; numbered where two would be the same."""
    names: dict[str, str] = {}
    for task in tasks:
        if task in titles:
            names[task] = titles[task]
            continue
        base, _, note = task.partition(" (")
        name = base + (_other_data(note) if base in published else "")
        same = sum(other == name or other.startswith(f"{name}-") for known, other in names.items() if known != task)
        names.setdefault(task, f"{name}-{same + 1}" if same else name)
    return names


def _other_data(note: str) -> str:
    """How data differ from those of a published table, by the note of a task's name."""
    if "length" in note:
        return "-short"
    if note.startswith("JPEG copies") and "limit" not in note:
        return "-copies"
    return "-small" if note else ""


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
    known = [(row, row.race) for row in column.rows if row.race is not None]
    known.sort(key=lambda pair: (-len(pair[1].solved) / len(pair[1].steps), pair[1].median or math.inf))
    groups: dict[str, list[str]] = {"learn it": [], "learn it in some seeds": [], "do not": []}
    for row, race in known:
        if not race.solved:
            groups["do not"].append(
                f"{row.name} {formats.decimals(row.summary.mean)} after {max(race.steps.values()):,}"
            )
        elif len(race.solved) < len(race.steps):
            groups["learn it in some seeds"].append(f"{row.name} {len(race.solved)} of {len(race.steps)}")
        else:
            groups["learn it"].append(f"{row.name} in {race.median:,}")
    parts = [f"{len(rows)} {what} ({', '.join(rows[:NAMED] + _more(rows))})" for what, rows in groups.items() if rows]
    return f"To {column.goal:g} % of validation, in steps: {'; '.join(parts)}.{_quicker(column)}"


def _quicker(column: Column) -> str:
    """Whose steps to the goal differ from those of the reference."""
    tests = race_tests(column.rows)
    if not tests:
        return ""
    words = {
        word: [test.row.name for test in tests if test.holm < ALPHA and test.quicker == first]
        for word, first in (("quicker", True), ("slower", False))
    }
    said = "; ".join(f"{word}: {', '.join(rows[:NAMED] + _more(rows))}" for word, rows in words.items() if rows)
    return f" Beside {tests[0].reference} (log-rank, Holm) {said or 'nobody is quicker or slower beyond chance'}."


def _more(rows: list[str]) -> list[str]:
    return [f"{len(rows) - NAMED} more"] if len(rows) > NAMED else []


def _against(column: Column, judged: list[TableRow]) -> str:
    """The references, with their numbers where there is a single one."""
    names = list(dict.fromkeys(row.verdict.reference for row in judged))
    margin = f"margin {judged[0].verdict.margin:g}"
    if len(names) > 1:
        own = ", what is self-pretrained against itself from scratch" * any(row.pretrained for row in judged)
        return f"Each against the reference of its settings{own} ({names[0]} and so on; {margin})"
    known = [row for row in column.rows if row.name == names[0]]
    return f"Against {names[0]} ({', '.join([formats.mean_sd(row.summary) for row in known] + [margin])})"


def _parts(judged: list[TableRow]) -> list[str]:
    parts = []
    for word in (BETTER, WORSE, EQUIVALENT, UNDECIDED, UNTESTED):
        rows = [row for row in judged if row.verdict.word == word]
        if rows:
            rows.sort(key=_weight)
            shown = [_untested(row) if word == UNTESTED else _number(row) for row in rows[:NAMED]]
            more = [f"{len(rows) - NAMED} more"] if len(rows) > NAMED else []
            parts.append(f"{len(rows)} {word} ({', '.join(shown + more)})")
    return parts


def _weight(row: TableRow) -> tuple[float, float]:
    """Of what is not told apart, that of most seeds first; else large differences before small ones."""
    known = row.verdict
    if known.word in (EQUIVALENT, UNDECIDED):
        return -known.seeds, known.needed
    return 0, -abs(known.estimate or 0)


def _untested(row: TableRow) -> str:
    return f"{row.name}: {row.verdict.reason}"


def _number(row: TableRow) -> str:
    known = row.verdict
    text = f"{row.name} {formats.signed(known.estimate)} {formats.interval(known.interval)}"
    return text + f", {known.needed:,} seeds each would decide" * (known.word == UNDECIDED)


def _means(judged: list[TableRow]) -> str:
    """Where the differences are not those of the means that stand beside them."""
    apart = [abs(row.verdict.of_means - row.verdict.estimate) for row in judged if row.verdict.of_means is not None]
    if not apart:
        return ""
    return f" Differences are over common seeds, and up to {max(apart):.2f} from those of the printed means."


def _holm(judged: list[TableRow]) -> str:
    """Which differences stand when all rows are held against the reference at once."""
    claimed = [row for row in judged if row.verdict.word in (BETTER, WORSE)]
    tested = sum(row.verdict.holm is not None for row in judged)
    if not claimed or tested < 2:
        return ""
    held = [row.name for row in claimed if row.verdict.holm < ALPHA]
    names = ", ".join(held[:NAMED]) + f" and {len(held) - NAMED} more" * (len(held) > NAMED)
    return f" After Holm's correction over {tested} rows {names or 'none'} remain{'s' * (len(held) < 2)}."


def _baselines(column: Column) -> str:
    if not column.baselines:
        return ""
    name, value = (min if column.metric == "perplexity" else max)(column.baselines.items(), key=lambda known: known[1])
    done = [row for row in column.rows if row.summary.done]
    below = sum(any(badge.code == "B" for badge in row.badges) for row in done)
    return f" {below} of {len(done)} below the strongest baseline ({name}, {value:.2f})." if below else ""


# What the records say of whether anything was learned, all seeds of a cell together.


BINS = 10


def accuracy_by(runs: Iterable[Record]) -> dict[str, dict[str, dict[str, float]]]:
    """Test accuracy in percent by what an example is: {"root operator": {"MIN": {"accuracy": 61.2}, ...}, ...}.

    Beside it, where the records have it, that of the trivial `baseline`.
    """
    counts: dict[str, dict[str, dict[str, int]]] = {}
    for run in runs:
        for group, values in run.get("diagnostics", {}).items():
            for value, group_counts in values.items():
                total = counts.setdefault(group, {}).setdefault(value, {})
                for name, count in group_counts.items():
                    total[name] = total.get(name, 0) + count
    names = {"correct": "accuracy", "baseline": "baseline"}
    return {
        group: {
            value: {names[name]: 100 * total[name] / total["examples"] for name in names if name in total}
            for value, total in values.items()
        }
        for group, values in counts.items()
    }


def reliability(runs: Iterable[Record]) -> list[dict[str, float]]:
    """Mean confidence and accuracy in percent, and examples, of the predictions in each tenth of confidence."""
    bins: dict[int, list[dict[str, float]]] = {}
    for run in runs:
        for group in run.get("calibration", []):
            bins.setdefault(math.ceil(group["confidence"] * BINS), []).append(group)
    points = []
    for _, members in sorted(bins.items()):
        examples = sum(member["examples"] for member in members)
        confidence = sum(100 * member["confidence"] * member["examples"] for member in members) / examples
        accuracy = sum(member["accuracy"] * member["examples"] for member in members) / examples
        points.append({"confidence": confidence, "accuracy": accuracy, "examples": examples})
    return points


def wilson(accuracy: float, examples: int) -> tuple[float, float]:
    """Wilson's (1927) 95 % interval of an accuracy in percent, over examples."""
    share, z = accuracy / 100, 1.959964
    middle = (share + z * z / (2 * examples)) / (1 + z * z / examples)
    half = z * math.sqrt(share * (1 - share) / examples + z * z / (4 * examples**2)) / (1 + z * z / examples)
    return 100 * (middle - half), 100 * (middle + half)


def calibration_error(points: list[dict[str, float]]) -> float:
    """The mean distance of confidence and accuracy in percent, by predictions (expected calibration error)."""
    total = sum(point["examples"] for point in points)
    return sum(abs(point["confidence"] - point["accuracy"]) * point["examples"] for point in points) / total
