"""The tables of a report as rows of text, before they become Markdown, LaTeX or HTML, and what stands below
a figure."""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median, stdev
from urllib.parse import quote

import numpy as np

from lra.records.names import PAGE
from lra.report.read import records
from lra.report.read.published import Published, PublishedTable
from lra.report.read.records import PROBES, Record, anchor
from lra.report.statistics import inference
from lra.report.statistics.comparison import KINDS, race_tests
from lra.report.statistics.formats import count, decimals, interval, mean_sd, short_p, signed, whole
from lra.report.statistics.inference import LEVEL
from lra.report.statistics.race import GAP, grouped
from lra.report.statistics.table import FULL_PATTERN, SIGNS, Badge, Column, Comparison, Section, TableRow

CAVEATS = "caveats"  # a column of words


@dataclass(frozen=True)
class TableText:
    """What stands in one place of a table. `link`: an address."""

    text: str
    bold: bool = False
    italic: bool = False
    link: str | None = None


@dataclass(frozen=True)
class Grid:
    """A table: columns from `numbers` on are aligned to the right, but for caveats; the first rows are `baselines`."""

    header: list[str]
    rows: list[list[TableText]]
    numbers: int = 1
    baselines: int = 0

    @property
    def sides(self) -> list[str]:
        """Where the text of each column stands, `l` or `r`."""
        return ["l" if place < self.numbers or name == CAVEATS else "r" for place, name in enumerate(self.header)]


def table(column: Column, said: Sequence[Badge] = ()) -> Grid:
    """Table 1 of one task: everything about every cell, but for caveats that are `said` elsewhere."""
    compared = column.source is not None
    best = "best perplexity" if column.metric == "perplexity" else "best"
    header = ["system", "complexity", best, "mean ± sd", "95 % interval", "seeds"]
    header += ["published", "mean - published"] * compared + [CAVEATS]
    rows = [
        [
            TableText(f"baseline: {name}", italic=True),
            *texts("", "", decimals(value), "", ""),
            *texts("", "") * compared,
            TableText(""),
        ]
        for name, value in sorted(column.baselines.items())
    ]
    for row in column.rows:
        summary = row.summary
        line = texts(row.label, row.complexity, decimals(summary.best) or "missing")
        line.append(TableText(mean_sd(summary) or "missing", bold=row.name == column.bold))
        line += texts(interval(summary.interval), count(summary))
        line += texts(decimals(summary.published_best), signed(summary.mean_minus_published)) * compared
        line.append(TableText(", ".join(badge.label for badge in row.badges if badge not in said)))
        rows.append(line)
    return Grid(header, rows, numbers=2, baselines=len(column.baselines))


def every_seed(column: Column) -> Grid:
    """Each seed's number with a link to its record, or why there is none."""
    seeds = sorted({seed for row in column.rows for seed in row.cell.seeds()})
    rows = [[TableText(row.name), *(_seed(row, seed) for seed in seeds)] for row in column.rows]
    return Grid(["system", *(f"seed {seed}" for seed in seeds)], rows)


def _seed(row: TableRow, seed: int) -> TableText:
    cell = row.cell
    link = record_address(cell.runs[seed]) if seed in cell.runs else None
    if seed not in cell.seeds():
        return TableText("")
    if seed not in cell.scores():
        return TableText(cell.status(seed), link=link)
    return TableText(" ".join([decimals(cell.scores()[seed]), *row.flags[seed]]), link=link)


def address(path: str) -> str:
    """Of a file, by its path below the page that links to it."""
    return quote(os.fsencode(path), safe="/=,+@~!$&*;")  # no colon: before it stood a scheme, as in javascript:


def record_address(run: Record) -> str:
    """Of a record: of its file, or of where index.html shows it if it is packed."""
    return f"{PAGE}#{address(anchor(run))}" if run["packed"] else address(run["path"])


def spread(column: Column) -> Grid:
    """What the seeds of each system say about each other."""
    header = ["system", "lowest", "highest", "best - mean", "expected", f"seeds to see {inference.POINTS}"]
    rows = []
    for row in column.rows:
        summary = row.summary
        sizes = [summary.minimum, summary.maximum, summary.gain_of_best, summary.expected_gain]
        rows.append(texts(row.name, *map(decimals, sizes), whole(summary.seeds_needed)))
    return Grid(header, rows)


