"""Numbers by name, from the records in a folder of results folders, and the texts that they stand in.

    table1_small/listops paper/Simple/mean ± sd              a system (or several, by commas or *) in a column
    table1_small/listops paper/Simple - Transformer/p        two systems, or a system and a baseline
    table1_small/listops paper/root operator/baseline
    published/SimpleTRON v4/listops/Simple                   what a published table prints
    bench/step_text_paper/lra/ratio                          a subject of a `bench.json`, or `simple at 4096`
    bench/step_text_paper/lra beside straightforward/memory  the quotient of two subjects

A column is a task, and its protocol where the folder has two; docs/numbers.md lists the quantities. In Markdown a
number stands as `<!--{NAME}-->36.09<!--{}-->`, a text with several, and a table, as blocks of lines:

    <!--{                                                    <!--{table hour: Transformer, Simple}-->
    The mean is {hour/mqar/Simple/mean}.                     | system | Recall |
    }-->                                                     ...
    The mean is 62.24.                                       <!--{}-->
    <!--{}-->

The comments do not show in a rendered page, but a line that begins with one is taken for HTML, so a number must not.
"""

import fnmatch
import re
import textwrap
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import zip_longest
from pathlib import Path
from statistics import fmean, median
from typing import Any

from lra.core.errors import UserError, did_you_mean, printable
from lra.core.files import read_json, read_regular, write_atomic
from lra.report import Report
from lra.report.read import records
from lra.report.read.published import Published
from lra.report.read.records import training_seconds
from lra.report.render import layout
from lra.report.render.markup import markdown
from lra.report.statistics import inference
from lra.report.statistics.comparison import asked, verdict
from lra.report.statistics.race import Race
from lra.report.statistics.table import Column, TableRow, Verdict, paired

BENCH, PUBLISHED = "bench", "published"
BENCH_FILE = "bench.json"
MINUS, BESIDE = " - ", " beside "
WITH_ENDS = "{:+.2f} [{:.2f}, {:.2f}]"


@dataclass(frozen=True)
class Quantity:
    """Values, and how they are written; `{}` fields take the format of a placeholder that names one."""

    values: Sequence[float | None]
    form: str

    def text(self, spec: str = "") -> str:
        """Raises UserError where there is no number, or `spec` is not a format of numbers."""
        if not self.values or any(value is None or value != value for value in self.values):  # NaN is not itself
            raise UserError("the records have no such number")
        form = re.sub(r"\{[^}]*\}", lambda field: f"{{:{spec}}}" if spec else field[0], self.form)
        try:
            return form.format(*self.values)
        except ValueError as error:
            raise UserError(f"expected a format like .2f, found {spec!r}: {error}") from None


class Quantities:
    """The numbers of `folder`, a folder of results folders; each folder is read once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.report = cache(lambda name: Report(folder / name))
        self.bench = cache(lambda name: _bench(folder / BENCH / name / BENCH_FILE))

    def text(self, name: str) -> str:
        """The number that `name` stands for, as it is written. Raises UserError."""
        parts = name.split("/")
        if len(parts) < 4:
            raise UserError("expected FOLDER/COLUMN/SYSTEM/QUANTITY")
        first, second, third = parts[0], parts[1], "/".join(parts[2:-1])
        last, _, spec = parts[-1].partition(":")
        if first == PUBLISHED:
            return _published(second, third, last).text(spec)
        if first == BENCH:
            return self._measured(second, third, last).text(spec)
        return self._recorded(first, second, third, last).text(spec)

    def table(self, asked: str) -> str:
        """The table of a folder's README in Markdown; `asked`: FOLDER, or FOLDER: SYSTEM, SYSTEM. Raises UserError."""
        folder, _, names = (part.strip() for part in asked.partition(":"))
        report = self._report(folder)
        if not names:
            return markdown(layout.matrix(report.columns))
        orders = {row.name: row.order for _, row in report.rows}
        return markdown(layout.excerpt(report.columns, [_known(name, orders) for name in _names(names, orders)]))

    def _report(self, folder: str) -> Report:
        if not (self.folder / folder).is_dir():
            known = [path.name for path in self.folder.iterdir() if path.is_dir()]
            raise UserError(f"no folder {folder!r} in {self.folder}; {did_you_mean(folder, known)}")
        return self.report(folder)

    def _recorded(self, folder: str, column_name: str, systems: str, quantity: str) -> Quantity:
        report = self._report(folder)
        column = _column(report, column_name)
        if quantity == "baseline":
            return Quantity([_known(systems, column.baselines)], "{:.2f}")
        if MINUS in systems:
            first, other = systems.split(MINUS, 1)
            return _difference(column, first, other, quantity)
        return _or_quotient(systems, lambda name: _of_rows(_rows(column, name), quantity))

    def _measured(self, folder: str, subjects: str, quantity: str) -> Quantity:
        results = self.bench(folder)
        return _or_quotient(subjects, lambda name: _of_subject(_known(name, results), quantity))


