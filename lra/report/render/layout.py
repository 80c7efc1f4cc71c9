"""The tables of a report as rows of text, before they become Markdown, LaTeX or HTML."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median, stdev
from typing import TypeVar
from urllib.parse import quote

from lra.records.names import PAGE
from lra.report.read import records
from lra.report.read.published import Published, PublishedTable
from lra.report.read.records import Record, anchor
from lra.report.statistics import inference
from lra.report.statistics.comparison import KINDS, Across
from lra.report.statistics.race import GAP, grouped
from lra.report.statistics.table import (
    FULL_PATTERN,
    SIGNS,
    Badge,
    Column,
    Comparison,
    Section,
    TableRow,
    Word,
    by_system,
    p_text,
)
from lra.report.statistics.words import count, decimals, interval, mean_sd, short_p, signed, whole

T = TypeVar("T")
CAVEATS = "caveats"  # a column of words
MEAN, INTERVAL = "mean ± sd", "95 % interval"
NEEDED = f"seeds to see {inference.POINTS}"


@dataclass(frozen=True)
class TableText:
    """What stands in one place of a table. `link`: an address."""

    text: str
    bold: bool = False
    italic: bool = False
    link: str | None = None


Line = Sequence[TableText | str]


@dataclass
class Grid:
    """A table: columns from `numbers` on are aligned to the right, but for caveats; the first rows are `baselines`."""

    header: list[str]
    rows: Sequence[Line]
    numbers: int = 1
    baselines: int = 0

    def __post_init__(self) -> None:
        self.rows = [[TableText(each) if isinstance(each, str) else each for each in row] for row in self.rows]

    @property
    def sides(self) -> list[str]:
        """Where the text of each column stands, `l` or `r`."""
        return ["l" if place < self.numbers or name == CAVEATS else "r" for place, name in enumerate(self.header)]


def grid(columns: Mapping[str, Callable[[T], TableText | str]], items: Iterable[T], numbers: int = 1) -> Grid:
    """A row for each of the items, with what each column says of it."""
    return Grid([*columns], [[says(item) for says in columns.values()] for item in items], numbers)


def baseline(name: str) -> TableText:
    return TableText(f"baseline: {name}", italic=True)


# What is said of a cell.


def facts(column: Column, row: TableRow) -> dict[str, tuple[float | None, str]]:
    """The number that sorts a cell, if one does, and its text, by heading."""
    summary, key = row.summary, row.cell.key
    runs = row.finished
    strongest = column.strongest[1] if column.strongest else None
    parameters = next((run["parameters"] for run in runs if "parameters" in run), None)
    minutes = fmean(sum(run["seconds"].values()) for run in runs) / 60 if runs else None
    return {
        "task": (None, column.short),
        MEAN: (summary.mean, mean_sd(summary) or "missing"),
        INTERVAL: (summary.interval and summary.interval[0], interval(summary.interval)),
        "to the reference": _to_the_reference(row),
        CAVEATS: (None, " ".join(badge.code for badge in row.badges)),
        "best": (summary.best, decimals(summary.best)),
        "seeds": (summary.done, count(summary)),
        "published": (summary.published_best, decimals(summary.published_best)),
        "mean − published": (summary.mean_minus_published, signed(summary.mean_minus_published)),
        "window, block or rank": (None, FULL_PATTERN if row.full_pattern else row.sizes),
        "best baseline": (strongest, decimals(strongest)),
        "parameters": (parameters, whole(parameters)),
        "minutes a run": (minutes, "" if minutes is None else f"{minutes:.1f}"),
        "protocol": (None, f"{key.protocol}, {key.selection}"),
    }


def _to_the_reference(row: TableRow) -> tuple[float | None, str]:
    if row.verdict is None:
        return None, "reference"
    return row.verdict.estimate, f"{signed(row.verdict.estimate)} {row.verdict.word}".strip()


def table(column: Column, said: Sequence[Badge] = ()) -> Grid:
    """Table 1 of one task: everything about every cell, but for caveats that are `said` elsewhere."""
    compared = ["published", "mean − published"] if column.source else []
    header = ["system", "complexity", "best", MEAN, INTERVAL, "seeds", *compared, CAVEATS]
    rows: list[Line] = [
        [baseline(name), *(decimals(value) if heading == MEAN else "" for heading in header[1:])]
        for name, value in sorted(column.baselines.items())
    ]
    for row in column.rows:
        texts: dict[str, TableText | str] = {name: text for name, (_, text) in facts(column, row).items()}
        texts |= {"system": row.label, "complexity": row.complexity, "best": texts["best"] or "missing"}
        texts[MEAN] = TableText(mean_sd(row.summary) or "missing", bold=row.name == column.bold)
        texts[CAVEATS] = ", ".join(badge.label for badge in row.badges if badge not in said)
        rows.append([texts[heading] for heading in header])
    other = {
        "best": "best perplexity" if column.metric == "perplexity" else "best",
        "mean − published": "mean - published",
    }
    return Grid([other.get(heading, heading) for heading in header], rows, 2, len(column.baselines))


def every_seed(column: Column) -> Grid:
    """Each seed's number with a link to its record, or why there is none."""
    seeds = sorted({seed for row in column.rows for seed in row.cell.seeds()})
    rows = [[row.name, *(_seed(row, seed) for seed in seeds)] for row in column.rows]
    return Grid(["system", *(f"seed {seed}" for seed in seeds)], rows)