def differences(column: Column) -> Grid:
    """The row with the best mean beside every other, over the seeds that both have."""
    predicted = any(comparison.discordant for comparison in column.against)
    header = [f"{column.leader.name} minus", "difference", "95 % interval", "p", "seeds"]
    header += [f"seeds to see {inference.POINTS}"] + ["McNemar"] * predicted
    rows = []
    for comparison in column.against:
        difference = comparison.difference
        line = [
            TableText(f"baseline: {comparison.other}", italic=True)
            if comparison.is_baseline
            else TableText(comparison.other)
        ]
        line += texts(
            signed(difference.mean), interval(difference.interval), short_p(difference.p), str(difference.seeds)
        )
        line += (
            texts("" if comparison.is_baseline else whole(comparison.seeds_needed))
            + texts(_mcnemar(comparison)) * predicted
        )
        rows.append(line)
    return Grid(header, rows)


def _mcnemar(comparison: Comparison) -> str:
    """In how many seeds the test predictions differ, after Holm's correction over the seeds."""
    tests = comparison.discordant.values()
    if not tests:
        return ""
    clear = sum(p < inference.ALPHA for p in inference.holm([test.p for test in tests]))
    return f"{clear}/{len(tests)}"


def steps(column: Column) -> Grid | None:
    """Steps until a run validates as well as the Transformer from scratch with its seed: as at its end / at its best.

    In the Transformer's own row what that was stands beside. None where no such row was measured.
    """
    name, lower = f"val_{column.metric}", column.metric == "perplexity"
    seeds = sorted({seed for row in column.rows for seed in row.curves})
    rows = []
    for row in column.rows:
        vanilla = column.vanilla(row)
        shared = [
            seed for seed in seeds if vanilla and all(name in other.curves.get(seed, {}) for other in (row, vanilla))
        ]
        if shared:
            line = {}
            for seed in shared:
                known = [value for value in vanilla.curves[seed][name] if value is not None]
                targets = known[-1], (min if lower else max)(known)
                reached = [records.reached(row.curves[seed], name, target, lower=lower) for target in targets]
                shown = [f" ({target:.2f})" if row is vanilla else "" for target in targets]
                line[seed] = " / ".join(f"{step or 'never'}{text}" for step, text in zip(reached, shown, strict=True))
            rows.append(texts(row.name, *(line.get(seed, "") for seed in seeds)))
    return Grid(["system", *(f"seed {seed}" for seed in seeds)], rows) if len(rows) > 1 else None


def race(column: Column) -> Grid:
    """Who reached the goal of a task, and when: medians over the seeds, seconds over those that solved it, and the
    log-rank test against the reference."""
    header = ["system", "verdict", "solved", "median steps", "to 50 %", "to 90 %", "to 99 %", "seconds"]
    tests = {test.row.order: test for test in race_tests(column.rows)}
    rows = []
    for row in (row for row in column.rows if row.race):
        known, test = row.race, tests.get(row.order)
        seconds = f"{median(known.seconds.values()):.0f}" if known.seconds else ""
        times = [known.median, *(row.reached(percent) for percent in (50, 90, 99))]
        line = [row.name, known.word, f"{len(known.solved)}/{len(known.steps)}", *map(whole, times), seconds]
        beside = ["", ""] if test is None else [short_p(test.p), short_p(test.holm)]
        rows.append(texts(*line, *beside))
    return Grid([*header, "p (log-rank)", "p (Holm)"], rows, numbers=2)


def texts(*shown: str) -> list[TableText]:
    return [TableText(text) for text in shown]


# The tables that set systems beside each other: the matrix of all tasks, verdicts, depths, the field.


def headings(sections: Sequence[Section]) -> list[str]:
    """What each column is called beside all others: its task in one word, with the protocol where there are several."""
    rules = {(section.protocol, section.selection) for section in sections}
    several = {protocol for protocol, _ in rules} if len(rules) > 1 else set()
    names = []
    for section in sections:
        where = f", {section.protocol}" if several else ""
        where += f", {section.selection}" if len(rules) > max(1, len(several)) else ""
        names += [column.short + where for column in section.columns]
    return names


def matrix(columns: Sequence[Column], headings: Sequence[str], most: int | None = None) -> Grid:
    """One row a system, one column a task; the caveats that a whole column shares stand in its heading.

    `most`: so many systems at most."""
    names = sorted({name for column in columns for name in column.baselines})
    baselines = [
        [TableText(f"baseline: {name}", italic=True), TableText("")]
        + texts(*(decimals(column.baselines.get(name)) for column in columns))
        for name in names
    ]
    orders = sorted({row.order for column in columns for row in column.rows})[:most]
    return _matrix(columns, headings, baselines, orders)