def _or_quotient(names: str, read: Callable[[str], Quantity]) -> Quantity:
    """What is read of a name, or of two the quotient."""
    if BESIDE not in names:
        return read(names)
    dividend, divisor = (read(name).values for name in names.split(BESIDE, 1))
    if len(dividend) != 1 or len(divisor) != 1:
        raise UserError(f"{names!r}: expected a quantity of one number each, found {len(dividend)} and {len(divisor)}")
    if not all(isinstance(value, int | float) for value in (*dividend, *divisor)) or not divisor[0]:
        raise UserError(f"{names!r}: there is no quotient of {dividend[0]} and {divisor[0]}")
    return Quantity([dividend[0] / divisor[0]], "{:.2f}")


def _names(listed: str, known: Collection[str]) -> list[str]:
    """Split at commas, but for those within a known name, as in `mine, simple`."""
    parts, names = [part.strip() for part in listed.split(",")], []
    while parts:
        lengths = range(len(parts), 0, -1)
        length = next((length for length in lengths if ", ".join(parts[:length]) in known), 1)
        names.append(", ".join(parts[:length]))
        parts = parts[length:]
    return names


def _known(name: str, choices: dict[str, Any]) -> Any:
    if name not in choices:
        raise UserError(f"nothing is called {name!r}; {did_you_mean(name, choices)}")
    return choices[name]


def _column(report: Report, name: str) -> Column:
    """Find a column by its task, as the configuration or a table calls it, alone or with its protocol."""
    columns: dict[str, list[Column]] = defaultdict(list)
    for column in report.columns:
        for task in {column.task.split(" (")[0], column.short}:
            columns[task].append(column)
            columns[f"{task} {column.key[0]}"].append(column)
    return _known(name, {label: alike[0] for label, alike in columns.items() if len(alike) == 1})


def _rows(column: Column, names: str) -> list[TableRow]:
    systems = [row.name for row in column.rows]
    chosen: set[str] = set()
    for pattern in _names(names, systems):
        matching = {pattern} & {*systems} or set(fnmatch.filter(systems, pattern))
        if not matching:
            raise UserError(f"no system is called {pattern!r}; {did_you_mean(pattern, systems)}")
        chosen |= matching
    return [row for row in column.rows if row.name in chosen]


def _one(column: Column, name: str) -> TableRow:
    return _known(name, {row.name: row for row in column.rows})


def _of_rows(rows: list[TableRow], name: str) -> Quantity:
    """A number of one system; of several, a range over them."""
    if not any(row.scores for row in rows):
        raise UserError("none of its runs is finished")
    if name in SPANS:
        values = [value for row in rows for value in SPANS[name](row) if value is not None]
        return Quantity([min(values), max(values)] if values else [], "{:.2f} to {:.2f}")
    if steps := re.fullmatch(r"steps to (\d+)", name):
        return _steps(rows, float(steps[1]))
    if name in OF_A_RACE:
        races = [row.race for row in rows if row.race is not None]
        return Quantity([sum(counts) for counts in zip(*map(OF_A_RACE[name], races), strict=True)], "{} of {}")
    if len(rows) > 1:
        of_several = ", ".join([*SPANS, *OF_A_RACE])
        raise UserError(f"{name!r} is of one system, not of {len(rows)}; of several there are {of_several}")
    if at := re.fullmatch(r"(\w+) at (\d+)", name):
        return Quantity([_at(rows[0], at[1], int(at[2]))], "{:.2f}")
    if blocks := re.fullmatch(r"(\w+) in blocks? (\d+)(?:-(\d+))?", name):
        return _blocks(rows[0], blocks[1], int(blocks[2]), int(blocks[3] or blocks[2]))
    read, form = _known(name, OF_A_SYSTEM)
    return Quantity(read(rows[0]), form)


