"""What a page says in a cell: verdicts as kinds, numbers as dots with their intervals."""

from collections.abc import Sequence
from dataclasses import dataclass

from lra.report.statistics import formats
from lra.report.statistics.table import Column, TableRow

WIDTH, HEIGHT, EDGE = 118, 14, 5  # pixels
SPREAD = 2.5  # standard deviations of a row that its column's axis shows


@dataclass(frozen=True)
class Dot:
    """Where a mean, its seeds, its interval and the strongest baseline stand in a small picture, in pixels."""

    said: str
    mean: str
    seeds: list[str]
    ends: tuple[str, str] | None
    tick: str | None
    width: int = WIDTH
    height: int = HEIGHT
    middle: float = HEIGHT / 2


def dot_of(column: Column, row: TableRow, beside: Sequence[Column]) -> Dot:
    """Of a row that has a mean; on one axis with the columns `beside` its own."""
    ends_of_axes = [axis(other) for other in (column, *beside)]
    low, high = min(low for low, _ in ends_of_axes), max(high for _, high in ends_of_axes)

    def x(value: float) -> str:
        share = (min(max(value, low), high) - low) / (high - low)
        return f"{EDGE + share * (WIDTH - 2 * EDGE):.1f}"

    mean, ends = row.summary.mean, row.summary.interval
    trivial = column.strongest[1] if column.strongest else None
    return Dot(
        said=", ".join(filter(None, [f"{mean:.2f}", formats.interval(ends)])),
        mean=x(mean),
        seeds=[x(score) for score in row.scores.values()] if row.summary.done > 1 else [],
        ends=None if ends is None else (x(ends[0]), x(ends[1])),
        tick=None if trivial is None else x(trivial),
    )


def axis(column: Column) -> tuple[float, float]:
    """From the lowest to the highest of what the column has: means with their spread, and the strongest baseline."""
    known = [row.summary for row in column.rows if row.summary.mean is not None]
    ends = [known_row.mean + side * (known_row.sd or 0.0) for known_row in known for side in (-SPREAD, SPREAD)]
    ends += [] if column.strongest is None else [column.strongest[1]]
    low, high = min(ends, default=0.0), max(ends, default=1.0)
    return (low, high) if low < high else (low - 1.0, high + 1.0)


def kinds(row: TableRow) -> str:
    """What a cell is, for its look: its verdict, and whether it lost to a trivial baseline."""
    lost = " lost" * any(mark.code == "B" for mark in row.badges)
    return (row.verdict.word if row.verdict else "reference") + lost