def excerpt(columns: Sequence[Column], headings: Sequence[str], orders: Sequence[tuple]) -> Grid:
    """As `matrix`, of some systems by their places in tables, below the strongest baseline of each task."""
    values = [column.strongest[1] if column.strongest else None for column in columns]
    line = [TableText("strongest trivial baseline", italic=True), TableText(""), *texts(*map(decimals, values))]
    return _matrix(columns, headings, [line], orders)


def _matrix(
    columns: Sequence[Column], headings: Sequence[str], baselines: list[list[TableText]], orders: Sequence[tuple]
) -> Grid:
    systems = {row.order: row for column in columns for row in column.rows}
    rows = [*baselines]
    for order in orders:
        line = texts(systems[order].name, systems[order].complexity)
        for column in columns:
            row = next((row for row in column.rows if row.order == order), None)
            line.append(_short(row, column, column.shared) if row else TableText(""))
        rows.append(line)
    header = ["system", "complexity", *map(with_caveats, columns, headings)]
    return Grid(header, rows, numbers=2, baselines=len(baselines))


def overview(section: Section) -> Grid:
    """Table 1 in the paper's shape."""
    return matrix(section.columns, [column.short for column in section.columns])


def tasks(columns: Sequence[Column], most: int | None = None) -> str:
    """The full name of each task that has a shorter one; `most`: of so many at most."""
    named = dict.fromkeys((column.short, column.title) for column in columns if column.short != column.title)
    return "; ".join(f"{short}: {title}" for short, title in list(named)[:most]) + "." * bool(named)


def with_caveats(column: Column, name: str) -> str:
    """What a column is called, with the caveats that all its rows share."""
    codes = " ".join(badge.code for badge in column.shared)
    return name + " (perplexity)" * (column.metric == "perplexity") + f" [{codes}]" * bool(codes)


def _short(row: TableRow, column: Column, shared: Sequence[Badge] = ()) -> TableText:
    """Mean, seeds, the sign of the verdict, and the caveats that are not `shared`."""
    seeds = count(row.summary)
    told = row.race is not None and not row.summary.problems  # by the seeds that reached the goal
    before = f"{known}; " if (known := seeds_of(row)) else ""
    score = f"{before}{mean_sd(row.summary)}{'' if told else f' ({seeds})'}" if row.summary.done else seeds
    sign = f" {SIGNS[row.verdict.word]}" if row.verdict and row.verdict.word in SIGNS else ""
    codes = " ".join(badge.code for badge in row.badges if badge not in shared)
    mark = f" {FULL_PATTERN}" if row.full_pattern else ""
    return TableText(score + sign + f" [{codes}]" * bool(codes) + mark, bold=row.name == column.bold)


def seeds_of(row: TableRow) -> str:
    """What a mean does not say: of a race who reached the goal, and the median steps; groups of seeds, if any."""
    groups = _groups(row)
    parts = [groups] if groups else []
    if row.race is not None:
        steps = row.race.median
        solved = f"{len(row.race.solved)}/{len(row.race.steps)}"
        parts.insert(0, solved if steps is None else f"{solved} in {steps:,} steps")
    return "; ".join(parts)


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
    raced = ["`n/n in ... steps` seeds that reached the goal, and the median"]
    return "; ".join(signs + codes + apart * bimodal + raced * any(column.goal is not None for column in columns))


def verdicts(column: Column) -> Grid:
    """Every row beside its reference."""
    header = ["system", "minus", "difference", "95 %, seeds", "95 %, seeds and examples", "p", "p (Holm)"]
    header += ["p (equivalent)", "seeds", "verdict", "seeds to decide"]
    rows = []
    for row in column.rows:
        known = row.verdict
        if known is None:
            continue
        apart = "" if known.of_means is None else f" (means: {known.of_means:+.2f})"
        line = [row.name, known.reference, signed(known.estimate) + apart]
        line += [
            interval(known.interval),
            interval(known.crossed),
            short_p(known.p),
            short_p(known.holm),
            short_p(known.equivalence),
        ]
        word = f"{known.word}: {known.reason}" if known.reason else known.word
        rows.append(texts(*line, str(known.seeds), word, whole(known.needed)))
    return Grid(header, rows, numbers=2)