def _steps(rows: list[TableRow], target: float) -> Quantity:
    """The steps at which validation accuracy first reached `target` percent: by seed, or a range over systems."""
    reached = [
        records.reached(curve, "val_accuracy", target, lower=False)
        for row in rows
        for _, curve in sorted(row.curves.items())
    ]
    if len(rows) == 1:
        return Quantity([step or "never" for step in reached], ", ".join(["{}"] * len(reached)))
    steps = [step for step in reached if step]
    if not steps:
        return Quantity([], "")
    return Quantity([min(steps), max(steps) if len(steps) == len(reached) else "never"], "{} to {}")


def _at(row: TableRow, name: str, step: int) -> float | None:
    steps, values = records.over_seeds(row.curves.values(), name)
    return float(values.mean(axis=0)[list(steps).index(step)]) if step in steps and values.ndim == 2 else None


def _blocks(row: TableRow, name: str, first: int, last: int) -> Quantity:
    """A probe at the last step, mean over the seeds, from the smallest to the largest of the blocks."""
    steps, values = records.over_seeds(row.curves.values(), name)
    means = values[:, -1].mean(axis=0)[first - 1 : last] if values.ndim > 2 and len(steps) else []
    if not len(means):
        return Quantity([], "")
    return Quantity([min(means)], "{:.2f}") if first == last else Quantity([min(means), max(means)], "{:.2f} to {:.2f}")


def _difference(column: Column, first: str, other: str, name: str) -> Quantity:
    """First minus other, over the seeds that both have."""
    if name == "race":
        return _quicker(column, first, other)
    read, form = _known(name, OF_A_PAIR)
    if other in column.baselines:
        values = [value - column.baselines[other] for row in _rows(column, first) for value in row.scores.values()]
        difference, judged = inference.difference(values, [0.0] * len(values)), None
    else:
        first_row, other_row = _one(column, first), _one(column, other)
        seeds, difference = paired(first_row, other_row)
        values = [first_row.scores[seed] - other_row.scores[seed] for seed in seeds]
        judged = first_row.verdict
        if judged is None or judged.reference != other:
            judged = verdict(first_row, other_row, asked([first_row.cell, other_row.cell]))
    return Quantity(read(difference, values, judged) if values else [], form)


def _quicker(column: Column, first: str, other: str) -> Quantity:
    """Whether a row gets to the goal quicker or slower than its reference, after Holm's correction over the rows."""
    test = column.race_tests.get(first)
    return Quantity([test.word] if test and test.reference == other else [], "{}")


def _published(source: str, task: str, system: str) -> Quantity:
    published = _known(source, {table.name: table for table in Published().sources})
    return Quantity([published.number(system, task)], "{:.2f}")


def _bench(path: Path) -> dict[str, dict[str, Any]]:
    """What was measured of each subject, by its name, and its length where there are several."""
    try:
        return {
            f"{result['subject']} at {result['length']}" if "length" in result else result["subject"]: result
            for result in read_json(path)["results"]
        }
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path}: not a readable measurement: {error}") from None


def _of_subject(result: dict[str, Any], name: str) -> Quantity:
    if share := re.fullmatch(r"share of (.+)", name):
        kinds = result.get("kinds", {})
        return Quantity([_known(share[1], kinds) / sum(kinds.values())], "{:.0%}")
    read, form = _known(name, OF_A_SUBJECT)
    try:
        return Quantity(read(result), form)
    except KeyError as error:
        raise UserError(f"{result['subject']!r} has no {error}") from None


def _frozen(row: TableRow) -> list[float]:
    """The mean share of the parameters that were not trained."""
    counted = [run for run in row.finished if run.get("parameters") and "trainable_parameters" in run]
    return [fmean(1 - run["trainable_parameters"] / run["parameters"] for run in counted)] if counted else []


def _with_ends(value: float | None, ends: tuple[float, float] | None) -> list[float | None]:
    return [value, *(ends or (None, None))]


SPANS: dict[str, Callable[[TableRow], Sequence[float | None]]] = {
    "runs": lambda row: list(row.scores.values()),
    "means": lambda row: [row.summary.mean],
    "sds": lambda row: [row.summary.sd],
    "gains of best": lambda row: [row.summary.gain_of_best],
    "selected minus last": lambda row: [
        run["test"][row.cell.key.selection][row.cell.metric] - run["test"]["last"][row.cell.metric]
        for run in row.finished
    ],
}
"""By name, what one or several systems have: written from the smallest to the largest."""

