"""From the cells of a results folder to the columns of its tables: who stands there, which tests are made, and what
the records say of whether anything was learned."""

import math
import re
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import replace
from functools import cached_property, partial
from itertools import groupby
from pathlib import Path
from statistics import fmean, stdev
from typing import TypeVar

import numpy as np

from lra.core.errors import UserError, printable
from lra.records.run_files import RunFiles
from lra.report.read import records
from lra.report.read.published import Published, files
from lra.report.read.records import Record, RecordedCell, Tell, load, refuse
from lra.report.statistics import inference
from lra.report.statistics.comparison import Across, across, asked, badges, judged
from lra.report.statistics.table import COLLAPSED, OUTLIER, Column, Section, Summary, TableRow
from lra.report.statistics.words import answer, plain

T = TypeVar("T")
MAJORITY = "majority class"
TRAINED = "convolution"  # in the name of each baseline that is a network, whose last digits the processor decides
RANGE = {"accuracy": (0.0, 100.0), "perplexity": (1.0, math.inf)}  # of the numbers of a metric


class Tables:
    """What the records in a folder say. Raises UserError.

    `root`: a results folder or a receipts file; `selection`: one rule for all runs, or None for each its own;
    `published`: files of published numbers, besides that of the folder; `tell` hears of what cannot be read and is left
    out, `left_out` counts it; `title`: the folder's name where None.
    """

    def __init__(
        self,
        root: Path,
        selection: str | None = None,
        published: Iterable[Path] = (),
        tell: Tell = refuse,
        title: str | None = None,
    ) -> None:
        self.run_files, self.selection = RunFiles(root), selection
        self.folder = self.run_files.folder
        self.title = printable(self.folder.resolve().name) if title is None else title
        self.left_out = 0

        def left_out(fault: str) -> None:
            self.left_out += 1
            tell(fault)

        self.cells = load(self.run_files, selection, left_out)
        self.published = Published(*files(self.folder, published))
        for cell in self.cells:
            for run in cell.runs.values():
                self.published.add(cell.key, run.get("row"))
        self.sections = sections(self.run_files, self.cells, self.published)
        self.columns = [column for section in self.sections for column in section.columns]
        self.rows = [(column, row) for column in self.columns for row in column.rows]

    @property
    def runs(self) -> list[Record]:
        return [run for cell in self.cells for run in cell.runs.values()]

    @property
    def commits(self) -> list[str]:
        return sorted({(run["provenance"]["commit"] or "unknown")[:9] for run in self.runs})

    @property
    def hours(self) -> float:
        """The hours of training and evaluation, all runs together."""
        return sum(sum(run.get("seconds", {}).values()) for run in self.runs) / 3600

    @cached_property
    def across(self) -> dict[str, list[Across]]:
        """The systems over the tasks of each section, by its name."""
        return {section.name: across(section.columns) for section in self.sections}


def sections(run_files: RunFiles, cells: list[RecordedCell], published: Published) -> list[Section]:
    """The tables that `cells` make. Raises UserError where a column's runs disagree about the data."""
    titles = {task: title for task, title in published.tasks.items() if published.source(task) is None}
    tables, short = [], short_names(dict.fromkeys(cell.key.task for cell in cells), published.tasks, titles)
    rules = {(cell.key.protocol, cell.key.selection) for cell in cells}
    protocols = {protocol for protocol, _ in rules}
    for (protocol, selection), group in groupby(cells, key=lambda cell: (cell.key.protocol, cell.key.selection)):
        by_task = {task: list(members) for task, members in groupby(group, key=lambda cell: cell.key.task)}
        columns = [_column(run_files, by_task[task], published) for task in sorted(by_task, key=published.task_order)]
        where = f", {protocol}" * (len(rules) > 1) + f", {selection}" * (len(rules) > len(protocols))
        columns = [
            replace(
                column,
                short=short[column.task],
                name=short[column.task] + where,
                plain=plain(column),
                answer=answer(column),
            )
            for column in _corrected(columns)
        ]
        tables.append(Section(protocol, selection, columns))
    return tables