def _seed(row: TableRow, seed: int) -> TableText:
    cell = row.cell
    link = record_address(cell.runs[seed]) if seed in cell.runs else None
    if seed not in cell.seeds():
        return TableText("")
    if seed not in row.scores:
        return TableText(cell.status(seed), link=link)
    return TableText(" ".join([decimals(row.scores[seed]), *row.flags[seed]]), link=link)


def address(path: str) -> str:
    """The address of a file, by its path below the page that links to it."""
    return quote(os.fsencode(path), safe="/=,+@~!$&*;")  # no colon: before it stood a scheme, as in javascript:


def record_address(run: Record) -> str:
    """The address of a record: of its file, or of where index.html shows it if it is packed."""
    return f"{PAGE}#{address(anchor(run))}" if run["packed"] else address(run["path"])


def spread(column: Column) -> Grid:
    """What the seeds of each system say about each other."""
    columns: dict[str, Callable[[TableRow], str]] = {
        "system": lambda row: row.name,
        "lowest": lambda row: decimals(row.summary.minimum),
        "highest": lambda row: decimals(row.summary.maximum),
        "best - mean": lambda row: decimals(row.summary.gain_of_best),
        "expected": lambda row: decimals(row.summary.expected_gain),
        NEEDED: lambda row: whole(row.summary.seeds_needed),
    }
    return grid(columns, column.rows)


def differences(column: Column) -> Grid:
    """The row with the best mean beside every other, over the seeds that both have."""
    columns: dict[str, Callable[[Comparison], TableText | str]] = {
        f"{column.leader.name} minus": lambda pair: baseline(pair.other) if pair.is_baseline else pair.other,
        "difference": lambda pair: signed(pair.difference.mean),
        INTERVAL: lambda pair: interval(pair.difference.interval),
        "p": lambda pair: short_p(pair.difference.p),
        "seeds": lambda pair: str(pair.difference.seeds),
        NEEDED: lambda pair: "" if pair.is_baseline else whole(pair.seeds_needed),
    }
    if any(pair.discordant for pair in column.against):
        columns["McNemar"] = _mcnemar
    return grid(columns, column.against)


def _mcnemar(comparison: Comparison) -> str:
    """In how many seeds the test predictions differ, after Holm's correction over the seeds."""
    tests = comparison.discordant.values()
    if not tests:
        return ""
    clear = sum(p < inference.ALPHA for p in inference.holm([test.p for test in tests]))
    return f"{clear}/{len(tests)}"


