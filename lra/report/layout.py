"""The tables of a report as rows of text, before they become Markdown or LaTeX."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote

from lra.records.names import PAGE
from lra.report import curves, statistics
from lra.report.beside import Record, anchor
from lra.report.formats import count, decimals, interval, mean_sd, short_p, signed, whole
from lra.report.table import Column, Comparison, TableRow
from lra.report.verdicts import Badge

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
    header = ["system", "lowest", "highest", "best - mean", "expected", f"seeds to see {statistics.POINTS}"]
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
    header += [f"seeds to see {statistics.POINTS}"] + ["McNemar"] * predicted
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
    clear = sum(p < statistics.ALPHA for p in statistics.holm([test.p for test in tests]))
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
                reached = [curves.reached(row.curves[seed], name, target, lower=lower) for target in targets]
                shown = [f" ({target:.2f})" if row is vanilla else "" for target in targets]
                line[seed] = " / ".join(f"{step or 'never'}{text}" for step, text in zip(reached, shown, strict=True))
            rows.append(texts(row.name, *(line.get(seed, "") for seed in seeds)))
    return Grid(["system", *(f"seed {seed}" for seed in seeds)], rows) if len(rows) > 1 else None


def texts(*shown: str) -> list[TableText]:
    return [TableText(text) for text in shown]
