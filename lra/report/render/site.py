"""index.html over many results, for a reader with a minute: what was found, one picture, a matrix for each benchmark,
and an answer in a sentence for each study."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from lra.core.console import plural
from lra.records.names import PAGE
from lra.report.render.markup import markup, rendered
from lra.report.render.pictures import Picture, colour_number, kinds
from lra.report.statistics import words
from lra.report.statistics.columns import Tables
from lra.report.statistics.table import VANILLA, Column, TableRow

LONGEST = 4  # answers of one result that are shown
BENCHMARK = 4  # systems, without settings of their own, that make a result a benchmark; others are studies


@dataclass(frozen=True)
class Listed:
    """A results folder, or a file that somebody submitted. `address`: its page, or the file; `tables`: None where they
    cannot be made; `records`: how many verify; `faults`: why it does not verify."""

    name: str
    address: str
    tables: Tables | None
    records: int
    faults: Sequence[str]

    @property
    def columns(self) -> list[Column]:
        return self.tables.columns if self.tables else []

    @property
    def tasks(self) -> list[str]:
        return list(dict.fromkeys(column.title for column in self.columns))

    @property
    def provenance(self) -> str:
        """The commits and the hours of its runs."""
        if not self.tables:
            return ""
        return f"Commit {', '.join(self.tables.commits)}; {self.tables.hours:.1f} hours"

    def cell_address(self, row: TableRow) -> str:
        """The address of the cell on the page of a folder."""
        if not self.address.endswith(PAGE):
            return self.address
        place = next(place for place, (_, other) in enumerate(self.tables.rows) if other is row)
        return f"{self.address}#cell/{place}"


@dataclass(frozen=True)
class Number:
    """What the matrix shows of a cell. `rank`: what it is sorted by, greater is better; `kind`: its look; `said`: all
    that is known of it, in words."""

    text: str
    rank: float
    kind: str
    said: str
    address: str


@dataclass(frozen=True)
class Benchmark:
    """The systems of a result beside each other, those without settings of their own. `columns`: tasks on which they
    are told apart; `chance`: those on which nobody is."""

    entry: Listed
    columns: list[Column]
    chance: list[Column]

    @property
    def systems(self) -> list[tuple[TableRow, list[Number | None]]]:
        """A line for each system of these columns."""
        rows = {row.order: row for column in self.columns for row in plain_rows(column)}
        return [(rows[order], [self._number(column, order) for column in self.columns]) for order in sorted(rows)]

    def _number(self, column: Column, order: tuple) -> Number | None:
        row = column.by_order.get(order)
        if row is None or not row.summary.done:
            return None
        mean, race = row.summary.mean, row.race
        if race is None:
            sign = -1 if column.metric == "perplexity" else 1
            text, rank, kind = f"{mean:.1f}", sign * mean, kinds(row, word=words.firm)
        elif race.learned:
            text, rank, kind = f"{race.median:,}", 1e9 - race.median, "better"
        elif race.solved:
            text, rank, kind = race.share, 1e6 * len(race.solved) / len(race.steps), ""
        else:
            text, rank, kind = f"{mean:.0f} %", mean, "worse"
        return Number(text, rank, kind, _said(row), self.entry.cell_address(row))


def page(title: str, entries: Sequence[Listed], links: Sequence[tuple[str, str]], note: str, lead: str = "") -> str:
    """The text of the page. `links`: address and text of what lies beside; `note`: what made it, `lead`: what was
    found, both in HTML; without one the answers of the largest result stand there."""
    sound = sum(not entry.faults for entry in entries)
    records = sum(entry.records for entry in entries)
    ranked = benchmarks(entries)
    apart = {id(benchmark.entry) for benchmark in ranked}
    drawn = cost(ranked[0].columns) if ranked else None
    return rendered(
        "site.html.j2",
        title=title,
        facts=f"{plural(records, 'record')}; {sound} of {len(entries)} verified",
        lead=markup(lead),
        benchmarks=ranked,
        picture=markup(rendered("cost.svg.j2", **drawn)) if drawn else "",
        studies=[entry for entry in entries if id(entry) not in apart],
        note=markup(note),
        beside=links,
        LONGEST=LONGEST,
    )


def benchmarks(entries: Sequence[Listed]) -> list[Benchmark]:
    """The results that compare several systems: those with most races first, then those on data of published tables."""
    compared = []
    for entry in entries:
        columns = [column for column in entry.columns if len(plain_rows(column)) >= BENCHMARK]
        chance = [column for column in columns if _at_chance(column)]
        shown = [column for column in columns if not _at_chance(column)]
        if shown:
            compared.append(Benchmark(entry, shown, chance))

    def weight(benchmark: Benchmark) -> tuple[int, int]:
        races = sum(column.goal is not None for column in benchmark.columns)
        return races, sum(column.source is not None for column in benchmark.columns)

    return sorted(compared, key=weight, reverse=True)


def _at_chance(column: Column) -> bool:
    """Whether nobody was compared, for want of anything learned."""
    done = [row for row in column.rows if row.summary.done]
    return any(row.collapsed for row in done) and all(row.collapsed == row.summary.done or row.has("U") for row in done)


def _said(row: TableRow) -> str:
    """Mean, interval, verdict and caveats."""
    parts = [f"{words.mean_sd(row.summary)} over {plural(row.summary.done, 'seed')}"]
    if row.race:
        parts.append(row.race.word)
    if row.verdict and row.verdict.estimate is not None:
        verdict = row.verdict
        ends = words.interval(verdict.interval)
        estimate = words.signed(verdict.estimate)
        parts.append(f"{verdict.word}: {estimate} {ends} to {verdict.reference}".replace("  ", " "))
    return "; ".join(parts + [f"{badge.label}: {badge.meaning}" for badge in row.badges])


# The picture: what each system learns beside what a step of it costs.


WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 560, 300, 44, 96, 16, 38  # pixels
WIDE, HIGH = 6.4, 13  # of a letter of a name
TICKS = (
    *(0.25, 0.35, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.1, 1.2, 1.35, 1.5, 1.75, 2, 2.5),
    *(3, 4, 5, 6, 8, 12, 16, 24, 32, 48, 64),
)
MOST_TICKS = 8


def plain_rows(column: Column) -> list[TableRow]:
    return [row for row in column.rows if not row.cell.key.settings and row.summary.done]


@dataclass(frozen=True)
class Point:
    """A system. `time`: of its training steps, as a multiple of the reference's; `share`: of what there is to learn."""

    row: TableRow
    time: float
    share: float