def verdicts(column: Column) -> Grid:
    """Every row beside its reference."""

    def difference(row: TableRow) -> str:
        apart = row.verdict.of_means
        return signed(row.verdict.estimate) + ("" if apart is None else f" (means: {apart:+.2f})")

    columns: dict[str, Callable[[TableRow], str]] = {
        "system": lambda row: row.name,
        "minus": lambda row: row.verdict.reference,
        "difference": difference,
        "95 %, seeds": lambda row: interval(row.verdict.interval),
        "95 %, seeds and examples": lambda row: interval(row.verdict.crossed),
        "p": lambda row: short_p(row.verdict.p),
        "p (Holm)": lambda row: short_p(row.verdict.holm),
        "p (equivalent)": lambda row: short_p(row.verdict.equivalence),
        "seeds": lambda row: str(row.verdict.seeds),
        "verdict": lambda row: ": ".join(filter(None, [row.verdict.word, row.verdict.reason])),
        "seeds to decide": lambda row: whole(row.verdict.needed),
    }
    return grid(columns, (row for row in column.rows if row.verdict is not None), numbers=2)


def race(column: Column) -> Grid:
    """Who reached the goal of a task, and when: medians over the seeds, seconds over those that solved it, and the
    log-rank test against the reference."""
    p, holm = ({row: getattr(test, name) for row, test in column.race_tests.items()} for name in ("p", "holm"))
    columns: dict[str, Callable[[TableRow], str]] = {
        "system": lambda row: row.name,
        "verdict": lambda row: row.race.word,
        "solved": lambda row: f"{len(row.race.solved)}/{len(row.race.steps)}",
        "median steps": lambda row: whole(row.race.median),
        "to 50 %": lambda row: whole(row.reached(50)),
        "to 90 %": lambda row: whole(row.reached(90)),
        "to 99 %": lambda row: whole(row.reached(99)),
        "seconds": lambda row: f"{median(row.race.seconds.values()):.0f}" if row.race.seconds else "",
        "p (log-rank)": lambda row: short_p(p.get(row.name)),
        "p (Holm)": lambda row: short_p(holm.get(row.name)),
    }
    return grid(columns, (row for row in column.rows if row.race), numbers=2)


def steps(column: Column) -> Grid | None:
    """Steps until a run validates as well as the Transformer from scratch with its seed: as at its end / at its best.

    In the Transformer's own row what that was stands beside. None where no such row was measured.
    """
    name, lower = f"val_{column.metric}", column.metric == "perplexity"
    seeds = sorted({seed for row in column.rows for seed in row.curves})
    rows = []
    for row in column.rows:
        vanilla = column.vanilla(row)
        line = {}
        for seed in seeds if vanilla else ():
            curves = [other.curves.get(seed, {}) for other in (row, vanilla)]
            if not all(name in curve for curve in curves):
                continue
            values = [value for value in curves[1][name] if value is not None]
            targets = values[-1], (min if lower else max)(values)
            reached = [records.reached(curves[0], name, target, lower=lower) or "never" for target in targets]
            shown = [f" ({target:.2f})" if row is vanilla else "" for target in targets]
            line[seed] = " / ".join(f"{step}{text}" for step, text in zip(reached, shown, strict=True))
        if line:
            rows.append([row.name, *(line.get(seed, "") for seed in seeds)])
    return Grid(["system", *(f"seed {seed}" for seed in seeds)], rows) if len(rows) > 1 else None


# What pretraining reached: how well models predicted hidden or next tokens of training inputs that were held out.


MEASURES = ("loss", "perplexity", "accuracy")


def pretraining_table(column: Column) -> Grid | None:
    """A line for each row that was pretrained, mean ± sd over its seeds; None where there is none."""
    rows = [row for row in column.rows if pretrained_to(row, "loss")]
    lines = [[row.name, *(_mean_sd(pretrained_to(row, measure)) for measure in MEASURES)] for row in rows]
    return Grid(["system", *MEASURES], lines) if lines else None


def pretrained_to(row: TableRow, measure: str) -> list[float]:
    """Where the weights were taken, by seed; of the finished runs that have it."""
    phases = [run.get("pretrain", {}) for run in row.finished]
    best = [phase.get("validation", {}).get("best", {}) for phase in phases]
    return [scores[measure] for scores in best if scores.get(measure) is not None]