def by_depth(column: Column) -> Grid:
    """Table 2: a row for each number of blocks, a column for each system, published numbers beside ours."""
    compared = column.source is not None
    names = list(column.by_depth)
    header = ["blocks", *names, *(f"{name}, published" for name in names if compared)]
    rows = []
    for depth in sorted({depth for rows in column.by_depth.values() for depth in rows}):
        at_depth = [column.by_depth[name].get(depth) for name in names]
        line = [TableText(str(depth)), *(_short(row, column) if row else TableText("") for row in at_depth)]
        rows.append(line + texts(*(decimals(row and row.summary.published_best) for row in at_depth if compared)))
    return Grid(header, rows)


def field(columns: list[Column], published: Published) -> Grid:
    """Our means under each protocol and rule beside all published numbers for one task."""
    task = columns[0].task
    sources = covering(task, published)
    known = list(published.systems(task))
    others = {row.order: row.name for column in columns for row in column.rows if row.name not in known}
    rows = []
    for name in [*known, *(others[order] for order in sorted(others))]:
        ours = [
            next((_short(row, column) for row in column.rows if row.name == name), TableText("")) for column in columns
        ]
        rows.append([TableText(name), *ours, *texts(*(_number(source, name, task) for source in sources))])
    header = [f"ours: {column.key[0]}, {column.key[1]}" for column in columns]
    return Grid(["system", *header, *(source.name for source in sources)], rows)


def covering(task: str, published: Published) -> list[PublishedTable]:
    return [source for source in published.sources if source.covers(task)]


def _number(source: PublishedTable, name: str, task: str) -> str:
    best, mean = source.number(name, task), source.number(name, task, "mean")
    return decimals(best) + ("" if mean is None else f" (mean {mean:.2f})")


# Systems over several tasks: normalised score, rank, and how often one is better than the reference.
#
# After Agarwal et al. (2021): the runs of a task are drawn again with replacement, each system's own, task by task.
# With few seeds such intervals are too narrow, which the page says.


DRAWS, SEED = 2000, 7  # of the bootstrap; its draws are the same in every report
HEAD = ["system", "normalised score", "interval", "mean rank", "interval", "better than reference", "interval"]

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
    orders = [{row.order: row for row in column.rows if row.summary.done} for column in columns]
    shared = sorted(set.intersection(*map(set, orders))) if len(columns) > 1 else []
    if len(shared) < 2:
        return []
    rows = [[by_order[order] for by_order in orders] for order in shared]
    scores = [[np.array(list(row.scores.values())) for row in tasks] for tasks in rows]
    rng = np.random.default_rng(SEED)
    drawn = [[runs[rng.integers(0, len(runs), (DRAWS, len(runs)))] for runs in tasks] for tasks in scores]
    found = _measures([[runs[None] for runs in tasks] for tasks in scores], columns, rows)
    again = _measures(drawn, columns, rows)
    return [
        Across(tasks[0].name, *(None if one is None else (float(one[0]), _ends(many)) for one, many in parts))
        for tasks, parts in zip(rows, (zip(*pair, strict=True) for pair in zip(found, again, strict=True)), strict=True)
    ]


def _measures(
    drawn: list[list[np.ndarray]], columns: Sequence[Column], rows: list[list[TableRow]]
) -> list[tuple[np.ndarray, np.ndarray, np.ndarray | None]]:
    """Score, rank and probability [draws] of each system, from runs [draws, seeds] of systems and tasks."""
    means = np.stack([[runs.mean(axis=1) for runs in tasks] for tasks in drawn])  # [systems, tasks, draws]
    base = np.array([max(column.baselines.values()) for column in columns])[:, None]
    score = ((means - base) / (100 - base)).mean(axis=1)
    above = (means[None] > means[:, None]).sum(axis=1)
    ties = (means[None] == means[:, None]).sum(axis=1) - 1
    rank = (1 + above + ties / 2).mean(axis=1)
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


