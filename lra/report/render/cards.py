"""cards.md of a results folder: what each system can, by its accuracy, and what it supports and costs, by the
attentions.json beside the folder; a row and a card for each."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field

from lra.core.errors import UserError
from lra.core.files import read_json
from lra.report.read import schema
from lra.report.render.figures import HARDER
from lra.report.render.layout import Grid
from lra.report.render.markup import escape, markdown
from lra.report.statistics import columns, words
from lra.report.statistics.columns import Tables
from lra.report.statistics.inference import LEVEL
from lra.report.statistics.table import SIGNS, Column, Section, TableRow, Word, by_system

ATTENTIONS = "attentions.json"  # what lra.bench.attentions_page writes
YES, PARTLY, UNCLEAR, NO = "yes", "partly", "unclear", "no"
SOLVED, ABOVE = 95.0, 5.0  # percent; points above the strongest baseline
VERDICTS = {
    Word.BETTER: "Better than",
    Word.WORSE: "Worse than",
    Word.EQUIVALENT: "Equivalent to",
    Word.UNDECIDED: "Not told apart from",
    Word.UNTESTED: "Not tested against",
}
FLAGS = ("order", "mask", "causal")
NOT_MEASURED = "not measured"
LEGEND = f"""\
- `{YES}`: a mean of {SOLVED:g} % or more, above every trivial baseline. `{PARTLY}`: {ABOVE:g} points or more above
  the strongest one, with the whole {100 * LEVEL:g} % interval over seeds above it. `{UNCLEAR}`: so many points, but an
  interval that reaches the baseline, as where only some seeds have learned, or a single seed. `{NO}`: less. An answer
  holds for these sizes and steps.
- Beside it: mean accuracy [{100 * LEVEL:g} % interval over seeds], and the difference to the reference system:
  {"; ".join(f"`{sign}` {word}" for word, sign in SIGNS.items())}.
- *time*, *memory*: of one layer with its output projection, forward and backward, as a multiple of `simple`'s, at the
  attention's settings for text, by [attentions.md](../attentions.md); the variants of an attention share them.
- *order*: without positions it tells permuted inputs apart. *mask*: it can leave padding out. *causal*: it has a form
  in which no output depends on a later position, at those settings or as it ran here.
