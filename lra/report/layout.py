"""The tables of a report as rows of text, before they become Markdown or LaTeX."""

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote

from lra.records.names import PAGE
from lra.report import curves, statistics
from lra.report.beside import Record, anchor
from lra.report.published import Published, PublishedTable
from lra.report.table import FULL_PATTERN, Column, Comparison, Section, Summary, TableRow, p_text


@dataclass(frozen=True)
class TableText:
    """What stands in one place of a table. `link`: an address."""

    text: str
    bold: bool = False
    italic: bool = False
    link: str | None = None


@dataclass(frozen=True)
class Grid:
    """A table: columns from `numbers` on are aligned to the right; the first rows are `baselines`."""

    header: list[str]
    rows: list[list[TableText]]
    numbers: int = 1
    baselines: int = 0


def table(column: Column) -> Grid:
    """Table 1 of one task: everything about every cell."""
    compared = column.source is not None
    best = "best perplexity" if column.metric == "perplexity" else "best"
    header = ["system", "complexity", best, "mean ± sd", "95 % interval", "seeds"]
    header += ["published", "mean - published"] * compared
    rows = [
        [
            TableText(f"baseline: {name}", italic=True),
            *_texts("", "", decimals(value), "", ""),
            *_texts("", "") * compared,
        ]
        for name, value in sorted(column.baselines.items())
    ]
    for row in column.rows:
        summary = row.summary
        line = _texts(row.label, row.complexity, decimals(summary.best) or "missing")
        line.append(TableText(mean_sd(summary) or "missing", bold=row.name == column.bold))
        line += _texts(interval(summary.interval), count(summary))
        line += _texts(decimals(summary.published_best), signed(summary.mean_minus_published)) * compared
        rows.append(line)
    return Grid(header, rows, numbers=2, baselines=len(column.baselines))


def overview(section: Section) -> Grid:
    """Table 1 in the paper's shape: one row a system, one column a task."""
    header = ["system", "complexity"]
    header += [column.title + " (perplexity)" * (column.metric == "perplexity") for column in section.columns]
    names = sorted({name for column in section.columns for name in column.baselines})
    rows = [
        [TableText(f"baseline: {name}", italic=True), TableText("")]
        + _texts(*(decimals(column.baselines.get(name)) for column in section.columns))
        for name in names
    ]
    systems = {row.order: row for column in section.columns for row in column.rows}
    for order in sorted(systems):
        line = _texts(systems[order].name, systems[order].complexity)
        for column in section.columns:
            row = next((row for row in column.rows if row.order == order), None)
            line.append(_short(row, column) if row else TableText(""))
        rows.append(line)
    return Grid(header, rows, numbers=2, baselines=len(names))


def _short(row: TableRow, column: Column) -> TableText:
    score = f"{mean_sd(row.summary)} ({count(row.summary)})" if row.summary.done else count(row.summary)
    mark = f" {FULL_PATTERN}" if row.full_pattern else ""
    return TableText(score + mark, bold=row.name == column.bold)


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
    return quote(path, safe="/=,+@~!$&*;:")


def record_address(run: Record) -> str:
    """Of a record: of its file, or of where index.html shows it if it is packed."""
    return f"{PAGE}#{address(anchor(run))}" if run["packed"] else address(run["path"])


def spread(column: Column) -> Grid:
    """What the seeds of each system say about each other."""
    header = ["system", "lowest", "highest", "best - mean", "expected", f"seeds to see {statistics.POINTS}"]
    rows = []
    for row in column.rows:
        summary = row.summary
        sizes = [summary.minimum, summary.maximum, summary.gain_of_best, summary.expected_gain]
        rows.append(_texts(row.name, *map(decimals, sizes), _whole(summary.seeds_needed)))
    return Grid(header, rows)


def differences(column: Column) -> Grid:
    """The row with the best mean beside every other, paired by seed."""
    predicted = any(comparison.discordant for comparison in column.against)
    header = [f"{column.leader.name} minus", "mean ± sd", "95 % interval", "p", "p (Holm)", "seeds"]
    header += [f"seeds to see {statistics.POINTS}"] + ["McNemar"] * predicted
    rows = []
    for comparison in column.against:
        difference = comparison.difference
        sd = "" if difference.sd is None else f" ± {difference.sd:.2f}"
        line = [
            TableText(f"baseline: {comparison.other}", italic=True)
            if comparison.is_baseline
            else TableText(comparison.other)
        ]
        line += _texts(
            signed(difference.mean) + sd,
            interval(difference.interval),
            _p(difference.p),
            _p(comparison.holm),
            str(difference.seeds),
        )
        line += (
            _texts("" if comparison.is_baseline else _whole(comparison.seeds_needed))
            + _texts(_mcnemar(comparison)) * predicted
        )
        rows.append(line)
    return Grid(header, rows)


def _mcnemar(comparison: Comparison) -> str:
    """In how many seeds the test predictions differ, after Holm's correction over the seeds."""
    tests = comparison.discordant.values()
    if not tests:
        return ""
    clear = sum(p < statistics.ALPHA for p in statistics.holm([test.p for test in tests]))
    return f"{clear}/{len(tests)}"


def by_depth(column: Column) -> Grid:
    """Table 2: a row for each number of blocks, a column for each system, published numbers beside ours."""
    compared = column.source is not None
    names = list(column.by_depth)
    header = ["blocks", *names, *(f"{name}, published" for name in names if compared)]
    rows = []
    for depth in sorted({depth for rows in column.by_depth.values() for depth in rows}):
        at_depth = [column.by_depth[name].get(depth) for name in names]
        line = [TableText(str(depth)), *(_short(row, column) if row else TableText("") for row in at_depth)]
        rows.append(line + _texts(*(decimals(row and row.summary.published_best) for row in at_depth if compared)))
    return Grid(header, rows)


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
                reached = [curves.reached(row.curves[seed], name, target, lower=lower) for target in targets]
                shown = [f" ({target:.2f})" if row is vanilla else "" for target in targets]
                line[seed] = " / ".join(f"{step or 'never'}{text}" for step, text in zip(reached, shown, strict=True))
            rows.append(_texts(row.name, *(line.get(seed, "") for seed in seeds)))
    return Grid(["system", *(f"seed {seed}" for seed in seeds)], rows) if len(rows) > 1 else None


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
        rows.append([TableText(name), *ours, *_texts(*(_number(source, name, task) for source in sources))])
    header = [f"ours: {column.key[0]}, {column.key[1]}" for column in columns]
    return Grid(["system", *header, *(source.name for source in sources)], rows)


def covering(task: str, published: Published) -> list[PublishedTable]:
    return [source for source in published.sources if source.covers(task)]


def _number(source: PublishedTable, name: str, task: str) -> str:
    best, mean = source.number(name, task), source.number(name, task, "mean")
    return decimals(best) + ("" if mean is None else f" (mean {mean:.2f})")


def _texts(*texts: str) -> list[TableText]:
    return [TableText(text) for text in texts]


def plural(number: int, what: str) -> str:
    """1 run, 2 runs."""
    return f"{number} {what}{'s' * (number != 1)}"


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


def _whole(value: int | None) -> str:
    return "" if value is None else f"{value:,}"


def _p(p: float | None) -> str:
    return "" if p is None else p_text(p).removeprefix("p = ").removeprefix("p ")
