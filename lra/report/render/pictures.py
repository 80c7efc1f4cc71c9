"""Where things stand in the pictures that are templates, in pixels: the differences and the races of README.md, the
dots of a page, and what each system learns beside what a step of it costs.

They are text like the tables, so that they are the same on every machine, and follow the reader's light or dark page.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any
from zlib import crc32

import numpy as np

from lra.report.render.layout import Named
from lra.report.statistics import words
from lra.report.statistics.table import VANILLA, Column, TableRow

Pixels = dict[str, Any]
"""What a template draws."""

# A system has the same colour (of Okabe and Ito, safe for the colour-blind), dash and marker in every picture of every
# folder.


COLOURS = ("#000000", "#E69F00", "#56B4E9", "#009E73", "#0072B2", "#D55E00", "#CC79A7")


def system_number(row: TableRow) -> int:
    """Of the system, whatever its settings: its row in Table 1, or a number that its name gives; the same in every
    folder."""
    own_name = f"{row.cell.key.attention}, {row.cell.key.variant}"  # of a system that no table lists
    return crc32(own_name.encode()) if row.base == own_name else row.order[0]


def colour_number(row: TableRow) -> int:
    """Where its colour stands in COLOURS."""
    return system_number(row) % len(COLOURS)


def scale(low: float, high: float, start: float, width: float) -> Callable[[float], str]:
    """From the values between two ends to places in a picture; what lies beyond an end stands there."""
    return lambda value: f"{start + width * (min(max(value, low), high) - low) / (high - low):.1f}"


# The pictures of README.md, a panel for each task.


LINE, HEAD, FOOT = 17, 34, 34  # pixels: of a row, above and below them
LETTER = 6.1  # of a name
PANEL, GAP = 150, 18


def verdicts(named: Named, most: int) -> Pixels | None:
    """The differences to the reference as dots with their intervals; None where nothing was tested. `most`: so many
    systems at most."""
    shown = [(name, column) for name, column in named if any(map(_tested, column.rows))]
    return _panels(shown, lambda row: row.verdict is not None, most, _differences)


def races(named: Named, most: int) -> Pixels | None:
    """The steps in which each seed reached the goal of its task; None where no task has one."""
    shown = [(name, column) for name, column in named if column.goal is not None]
    return _panels(shown, lambda row: row.race is not None, most, _steps)


def _panels(
    shown: Named,
    is_drawn: Callable[[TableRow], bool],
    most: int,
    panel: Callable[[Column, float, dict[tuple, float]], Pixels],
) -> Pixels | None:
    """Columns with their names side by side, and the first `most` systems below each other."""
    names = {row.order: row.name for _, column in shown for row in column.rows if is_drawn(row)}
    heights = {order: HEAD + LINE * (place + 0.75) for place, order in enumerate(sorted(names)[:most])}
    if not heights:
        return None
    left = min(260.0, 12 + LETTER * max(len(names[order]) for order in heights))
    starts = [left + number * (PANEL + GAP) for number in range(len(shown))]
    return {
        "width": f"{left + len(shown) * (PANEL + GAP):.0f}",
        "height": HEAD + LINE * len(heights) + FOOT,
        "names": [(f"{left - 8:.1f}", height, names[order]) for order, height in heights.items()],
        "top": HEAD - 6,
        "bottom": HEAD + LINE * len(heights),
        "panels": [
            {"name": name, "middle": f"{start + PANEL / 2:.1f}", **panel(column, start, heights)}
            for start, (name, column) in zip(starts, shown, strict=True)
        ],
    }


def _steps(column: Column, left: float, heights: dict[tuple, float]) -> Pixels:
    """The races of a column: a dot for each seed, and a bar for the median."""
    raced = {heights[row.order] - 4: row.race for row in column.rows if row.race and row.order in heights}
    longest = max(max(known.steps.values()) for known in raced.values())
    x = scale(0, longest, left, PANEL)
    rows = []
    for middle, known in raced.items():
        apart = (LINE - 8) / max(1, len(known.steps) - 1)
        dots = [
            {
                "x": x(steps),
                "y": f"{middle + apart * (number - (len(known.steps) - 1) / 2):.1f}",
                "kind": "solved" if seed in known.solved else "unsolved",
            }
            for number, (seed, steps) in enumerate(known.steps.items())
        ]
        rows.append({"y": middle, "dots": dots, "median": None if known.median is None else x(known.median)})
    axis = [(x(0), "start", "0"), (x(longest), "end", f"{longest:,} steps")]
    return {"goal": f"{column.goal:g} %", "start": x(0), "end": x(longest), "rows": rows, "axis": axis}


def _tested(row: TableRow) -> bool:
    return row.verdict is not None and row.verdict.interval is not None


def _differences(column: Column, left: float, heights: dict[tuple, float]) -> Pixels:
    """The verdicts of a column. Its axis has all estimates and the margin, and three of four ends of intervals."""
    shown = [(heights[row.order], row.verdict) for row in column.rows if _tested(row) and row.order in heights]
    margin = next(row.verdict.margin for row in column.rows if row.verdict is not None)
    ends = [abs(end) for _, known in shown for end in known.interval] or [0.0]
    largest = max((abs(known.estimate) for _, known in shown), default=0.0)
    reach = 1.15 * max(largest, margin, float(np.quantile(ends, 0.75)))
    x = scale(-reach, reach, left, PANEL)
    return {
        "codes": " ".join(badge.code for badge in column.shared),
        "margin": (x(-margin), f"{PANEL * margin / reach:.1f}"),
        "zero": x(0),
        "rows": [
            {
                "word": known.word,
                "y": height - 4,
                "crossed": known.crossed and [x(end) for end in known.crossed],
                "interval": [x(end) for end in known.interval],
                "estimate": x(known.estimate),
            }
            for height, known in shown
        ],
        "axis": [
            (x(value), anchor, f"{value:+.1f}" if value else "0")
            for value, anchor in ((-reach, "start"), (0, "middle"), (reach, "end"))
        ],
    }


# What a page says in a cell: verdicts as kinds, numbers as dots with their intervals.


DOTS = {"width": 118, "height": 14}
EDGE = 5
SPREAD = 2.5  # standard deviations of a row that its column's axis shows


def dot_of(column: Column, row: TableRow, beside: Sequence[Column]) -> Pixels:
    """Where the mean of a row, its seeds, its interval and the strongest baseline stand; on one axis with the columns
    `beside` its own."""
    lows, highs = zip(*map(axis, (column, *beside)), strict=True)
    x = scale(min(lows), max(highs), EDGE, DOTS["width"] - 2 * EDGE)
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
    known = [row.summary for row in column.rows if row.summary.mean is not None]
    ends = [summary.mean + side * (summary.sd or 0.0) for summary in known for side in (-SPREAD, SPREAD)]
    ends += [] if column.strongest is None else [column.strongest[1]]
    low, high = min(ends, default=0.0), max(ends, default=1.0)
    return (low, high) if low < high else (low - 1.0, high + 1.0)


def kinds(row: TableRow, word: Callable[[TableRow], str] = lambda row: row.verdict.word) -> str:
    """What a cell is, for its look: its verdict, and whether it lost to a trivial baseline."""
    lost = " lost" * any(badge.code == "B" for badge in row.badges)
    return (word(row) if row.verdict else "reference") + lost


# The picture of the page over results: what each system learns beside what a step of it costs.


WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 560, 300, 44, 96, 16, 38  # pixels
WIDE, HIGH = 6.4, 13  # of a letter of a name
TICKS = (0.25, 0.5, 0.7, 1, 1.5, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)


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
    found: dict[tuple, list[Point]] = {}
    for column in columns:
        rows = [row for row in plain_rows(column) if step_seconds(row)]
        reference = next((row for row in rows if row.system == VANILLA), None)
        if reference is None or column.metric != "accuracy":
            continue
        for row in rows:
            point = Point(row, step_seconds(row) / step_seconds(reference), _share(row, column))
            found.setdefault(row.order, []).append(point)
    most = max(map(len, found.values()), default=0)
    return [
        Point(parts[0].row, median(part.time for part in parts), fmean(part.share for part in parts))
        for _, parts in sorted(found.items())
        if len(parts) == most
    ]


def step_seconds(row: TableRow) -> float | None:
    """Of training, the median over its runs; None or 0 where these do not say it."""
    times = [run["seconds"]["train"] / run["steps"] for run in row.finished if "seconds" in run and run["steps"] > 0]
    return median(times) if times else None


def _share(row: TableRow, column: Column) -> float:
    """How much of the way from the strongest baseline to 100 %."""
    base = column.strongest[1] if column.strongest else 0.0
    return max(0.0, (row.summary.mean - base) / (100.0 - base)) if base < 100.0 else 0.0


def cost(columns: Iterable[Column]) -> Pixels | None:
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
    return {
        "width": WIDTH,
        "height": HEIGHT,
        "left": LEFT,
        "right": WIDTH - RIGHT,
        "bottom": HEIGHT - BOTTOM,
        "marks": marks,
        "across": [(x(time), f"{time:g}×") for time in TICKS if low <= time <= high],
        "up": [(y(step * part), f"{100 * step * part:.0f} %") for part in range(round(top / step) + 1)],
    }


def _place_names(marks: list[Pixels]) -> None:
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