OF_A_RACE: dict[str, Callable[[Race], tuple[int, int]]] = {
    "solved": lambda race: (len(race.solved), len(race.steps)),
    "no progress": lambda race: (len(race.stuck), len(race.steps) - len(race.solved)),
}
"""By name, the seeds of one or several systems that solved the task, and how many of the others made no progress."""

OF_A_SYSTEM: dict[str, tuple[Callable[[TableRow], Sequence[float | None]], str]] = {
    "mean ± sd": (lambda row: [row.summary.mean, row.summary.sd], "{:.2f} ± {:.2f}"),
    "mean": (lambda row: [row.summary.mean], "{:.2f}"),
    "sd": (lambda row: [row.summary.sd], "{:.2f}"),
    "best": (lambda row: [row.summary.best], "{:.2f}"),
    "lowest": (lambda row: [row.summary.minimum], "{:.2f}"),
    "highest": (lambda row: [row.summary.maximum], "{:.2f}"),
    "not collapsed": (lambda row: [row.summary.done - row.collapsed, row.summary.done], "{} of {}"),
    "parameters": (lambda row: [run.get("parameters") for run in row.finished][:1], "{:,}"),
    "pretraining perplexity": (
        lambda row: [fmean(known)] if (known := layout.pretrained_to(row, "perplexity")) else [],
        "{:.2f}",
    ),
    "median steps": (lambda row: [row.race and row.race.median], "{:,}"),
    "training time": (lambda row: [median(training_seconds(run) for run in row.finished)], "{:,.0f}"),
    "frozen": (_frozen, "{:.0%}"),
}
"""By name, what one system has; times in seconds, medians over the seeds."""

OF_A_PAIR: dict[str, tuple[Callable[[inference.Difference, list[float], Verdict | None], Sequence[Any]], str]] = {
    "difference": (lambda known, _, verdict: [known.mean], "{:+.2f}"),
    "difference [interval]": (lambda known, _, verdict: _with_ends(known.mean, known.interval), WITH_ENDS),
    "difference [crossed]": (lambda known, _, verdict: _with_ends(known.mean, verdict and verdict.crossed), WITH_ENDS),
    "p": (lambda known, _, verdict: [known.p], "{:.3f}"),
    "p after Holm": (lambda known, _, verdict: [verdict and verdict.holm], "{:.3f}"),
    "p equivalent": (lambda known, _, verdict: [verdict and verdict.equivalence], "{:.3f}"),
    "verdict": (lambda known, _, verdict: [verdict and verdict.word], "{}"),
    "margin": (lambda known, _, verdict: [verdict and verdict.margin], "{:.2f}"),
    "seeds to decide": (lambda known, _, verdict: [verdict and verdict.needed], "{}"),
    "lowest": (lambda known, values, verdict: [min(values)], "{:+.2f}"),
    "highest": (lambda known, values, verdict: [max(values)], "{:+.2f}"),
    "differences": (lambda known, values, verdict: [min(values), max(values)], "{:+.2f} to {:+.2f}"),
}
"""By name, what two systems have: first minus other, over the seeds that both have."""

OF_A_SUBJECT: dict[str, tuple[Callable[[dict[str, Any]], Sequence[float]], str]] = {
    "ratio": (lambda result: [median(result["ratio"])], "{:.2f}"),
    "ratio [spread]": (
        lambda result: [median(result["ratio"]), min(result["ratio"]), max(result["ratio"])],
        "{:.2f} [{:.2f}, {:.2f}]",
    ),
    "seconds": (lambda result: [median(result["seconds"])], "{:.2f}"),
    "memory": (lambda result: [result["allocated_bytes"] / 1e6], "{:.3g}"),
    "operations": (lambda result: [result["flops"] / 1e9], "{:.3g}"),
}
"""By name, what a subject of a benchmark has: its time beside that of the first subject, seconds, MB, GFLOP."""


PLACE = re.compile(r"<!--\{(?P<asked>(?:(?!<!--|-->).)+)\}-->(?P<stands>(?:(?!<!--\{).)*)<!--\{\}-->", re.DOTALL)
MARK = re.compile(r"<!--\{")
NAME = re.compile(r"\{([^{}]+)\}")
TABLE = "table "
TEXT_BYTES = 2**24  # the most that a page may have