def _column(files: RunFiles, cells: list[RecordedCell], published: Published) -> Column:
    task = cells[0].key.task
    trivial = baselines(cells)
    cells = sorted(cells, key=lambda cell: published.order(cell.key))
    rows = [_row(files, cell, published, trivial.get(MAJORITY)) for cell in cells]
    refuse_other_labels(rows)
    source = published.source(task)
    rows = [replace(row, badges=badges(row, trivial, source)) for row in judged(rows, asked(cells))]
    return Column(
        key=cells[0].key.column,
        title=published.title(task),
        metric=next((cell.metric for cell in cells if cell.runs), cells[0].metric),
        baselines=trivial,
        rows=rows,
        source=source,
    )


def _row(files: RunFiles, cell: RecordedCell, published: Published, majority: float | None) -> TableRow:
    def of_seeds(read: Callable[[RunFiles, Record], T | None]) -> dict[int, T]:
        values = {seed: read(files, cell.runs[seed]) for seed in cell.scores()}
        return {seed: value for seed, value in values.items() if value is not None}

    predictions = of_seeds(partial(records.predictions, selection=cell.key.selection))
    return TableRow(
        name=published.name(cell.key),
        order=published.order(cell.key),
        complexity=published.complexity(cell.key),
        cell=cell,
        summary=summarise(cell, published),
        predictions=predictions,
        curves=of_seeds(records.read_curve),
        costs=of_seeds(records.costs),
        texts=of_seeds(records.text),
        flags=_flags(cell.scores(), predictions, majority),
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
    labelled = [(row.cell.runs[seed]["path"], array[1]) for row in rows for seed, array in row.predictions.items()]
    for path, labels in labelled[1:]:
        if not np.array_equal(labels, labelled[0][1]):
            raise UserError(f"{path} and {labelled[0][0]} were tested on different labels, yet share a column")


def _corrected(columns: list[Column]) -> list[Column]:
    """Hochberg's correction over the columns of a table, whose tasks are independent of each other."""
    tested = [place for place, column in enumerate(columns) if not column.not_tested]
    adjusted = dict(zip(tested, inference.hochberg([columns[place].p for place in tested]), strict=True))
    return [replace(column, adjusted=adjusted.get(place)) for place, column in enumerate(columns)]


def baselines(cells: Iterable[RecordedCell]) -> dict[str, float]:
    """The trivial baselines that the records of one column carry. They must agree; of one that is trained on each
    machine the best counts."""
    values: dict[str, float] = {}
    for cell in cells:
        for run in cell.runs.values():
            for name, value in run.get("baselines", {}).items():
                if values.setdefault(name, value) != value and TRAINED not in name:
                    raise UserError(f"{run['path']}: baseline {name!r} is {value}, elsewhere {values[name]}")
                values[name] = max(values[name], value)
    return values


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


# The tasks' short names.


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
        numbered = re.compile(rf"{re.escape(name)}(-\d+)?")
        same = sum(numbered.fullmatch(other) is not None for other in names.values())
        names[task] = f"{name}-{same + 1}" if same else name
    return names


def _other_data(note: str) -> str:
    """How data differ from those of a published table, by the note of a task's name."""
    if "length" in note:
        return "-short"
    if note.startswith("JPEG copies") and "limit" not in note:
        return "-copies"
    return "-small" if note else ""


# What the records say of whether anything was learned, all seeds of a cell together.


BINS = 10


def accuracy_by(runs: Iterable[Record]) -> dict[str, dict[str, dict[str, float]]]:
    """Test accuracy in percent by what an example is: {"root operator": {"MIN": {"accuracy": 61.2}, ...}, ...}.

    Beside it, where the records have it, that of the trivial `baseline`.
    """
    counts: dict[str, dict[str, Counter[str]]] = {}
    for run in runs:
        for group, values in run.get("diagnostics", {}).items():
            for value, tally in values.items():
                counts.setdefault(group, {}).setdefault(value, Counter()).update(tally)
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


def calibration_error(points: list[dict[str, float]]) -> float:
    """The mean distance of confidence and accuracy in percent, by predictions (expected calibration error)."""
    total = sum(point["examples"] for point in points)
    return sum(abs(point["confidence"] - point["accuracy"]) * point["examples"] for point in points) / total
