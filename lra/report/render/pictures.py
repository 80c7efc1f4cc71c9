"""Where things stand in the pictures that are templates, in pixels: the differences and the races of README.md,
and the dots of a page.

They are text like the tables, so that they are the same on every machine, and follow the reader's light or dark page.
"""

from collections.abc import Callable, Sequence
from typing import Any
from zlib import crc32

import numpy as np

from lra.report.statistics import words
from lra.report.statistics.table import Column, TableRow

Picture = dict[str, Any]
"""What a template draws."""

# A system has the same colour (of Okabe and Ito, safe for the colour-blind), dash and marker in every picture of every
# folder.


COLOURS = ("#000000", "#E69F00", "#56B4E9", "#009E73", "#0072B2", "#D55E00", "#CC79A7")


def system_number(row: TableRow) -> int:
    """The number of a system, whatever its settings: its row in Table 1, or a number that its name gives; the same in
    every folder."""
    own_name = f"{row.cell.key.attention}, {row.cell.key.variant}"  # of a system that no table lists
    return crc32(own_name.encode()) if row.base == own_name else row.order[0]


def colour_number(row: TableRow) -> int:
    """Where its colour stands in COLOURS."""
    return system_number(row) % len(COLOURS)


def scale(low: float, high: float, start: float, width: float) -> Callable[[float], str]:
    """From the values between two ends to places in a picture; what lies beyond an end stands there."""
    return lambda value: f"{start + width * (min(max(value, low), high) - low) / (high - low):.1f}"


def shortened(name: str, most: int) -> str:
    """Leave out the middle of a longer name."""
    return name if len(name) <= most else f"{name[: most // 2]} … {name[-most // 2 :]}"


# The pictures of README.md, a panel for each task.


LINE, HEAD, FOOT = 17, 34, 34  # pixels: of a row, above and below them
LETTER = 6.1  # of a name
LONGEST = 40  # letters of a name
PANEL, GAP = 150, 18


def verdicts(columns: Sequence[Column], most: int) -> Picture | None:
    """The differences to the reference as dots with their intervals; None where nothing was tested. `most`: so many
    systems at most."""
    shown = [column for column in columns if any(map(_tested, column.rows))]
    return _panels(shown, lambda row: row.verdict is not None, most, _reach)


def _tested(row: TableRow) -> bool:
    return row.verdict is not None and row.verdict.interval is not None


def _reach(rows: Sequence[TableRow]) -> tuple[float, float]:
    """The ends of an axis that has all estimates and the margin, and three of four ends of intervals."""
    judged = [row.verdict for row in rows if _tested(row)]
    ends = [abs(end) for verdict in judged for end in verdict.interval] or [0.0]
    largest = max((abs(verdict.estimate) for verdict in judged), default=0.0)
    reach = 1.15 * max(largest, rows[0].verdict.margin, float(np.quantile(ends, 0.75)))
    return -reach, reach


def races(columns: Sequence[Column], most: int) -> Picture | None:
    """The steps in which each seed reached the goal of its task; None where no task has one."""
    shown = [column for column in columns if column.goal is not None]
    return _panels(shown, lambda row: row.race is not None, most, _longest)


def _longest(rows: Sequence[TableRow]) -> tuple[float, float]:
    return 0, max(max(row.race.steps.values()) for row in rows)


def _panels(
    shown: Sequence[Column],
    is_drawn: Callable[[TableRow], bool],
    most: int,
    ends: Callable[[Sequence[TableRow]], tuple[float, float]],
) -> Picture | None:
    """Columns side by side, and the first `most` systems below each other; `ends` of the axis of a column's rows."""
    names = {row.order: row.name for column in shown for row in column.rows if is_drawn(row)}
    heights = {order: HEAD + LINE * (place + 0.75) for place, order in enumerate(sorted(names)[:most])}
    if not heights:
        return None
    left = 12 + LETTER * min(LONGEST, max(len(names[order]) for order in heights))
    drawn = [
        (column, rows)
        for column in shown
        if (rows := [row for row in column.rows if is_drawn(row) and row.order in heights])
    ]
    panels = []
    for number, (column, rows) in enumerate(drawn):
        (low, high), start = ends(rows), left + number * (PANEL + GAP)
        panels.append(
            {
                "column": column,
                "rows": [(heights[row.order] - 4, row) for row in rows],
                "middle": f"{start + PANEL / 2:.1f}",
                "x": scale(low, high, start, PANEL),
                "high": high,
            }
        )
    return {
        "width": f"{left + len(panels) * (PANEL + GAP):.0f}",
        "height": HEAD + LINE * len(heights) + FOOT,
        "names": [(f"{left - 8:.1f}", height, shortened(names[order], LONGEST)) for order, height in heights.items()],
        "top": HEAD - 6,
        "bottom": HEAD + LINE * len(heights),
        "across": PANEL,
        "down": LINE - 8,
        "panels": panels,
    }


# What a page says in a cell: verdicts as kinds, numbers as dots with their intervals.


DOTS = {"width": 118, "height": 14}
EDGE = 5
SPREAD = 2.5  # standard deviations of a row that its column's axis shows


def dot_of(column: Column, row: TableRow) -> Picture:
    """Where the mean of a row, its seeds, its interval and the strongest baseline stand on the axis of its column."""
    x = scale(*axis(column), EDGE, DOTS["width"] - 2 * EDGE)
    mean, ends = row.summary.mean, row.summary.interval
    return {
        **DOTS,
        "middle": DOTS["height"] / 2,
        "said": ", ".join(filter(None, [f"{mean:.2f}", words.interval(ends)])),
        "mean": x(mean),
        "seeds": [x(score) for score in row.scores.values()] if row.summary.done > 1 else [],
        "ends": ends and [x(end) for end in ends],
        "tick": column.strongest and x(column.strongest[1]),
    }


def axis(column: Column) -> tuple[float, float]:
    """From the lowest to the highest of what the column has: means with their spread, and the strongest baseline."""
    summaries = [row.summary for row in column.rows if row.summary.mean is not None]
    ends = [summary.mean + side * (summary.sd or 0.0) for summary in summaries for side in (-SPREAD, SPREAD)]
    ends += [] if column.strongest is None else [column.strongest[1]]
    low, high = min(ends, default=0.0), max(ends, default=1.0)
    return (low, high) if low < high else (low - 1.0, high + 1.0)


def kinds(row: TableRow, word: Callable[[TableRow], str] = lambda row: row.verdict.word) -> str:
    """What a cell is, for its look: its verdict, and whether it lost to a trivial baseline."""
    lost = " lost" * row.has("B")
    return (word(row) if row.verdict else "reference") + lost