@dataclass(frozen=True)
class Passage:
    """What stands between two marks: its line, what was asked for, what stands there, and what the records say, or why
    they say nothing."""

    line: int
    asked: str
    stands: str
    says: str | None
    fault: str = ""

    @property
    def name(self) -> str:
        """What a message calls it; of a text with numbers its beginning."""
        return textwrap.shorten(self.asked, 100, placeholder=" ...")


def read_page(path: Path) -> str:
    """A text that somebody wrote. Raises UserError."""
    try:
        return read_regular(path, TEXT_BYTES, follow=True).decode()
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: not a readable text: {error}") from None


def mismatches(path: Path, quantities: Quantities) -> Iterator[str]:
    """A line for everything in `path` that is not what the records say. Raises UserError."""
    text = read_page(path)
    yield from (f"{path}:{fault}" for fault in _form(text))
    for place in _passages(text, quantities):
        if place.says is None:
            yield f"{path}:{place.line}: {place.name}: {place.fault}"
        elif place.says != place.stands:
            line, stands, says = _first_difference(place)
            yield f"{path}:{line}: {place.name}: {stands!r} stands there, the records say {says!r}; --fill writes it"


def fill(path: Path, quantities: Quantities) -> int:
    """Write every number, text and table in `path` as the records say; returns how many there are.

    Raises UserError, and writes nothing, where a placeholder names nothing.
    """
    text = read_page(path)
    places = list(_passages(text, quantities))
    faults = [f"{path}:{place.line}: {place.name}: {place.fault}" for place in places if place.says is None]
    faults += [f"{path}:{fault}" for fault in _form(text)]
    if faults:
        raise UserError("; ".join(faults))
    says = iter(places)
    filled = PLACE.sub(lambda match: f"<!--{{{match['asked']}}}-->{next(says).says}<!--{{}}-->", text)
    if filled != text:
        write_atomic(path, filled.encode())
    return len(places)


def without_marks(text: str) -> str:
    """What a reader of the rendered page sees."""
    return PLACE.sub(lambda match: match["stands"], text)


def _passages(text: str, quantities: Quantities) -> Iterator[Passage]:
    for line, match in _numbered(PLACE, text):
        try:
            yield Passage(line, match["asked"], match["stands"], _said(match["asked"], quantities))
        except UserError as error:
            yield Passage(line, match["asked"], match["stands"], None, printable(str(error)))


def _numbered(pattern: re.Pattern[str], text: str) -> Iterator[tuple[int, re.Match[str]]]:
    """Matches, with the lines on which they begin."""
    line = counted = 0
    for match in pattern.finditer(text):
        line, counted = line + text.count("\n", counted, match.start()), match.start()
        yield line + 1, match


def _said(asked: str, quantities: Quantities) -> str:
    if asked.startswith(TABLE):
        return f"\n{quantities.table(asked.removeprefix(TABLE))}"
    if asked.startswith("\n"):
        return NAME.sub(lambda name: quantities.text(name[1]), asked)
    return quantities.text(asked)


def _first_difference(place: Passage) -> tuple[int, str, str]:
    """The line, what stands there and what the records say, where they first differ."""
    first = place.line + place.asked.count("\n")
    pairs = enumerate(zip_longest(place.stands.split("\n"), (place.says or "").split("\n"), fillvalue=""), first)
    return next((line, stands, says) for line, (stands, says) in pairs if stands != says)


def _form(text: str) -> Iterator[str]:
    """What is wrong with the comments, with the line."""
    for line, match in _numbered(PLACE, text):
        is_block = match["asked"].startswith((TABLE, "\n"))
        if not is_block and "\n" in match[0]:
            yield f"{line}: expected <!--{{NAME}}-->NUMBER<!--{{}}--> in one line"
        elif not is_block and not text[text.rfind("\n", 0, match.start()) + 1 : match.start()].strip():
            yield f"{line}: a line must not begin with a number, or Markdown takes it for HTML; put a word before it"
    rest = PLACE.sub(lambda match: "\n" * match[0].count("\n"), text)
    for line, _ in _numbered(MARK, rest):
        yield f"{line}: expected <!--{{NAME}}-->NUMBER<!--{{}}-->, found one that is not closed"
