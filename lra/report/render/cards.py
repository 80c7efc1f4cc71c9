"""cards.md of a results folder: what each system can, by its accuracy, and what it supports and costs, by the
attentions.json beside the folder; a row and a card for each."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from lra.core.errors import UserError
from lra.core.files import read_json
from lra.report.read import schema
from lra.report.render.figures import HARDER
from lra.report.render.layout import Grid, both_reached, sign
from lra.report.render.markup import rendered
from lra.report.statistics import columns, words
from lra.report.statistics.columns import Tables
from lra.report.statistics.inference import LEVEL
from lra.report.statistics.table import SIGNS, Column, TableRow, Word, by_system

ATTENTIONS = "attentions.json"  # what scripts/attentions.sh writes
YES, PARTLY, UNCLEAR, NO = "yes", "partly", "unclear", "no"
SOLVED, ABOVE = 95.0, 5.0  # percent; points above the strongest baseline
VERDICTS = {
    Word.BETTER: "Better than",
    Word.WORSE: "Worse than",
    Word.EQUIVALENT: "Equivalent to",
    Word.UNDECIDED: "Not told apart from",
    Word.UNTESTED: "Not tested against",
}
RACED = {"quicker": "Quicker than", "slower": "Slower than", SIGNS[Word.UNDECIDED]: "Not told apart in steps from"}
FLAGS = ("order", "mask", "causal")
SAID = {None: "", True: "yes", False: "no"}  # of a flag
NOT_MEASURED = "not measured"


class LayerCost(schema.Checked):
    """Beside `simple`; `ratio` of times: median, least, most."""

    ratio: Annotated[list[schema.Measure], Field(min_length=3, max_length=3)]
    memory: schema.Measure


class AttentionCosts(schema.Checked):
    """`lengths`: by the number of positions."""

    settings: str
    lengths: dict[Annotated[str, Field(pattern=r"^\d+$")], LayerCost]


class Attentions(schema.Checked):
    """Costs and flags by the name of an attention."""

    rows: dict[str, AttentionCosts]
    flags: dict[str, dict[str, bool]]

    @property
    def lengths(self) -> list[str]:
        return sorted({length for row in self.rows.values() for length in row.lengths}, key=int)


def page(tables: Tables) -> str:
    """The text of the page of a results folder. Raises UserError where no task has an accuracy and a trivial
    baseline."""
    attentions, parts = _attentions(tables.folder), []
    for section in tables.sections:
        columns = [column for column in section.columns if column.metric == "accuracy" and column.baselines]
        systems = by_system(columns).values()
        if columns:
            cards = [_card(cells, attentions) for cells in systems]
            parts.append((section.name, columns, _table(columns, systems, attentions), cards))
    if not parts:
        raise UserError("no task here has an accuracy and a trivial baseline: nothing says what a system can")
    limits = {"SOLVED": SOLVED, "ABOVE": ABOVE, "LEVEL": LEVEL, "ATTENTIONS": ATTENTIONS}
    return rendered("cards.md.j2", parts=parts, known=attentions, **limits).rstrip() + "\n"


def _attentions(folder: Path) -> Attentions:
    """What lies beside the results folder; nothing where there is no such file."""
    path = folder.resolve().parent / ATTENTIONS
    try:
        return schema.check(Attentions, read_json(path))
    except FileNotFoundError:
        return Attentions(rows={}, flags={})
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: {error}; bash scripts/attentions.sh --measure writes it anew") from None


def word(mean: float, interval: tuple[float, float] | None, baseline: float) -> str:
    """Whether a system can what a task asks. `mean`: its accuracy in percent; `interval`: None for a single seed;
    `baseline`: the strongest trivial one."""
    if mean >= SOLVED and mean > baseline:
        return YES
    if mean < baseline + ABOVE:
        return NO
    return PARTLY if interval is not None and interval[0] > baseline else UNCLEAR


Cells = list[tuple[Column, TableRow]]
"""The columns that have a row of one system, with that row."""


def _table(columns: Sequence[Column], systems: Iterable[Cells], attentions: Attentions) -> Grid:
    header = ["system", "complexity", *(column.title for column in columns)]
    header += [f"{what}, L = {int(length):,}" for length in attentions.lengths for what in ("time", "memory")]
    rows = []
    for cells in systems:
        first = cells[0][1]
        of_tasks = {column.key: _ability(column, row) for column, row in cells}
        line = [first.label, first.complexity, *(of_tasks.get(column.key, "") for column in columns)]
        for length in attentions.lengths:
            cost = _cost(first, length, attentions)
            line += [f"{cost.ratio[0]:.2f}", f"{cost.memory:.2f}"] if cost else [NOT_MEASURED] * 2
        flags = _flags(cells, attentions)
        rows.append([*line, *(SAID[flags.get(name)] for name in FLAGS)])
    return Grid([*header, *FLAGS], rows, numbers=2)


def _ability(column: Column, row: TableRow) -> str:
    summary = row.summary
    if summary.mean is None:
        return words.count(summary)
    parts = [_word(column, row), row.race.share if row.race else ""]
    parts += [words.decimals(summary.mean), words.interval(summary.interval)]
    parts.append(sign(row, column))
    parts.append("" if row.cell.complete else f"({words.count(summary)})")
    return " ".join(filter(None, parts))


def _word(column: Column, row: TableRow) -> str:
    """Where there is a goal, a mean of enough points is no more than a part: `yes` is that of seeds."""
    answer = word(row.summary.mean, row.summary.interval, column.strongest[1])
    if row.race is None:
        return answer
    if row.race.learned:
        return YES
    return PARTLY if answer == YES else answer


def _cost(row: TableRow, length: str, attentions: Attentions) -> LayerCost | None:
    costs = attentions.rows.get(row.cell.key.attention)
    return costs.lengths.get(length) if costs else None


def _flags(cells: Cells, attentions: Attentions) -> dict[str, bool]:
    flags = dict(attentions.flags.get(cells[0][1].cell.key.attention, {}))
    tasks = [run["config"].get("task") for _, row in cells for run in row.runs]
    if any(isinstance(task, dict) and task.get("causal") is True for task in tasks):
        flags["causal"] = True
    return flags


def _card(cells: Cells, attentions: Attentions) -> dict[str, Any]:
    """What the card of a system says: by answer the tasks, by verdict the tasks, how it fares as a task gets harder,
    what it costs beside `simple` at each length, and what it supports."""
    first, flags = cells[0][1], _flags(cells, attentions)
    answers: dict[str, list[str]] = {answer: [] for answer in (YES, PARTLY, UNCLEAR, NO)}
    verdicts: dict[tuple[str, str], list[str]] = {}
    for column, row in cells:
        if row.summary.mean is None:
            continue
        answers[_word(column, row)].append(f"{column.title} ({row.summary.mean:.2f})")
        if row.verdict is not None:
            raced = both_reached(row, column)
            said = RACED[sign(row, column)] if raced else VERDICTS[row.verdict.word]
            verdicts.setdefault((said, row.verdict.reference), []).append(column.title)
    return {
        "label": first.label,
        "answers": answers,
        "verdicts": verdicts,
        "courses": [course for column, row in cells if row.summary.done and (course := _course(column, row))],
        "costs": {int(length): cost for length in attentions.lengths if (cost := _cost(first, length, attentions))},
        "of": attentions.rows.get(first.cell.key.attention),
        "supports": [f"{name} {SAID[flags[name]]}" for name in FLAGS if name in flags],
    }


def _course(column: Column, row: TableRow) -> tuple[str, str, str] | None:
    """The task, what makes it harder, and the accuracy at the first and the last value of that."""
    accuracies = columns.accuracy_by(row.runs)
    group = next((name for name in HARDER if len(accuracies.get(name, {})) > 1), None)
    if group is None:
        return None
    values = list(accuracies[group])
    ends = [f"{accuracies[group][value]['accuracy']:.2f} at {value}" for value in (values[0], values[-1])]
    return column.title, HARDER[group], ", ".join(ends)