def _mean_sd(values: list[float]) -> str:
    if not values:
        return ""
    return f"{fmean(values):.4g}" + (f" ± {stdev(values):.2g}" if len(values) > 1 else "")


# The tables that set systems beside each other: the matrix of all tasks, depths, the field.


def matrix(columns: Sequence[Column], most: int | None = None) -> Grid:
    """One row a system, one column a task; the caveats that a whole column shares stand in its heading.

    `most`: so many systems at most."""
    names = sorted({name for column in columns for name in column.baselines})
    lines = [[baseline(name), "", *(decimals(column.baselines.get(name)) for column in columns)] for name in names]
    return _matrix(columns, lines, [*by_system(columns)][:most])


def excerpt(columns: Sequence[Column], orders: Sequence[tuple]) -> Grid:
    """A `matrix` of some systems by their places in tables, below the strongest baseline of each task."""
    values = [decimals(column.strongest and column.strongest[1]) for column in columns]
    return _matrix(columns, [[TableText("strongest trivial baseline", italic=True), "", *values]], orders)


def _matrix(columns: Sequence[Column], baselines: Sequence[Line], orders: Sequence[tuple]) -> Grid:
    systems = by_system(columns)
    rows: list[Line] = []
    for order in orders:
        cells = [(column.by_order.get(order), column) for column in columns]
        shown = [_short(row, column, column.shared) if row else "" for row, column in cells]
        _, first = systems[order][0]
        rows.append([first.name, first.complexity, *shown])
    header = ["system", "complexity", *(with_caveats(column, column.name) for column in columns)]
    return Grid(header, [*baselines, *rows], 2, len(baselines))


def overview(section: Section) -> Grid:
    """Table 1 in the paper's shape."""
    names = [with_caveats(column, column.short) for column in section.columns]
    table = matrix(section.columns)
    return replace(table, header=[*table.header[:2], *names])


def tasks(columns: Sequence[Column], most: int | None = None) -> str:
    """The full name of each task that has a shorter one; `most`: of so many at most."""
    named = dict.fromkeys((column.short, column.title) for column in columns if column.short != column.title)
    return "; ".join(f"{short}: {title}" for short, title in list(named)[:most]) + "." * bool(named)


def notes(columns: Sequence[Column]) -> str:
    """What the tables of these tasks do not say of their data."""
    return " ".join(filter(None, [_repeated(columns), _trained_anew(columns)]))


def _trained_anew(columns: Sequence[Column]) -> str:
    """A note on baselines that have another value on another machine, as networks have."""
    said = []
    for column in columns:
        for name, best in column.baselines.items():
            lowest = min(run.get("baselines", {}).get(name, best) for run in column.runs)
            if lowest < best:
                said.append(f"{name} of {column.short}: {decimals(lowest)} to {decimals(best)}")
    return f"A baseline was trained on each machine, and the best counts: {'; '.join(said)}." if said else ""


def _repeated(columns: Sequence[Column]) -> str:
    """How many test examples are in the training set, too: of each task whose records say so, if it is any."""
    shares = {
        column.short: f"{share:.1f} % of the test examples of {column.short} are in the training set, too"
        for column in columns
        for run in column.runs
        if (share := run.get("test_in_train") or 0) >= 0.05
    }
    return "; ".join(shares.values()) + "." * bool(shares)


def with_caveats(column: Column, name: str) -> str:
    """What a column is called, with the caveats that all its rows share."""
    codes = " ".join(badge.code for badge in column.shared)
    return name + " (perplexity)" * (column.metric == "perplexity") + f" [{codes}]" * bool(codes)