def cost_points(columns: Iterable[Column]) -> list[Point]:
    """The systems that ran on every task on which the Transformer, the reference, did."""
    by_system: dict[tuple, list[Point]] = {}
    for column in columns:
        rows = [row for row in plain_rows(column) if step_seconds(row)]
        reference = next((row for row in rows if row.system == VANILLA), None)
        if reference is None or column.metric != "accuracy":
            continue
        for row in rows:
            point = Point(row, step_seconds(row) / step_seconds(reference), _share(row, column))
            by_system.setdefault(row.order, []).append(point)
    most = max(map(len, by_system.values()), default=0)
    return [
        Point(parts[0].row, median(part.time for part in parts), fmean(part.share for part in parts))
        for _, parts in sorted(by_system.items())
        if len(parts) == most
    ]


def step_seconds(row: TableRow) -> float | None:
    """The seconds of a training step, the median over its runs; None or 0 where these do not say it."""
    times = [run["seconds"]["train"] / run["steps"] for run in row.finished if "seconds" in run and run["steps"] > 0]
    return median(times) if times else None


def _share(row: TableRow, column: Column) -> float:
    """How much of the way from the strongest baseline to 100 %."""
    base = column.strongest[1] if column.strongest else 0.0
    return max(0.0, (row.summary.mean - base) / (100.0 - base)) if base < 100.0 else 0.0


def cost(columns: Iterable[Column]) -> Picture | None:
    """None where there are no two systems to place."""
    points = cost_points(columns)
    if len(points) < 2:
        return None
    low, high = min(point.time for point in points) / 1.15, max(point.time for point in points) * 1.15
    step = 0.25 if max(point.share for point in points) > 0.5 else 0.1
    top = max(step, step * math.ceil(max(point.share for point in points) / step))

    def x(time: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * math.log(time / low) / math.log(high / low)

    def y(share: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * share / top

    marks = [
        {"x": x(point.time), "y": y(point.share), "name": point.row.name, "colour": colour_number(point.row)}
        for point in points
    ]
    _place_names(marks)
    ticks = [time for time in TICKS if low <= time <= high]
    return {
        "width": WIDTH,
        "height": HEIGHT,
        "left": LEFT,
        "right": WIDTH - RIGHT,
        "bottom": HEIGHT - BOTTOM,
        "marks": marks,
        "across": [(x(time), f"{time:g}×") for time in ticks[:: 1 + len(ticks) // MOST_TICKS]],
        "up": [(y(step * part), f"{100 * step * part:.0f} %") for part in range(round(top / step) + 1)],
    }


def _place_names(marks: list[Picture]) -> None:
    """Put each name to the right of its mark or to the left, higher or lower where it would cover a mark or a name
    before it."""
    covered = [(mark["x"] - 5, mark["x"] + 5, mark["y"] + 4) for mark in marks]
    for place in sorted(range(len(marks)), key=lambda place: (marks[place]["y"], marks[place]["x"])):
        mark = marks[place]
        width = WIDE * len(mark["name"])
        right, left = mark["x"] + 8, mark["x"] - 8 - width
        others = [spot for number, spot in enumerate(covered) if number != place]
        heights = [mark["y"] + 4 + sign * away for away in range(HEIGHT) for sign in (-1, 1)]
        spots = ((start, start + width, height) for height in heights for start in (right, left))
        spot = next((spot for spot in spots if _is_free(spot, others)), (right, right + width, mark["y"] + 4))
        covered.append(spot)
        start, _, height = spot
        mark |= {"name_y": height, "name_x": right if start == right else mark["x"] - 8}
        mark["anchor"] = "start" if start == right else "end"


def _is_free(spot: tuple[float, float, float], others: Iterable[tuple[float, float, float]]) -> bool:
    start, stop, height = spot
    return not any(start < end and begin < stop and abs(height - other) < HIGH for begin, end, other in others)