"""


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
    return "\n".join(_page(tables.sections, _attentions(tables.folder)))


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


def _page(sections: Sequence[Section], known: Attentions) -> Iterator[str]:
    tables = [
        (section, columns)
        for section in sections
        if (columns := [column for column in section.columns if column.metric == "accuracy" and column.baselines])
    ]
    if not tables:
        raise UserError("no task here has an accuracy and a trivial baseline: nothing says what a system can")
    yield "# What each system can\n"
    yield "And what it costs and supports, by `lra-report --cards` from the records here.\n"
    if not known.rows:
        yield f"No cost stands here, because there is no `{ATTENTIONS}` beside this folder.\n"
    for section, columns in tables:
        yield f"## In one table{f': {escape(section.name)}' * (len(tables) > 1)}\n"
        cells = by_system(columns)
        yield markdown(_table(columns, cells, known))
        if section is tables[0][0]:
            yield LEGEND
        for column in columns:
            name, value = max(column.baselines.items(), key=lambda pair: pair[1])
            yield f"- {escape(column.title)}: the strongest baseline is {escape(name)}, {value:.2f}."
        yield ""
        for found in cells.values():
            yield from _card(found, known)


Cells = list[tuple[Column, TableRow]]
"""The columns that have a row of one system, with that row."""


def _table(columns: Sequence[Column], cells: dict[tuple, Cells], known: Attentions) -> Grid:
    header = ["system", "complexity", *(column.title for column in columns)]
    header += [f"{what}, L = {int(length):,}" for length in known.lengths for what in ("time", "memory")]
    rows = []
    for found in cells.values():
        first = found[0][1]
        of_tasks = {column.key: _ability(column, row) for column, row in found}
        line = [first.label, first.complexity, *(of_tasks.get(column.key, "") for column in columns)]
        for length in known.lengths:
            cost = _cost(first, length, known)
            line += [f"{cost.ratio[0]:.2f}", f"{cost.memory:.2f}"] if cost else [NOT_MEASURED] * 2
        flags = _flags(found, known)
        rows.append([*line, *(_said(flags.get(name)) for name in FLAGS)])
    return Grid([*header, *FLAGS], rows, numbers=2)


def _ability(column: Column, row: TableRow) -> str:
    summary = row.summary
    if summary.mean is None:
        return words.count(summary)
    parts = [_word(column, row), words.decimals(summary.mean), words.interval(summary.interval)]
    parts.append(SIGNS.get(row.verdict.word, "") if row.verdict else "")
    parts.append("" if row.cell.complete else f"({words.count(summary)})")
    return " ".join(filter(None, parts))


def _word(column: Column, row: TableRow) -> str:
    return word(row.summary.mean, row.summary.interval, max(column.baselines.values()))


def _cost(row: TableRow, length: str, known: Attentions) -> LayerCost | None:
    costs = known.rows.get(row.cell.key.attention)
    return costs.lengths.get(length) if costs else None


def _flags(found: Cells, known: Attentions) -> dict[str, bool]:
    flags = dict(known.flags.get(found[0][1].cell.key.attention, {}))
    tasks = [run["config"].get("task") for _, row in found for run in row.runs]
    if any(isinstance(task, dict) and task.get("causal") is True for task in tasks):
        flags["causal"] = True
    return flags


def _said(flag: bool | None) -> str:
    return {None: "", True: "yes", False: "no"}[flag]


def _card(found: Cells, known: Attentions) -> Iterator[str]:
    first = found[0][1]
    yield f"### {escape(first.label)}\n"
    done = [(column, row) for column, row in found if row.summary.mean is not None]
    for answer in (YES, PARTLY, UNCLEAR, NO):
        named = [f"{column.title} ({row.summary.mean:.2f})" for column, row in done if _word(column, row) == answer]
        if named:
            yield f"- {answer.capitalize()}: {escape('; '.join(named))}."
    yield from _compared(done)
    yield from filter(None, (_course(column, row) for column, row in done))
    yield f"- {_costs(first, known)}."
    flags = _flags(found, known)
    says = [f"{name} {_said(flags[name])}" for name in FLAGS if name in flags]
    yield f"- It supports: {', '.join(says) or 'not known'}.\n"


def _compared(done: Cells) -> Iterator[str]:
    """Its verdicts."""
    groups: dict[tuple[str, str], list[str]] = {}
    for column, row in done:
        if row.verdict is not None:
            groups.setdefault((VERDICTS[row.verdict.word], row.verdict.reference), []).append(column.title)
    for (beside, reference), titles in groups.items():
        yield f"- {beside} {escape(reference)}: {escape('; '.join(titles))}."


def _course(column: Column, row: TableRow) -> str | None:
    """Its accuracy at the first and the last value of what makes the task harder."""
    known = columns.accuracy_by(row.runs)
    group = next((name for name in HARDER if len(known.get(name, {})) > 1), None)
    if group is None:
        return None
    values = list(known[group])
    ends = [f"{known[group][value]['accuracy']:.2f} at {value}" for value in (values[0], values[-1])]
    return f"- {escape(column.title)}, by {HARDER[group]}: {escape(', '.join(ends))}."


def _costs(row: TableRow, known: Attentions) -> str:
    costs = {length: cost for length in known.lengths if (cost := _cost(row, length, known))}
    if not costs:
        return f"Its costs were {NOT_MEASURED}"
    each = [
        f"{cost.ratio[0]:.2f} times the time and {cost.memory:.2f} times the memory at {int(length):,} positions"
        for length, cost in costs.items()
    ]
    settings = known.rows[row.cell.key.attention].settings
    return f"Beside `simple`, a layer takes {'; '.join(each)}" + f" (with {escape(settings)})" * bool(settings)