def _short(row: TableRow, column: Column, shared: Sequence[Badge] = ()) -> TableText:
    """Mean, seeds, the sign of the verdict, and the caveats that are not `shared`. In a race, seeds of several kinds
    have no mean: no seed is near it."""
    seeds = count(row.summary)
    told = row.race is not None and not row.summary.problems  # by the seeds that reached the goal
    mean = "" if told and _groups(row) else mean_sd(row.summary) + ("" if told else f" ({seeds})")
    score = "; ".join(filter(None, [seeds_of(row), mean])) if row.summary.done else seeds
    mark = sign(row, column)
    codes = " ".join(badge.code for badge in row.badges if badge not in shared)
    full = f" {FULL_PATTERN}" if row.full_pattern else ""
    text = score + f" {mark}" * bool(mark) + f" [{codes}]" * bool(codes) + full
    return TableText(text, bold=row.name == column.bold)


def sign(row: TableRow, column: Column) -> str:
    """The sign of a row's verdict. Where both the row and its reference reached the goal, their accuracies are those at
    which a training ends, so the log-rank test has the word."""
    if row.verdict is None:
        return ""
    if not both_reached(row, column):
        return SIGNS.get(row.verdict.word, "")
    test = column.race_tests.get(row.name)
    word = test.word if test else Word.UNDECIDED
    return SIGNS.get(word, word)


def sign_in_full(row: TableRow, column: Column) -> str:
    """What a sign rests on."""
    verdict = row.verdict
    if both_reached(row, column):
        test = column.race_tests.get(row.name)
        p = f", {p_text(test.holm)} (Holm)" if test else ""
        return f"steps to the goal beside those of {verdict.reference}: log-rank test{p}"
    return f"{verdict.word}: {signed(verdict.estimate)} {interval(verdict.interval)} to {verdict.reference}"


def both_reached(row: TableRow, column: Column) -> bool:
    """Whether some seed of a row and some seed of its reference reached the goal."""
    rows = [other for other in column.rows if other.name == row.verdict.reference]
    return all(system.race is not None and system.race.solved for system in (row, *rows)) and bool(rows)


def seeds_of(row: TableRow) -> str:
    """What a mean does not say: of a race who reached the goal, and the median steps; groups of seeds, if any."""
    parts = [_groups(row)]
    if row.race is not None:
        steps = row.race.median
        solved = f"{len(row.race.solved)}/{len(row.race.steps)}"
        parts.insert(0, solved if steps is None else f"{solved} in {steps:,} steps")
    return "; ".join(filter(None, parts))


def _groups(row: TableRow) -> str:
    return grouped(row.scores) if row.cell.metric == "accuracy" else ""


def legend(columns: Sequence[Column]) -> str:
    """What the signs and codes of these columns mean, those that stand there."""
    words = {row.verdict.word for column in columns for row in column.rows if row.verdict}
    signs = [f"`{sign}` {word}" for word, sign in SIGNS.items() if word in words]
    kinds = {badge.code[0] for column in columns for row in column.rows for badge in row.badges}
    codes = [f"`{kind}` {name} ({meaning})" for kind, (name, meaning) in KINDS.items() if kind in kinds]
    apart = [f"`n at ..., n at ...` seeds of several kinds (between them lie {GAP:g} points or more)"]
    bimodal = any(_groups(row) for column in columns for row in column.rows)
    raced = [
        "`n/n in ... steps` seeds that reached the goal, and the median; where both rows did, the sign is that of the "
        "log-rank test on their steps (`quicker`, `slower`, `?`)"
    ]
    return "; ".join(signs + codes + apart * bimodal + raced * any(column.goal is not None for column in columns))


def caveats(column: Column) -> str:
    """The caveats of a column in words, as its table has them."""
    some: dict[str, list[str]] = {}
    for row in column.rows:
        for badge in row.badges:
            if badge not in column.shared:
                some.setdefault(badge.label, []).append(row.name)
    parts = [shared(column)] + [f"{label}: {', '.join(names)}." for label, names in some.items()]
    return " ".join(filter(None, parts))


def shared(column: Column) -> str:
    """Those of every row, in a sentence."""
    return f"Every row: {', '.join(badge.label for badge in column.shared)}." if column.shared else ""