def _ends(values: np.ndarray) -> Ends:
    low, high = np.quantile(values, ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
    return float(low), float(high)


def across_table(found: Sequence[Across]) -> Grid:
    """A row for each system, the best mean rank first."""
    rows = []
    for known in sorted(found, key=lambda known: known.rank[0]):
        better = ("", "") if known.better is None else (f"{known.better[0]:.2f}", interval(known.better[1]))
        numbers = [f"{known.score[0]:.3f}", interval(known.score[1]), f"{known.rank[0]:.1f}", interval(known.rank[1])]
        rows.append(texts(known.system, *numbers, *better))
    return Grid(HEAD, rows)


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
    for rows in _by_system(columns).values():
        first = next(iter(rows.values()))
        numbers = [rows[task].summary.mean if task in rows else None for task in published.arena]
        is_local = published.is_local(first.cell.key)
        line = _line(f"{first.name}: no long range" if is_local else first.name, "here", numbers, italic=is_local)
        (local if is_local else others).append(line)
    trivial = [
        max(columns[task].baselines.values(), default=None) if task in columns else None for task in published.arena
    ]
    theirs = [
        _line(name, source.name, [source.number(name, task) for task in published.arena])
        for source in sources
        for name in source.best
        if any(source.number(name, task) is not None for task in published.arena)
    ]
    first = [_line("best trivial guess", "here", trivial, italic=True), *local]
    header = ["system", "whose", *map(published.title, published.arena), "average"]
    return Grid(header, [*first, *others, *theirs], numbers=2, baselines=len(first))


def _by_system(columns: dict[str, Column]) -> dict[tuple, dict[str, TableRow]]:
    """The rows of each system by task, in the order of tables."""
    found: dict[tuple, dict[str, TableRow]] = {}
    for task, column in columns.items():
        for row in column.rows:
            if row.summary.done:
                found.setdefault(row.order, {})[task] = row
    return dict(sorted(found.items()))


def _line(name: str, whose: str, numbers: Sequence[float | None], italic: bool = False) -> list[TableText]:
    """With the average of the numbers that are there, and how many these are where some are missing."""
    there = [number for number in numbers if number is not None]
    average = decimals(fmean(there)) if there else ""
    if there and len(there) < len(numbers):
        average += f" ({len(there)})"
    return [TableText(name, italic=italic), *texts(whose, *map(decimals, numbers), average)]


# What pretraining reached: how well models predicted hidden or next tokens of training inputs that were held out.


MEASURES = ("loss", "perplexity", "accuracy")


def reached(row: TableRow, measure: str) -> list[float]:
    """Where the weights were taken, by seed; of the finished runs that have it."""
    phases = [row.cell.runs[seed].get("pretrain", {}) for seed in sorted(row.scores)]
    best = [phase.get("validation", {}).get("best", {}) for phase in phases]
    return [known[measure] for known in best if known.get(measure) is not None]


def mean_reached(row: TableRow, measure: str) -> list[float]:
    """The mean over its seeds; nothing where none has it."""
    values = reached(row, measure)
    return [fmean(values)] if values else []


def pretraining_table(column: Column) -> Grid | None:
    """A line for each row that was pretrained, mean ± sd over its seeds; None where there is none."""
    rows = [row for row in column.rows if reached(row, "loss")]
    if not rows:
        return None
    lines = [[row.name, *(_mean_sd(reached(row, measure)) for measure in MEASURES)] for row in rows]
    return Grid(["system", *MEASURES], [texts(*line) for line in lines])


def _mean_sd(values: list[float]) -> str:
    if not values:
        return ""
    return f"{fmean(values):.4g}" + (f" ± {stdev(values):.2g}" if len(values) > 1 else "")


# What stands below a figure: what it shows, of which task, and the caveats of the systems in it.


SHOWS = {
    "forest": "differences to the reference",
    "seeds": "every seed",
    "cost": "score and cost",
    "curves": "learning curves",
    "depth": "accuracy and number of blocks",
    "diagnostics": "accuracy by kind of example",
    "calibration": "confidence and accuracy",
    **{probe: f"{what} in each block" for probe, what in PROBES.items()},
    "blocks": "all measurements in the blocks",
    "batches": "cost of every batch",
    "batches_each": "cost of every batch, by system",
    "difficulty": "accuracy and difficulty",
}
"""By the name of a drawing."""


@dataclass(frozen=True)
class Caption:
    """`title`: the task and what is shown; `caveats`: those of all its systems, then those of some."""

    title: str
    caveats: str = ""


def stem(drawing: str, heading: str) -> str:
    """The name of the file of a figure."""
    return re.sub(r"[^\w-]+", "_", f"{drawing} {heading}")


def captions(sections: Sequence[Section], paths: Sequence[Path]) -> dict[Path, Caption]:
    """The captions of these figures."""
    columns = [column for section in sections for column in section.columns]
    known = {
        stem(drawing, heading): Caption(f"{heading}: {shows}", caveats(column))
        for heading, column in zip(headings(sections), columns, strict=True)
        for drawing, shows in SHOWS.items()
    }
    return {path: known.get(path.stem, Caption(path.stem.replace("_", " "))) for path in paths}


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