def by_depth(column: Column) -> Grid:
    """Table 2: a row for each number of blocks, a column for each system, published numbers beside ours."""
    names = list(column.by_depth)
    compared = names if column.source else []
    rows = []
    for depth in sorted({depth for rows in column.by_depth.values() for depth in rows}):
        systems = {name: row for name in names if (row := column.by_depth[name].get(depth))}
        ours = [_short(systems[name], column) if name in systems else "" for name in names]
        theirs = [decimals(systems[name].summary.published_best) if name in systems else "" for name in compared]
        rows.append([str(depth), *ours, *theirs])
    return Grid(["blocks", *names, *(f"{name}, published" for name in compared)], rows)


def field(columns: list[Column], published: Published) -> Grid:
    """Our means under each protocol and rule beside all published numbers for one task."""
    task = columns[0].task
    sources = [source for source in published.sources if source.covers(task)]
    listed = list(published.systems(task))
    others = [row.name for [(_, row), *_] in by_system(columns).values() if row.name not in listed]
    rows = []
    for name in [*listed, *others]:
        ours = [next((_short(row, column) for row in column.rows if row.name == name), "") for column in columns]
        rows.append([name, *ours, *(_number(source, name, task) for source in sources)])
    header = [f"ours: {column.key[0]}, {column.key[1]}" for column in columns]
    return Grid(["system", *header, *(source.name for source in sources)], rows)


def _number(source: PublishedTable, name: str, task: str) -> str:
    best, mean = source.number(name, task), source.number(name, task, "mean")
    return decimals(best) + ("" if mean is None else f" (mean {mean:.2f})")


def across_table(systems: Sequence[Across]) -> Grid:
    """A row for each system, the best mean rank first."""
    measures = ("normalised score", "mean rank", "better than reference")
    rows = []
    for across in sorted(systems, key=lambda across: across.rank[0]):
        line = [across.system]
        for measure, form in ((across.score, ".3f"), (across.rank, ".1f"), (across.better, ".2f")):
            line += ["", ""] if measure is None else [format(measure[0], form), interval(measure[1])]
        rows.append(line)
    return Grid(["system", *(text for measure in measures for text in (measure, "interval"))], rows)


# Long Range Arena as papers print it: its tasks side by side, and their average, under one protocol.
#
# First what needs no long range: the best trivial guess of each task, and systems that read neighbours alone.


def arena(section: Section, published: Published) -> Grid | None:
    """Our means under this protocol, then the published numbers that were obtained under it; None where there are none.
    Only columns of the published data count."""
    sources = [source for source in published.sources if source.protocol == section.protocol]
    columns = {column.task: column for column in section.columns if column.task in published.arena}
    if not sources or not columns:
        return None
    local, others = [], []
    for cells in by_system(columns.values()).values():
        row, means = cells[0][1], {column.task: each.summary.mean for column, each in cells}
        if any(mean is not None for mean in means.values()):
            is_local = published.is_local(row.cell.key)
            name = f"{row.name}: no long range" if is_local else row.name
            line = _averaged(name, "here", [means.get(task) for task in published.arena], italic=is_local)
            (local if is_local else others).append(line)
    strongest = {task: column.strongest[1] for task, column in columns.items() if column.strongest}
    trivial = [strongest.get(task) for task in published.arena]
    theirs = [
        _averaged(name, source.name, [source.number(name, task) for task in published.arena])
        for source in sources
        for name, numbers in source.best.items()
        if numbers.keys() & set(published.arena)
    ]
    first = [_averaged("best trivial guess", "here", trivial, italic=True), *local]
    header = ["system", "whose", *map(published.title, published.arena), "average"]
    return Grid(header, [*first, *others, *theirs], 2, len(first))


def _averaged(name: str, whose: str, numbers: Sequence[float | None], italic: bool = False) -> Line:
    """With the average of the numbers that are there, and how many these are where some are missing."""
    there = [number for number in numbers if number is not None]
    average = decimals(fmean(there)) if there else ""
    if there and len(there) < len(numbers):
        average += f" ({len(there)})"
    return [TableText(name, italic=italic), whose, *map(decimals, numbers), average]
