"""The picture of the page over results: what each system learns beside what a step of it costs."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from lra.report.render.drawing import colour_number
from lra.report.render.templates import rendered
from lra.report.statistics.table import VANILLA, Column, TableRow

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 560, 300, 44, 96, 16, 38  # pixels
LETTER, LINE = 6.4, 13  # of a name
TICKS = (0.25, 0.5, 0.7, 1, 1.5, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)


def plain_rows(column: Column) -> list[TableRow]:
    return [row for row in column.rows if not row.cell.key.settings and row.summary.done]


@dataclass(frozen=True)
class Point:
    """A system. `time`: of its training steps, as a multiple of the reference's; `share`: of what there is to learn."""

    row: TableRow
    time: float
    share: float


def cost_points(columns: Sequence[Column]) -> list[Point]:
    """The systems that ran on every task on which the Transformer, the reference, did."""
    found: dict[tuple, list[tuple[TableRow, float, float]]] = {}
    for column in columns:
        rows = [row for row in plain_rows(column) if step_seconds(row)]
        reference = next((row for row in rows if (row.cell.key.attention, row.cell.key.variant) == VANILLA), None)
        if reference is None or column.metric != "accuracy":
            continue
        for row in rows:
            found.setdefault(row.order, []).append(
                (row, step_seconds(row) / step_seconds(reference), _share(row, column))
            )
    most = max(map(len, found.values()), default=0)
    return [
        Point(parts[0][0], median(time for _, time, _ in parts), fmean(share for *_, share in parts))
        for _, parts in sorted(found.items())
        if len(parts) == most
    ]


def step_seconds(row: TableRow) -> float | None:
    """Of training, the median over its runs; None or 0 where these do not say it."""
    runs = [row.cell.runs[seed] for seed in row.scores]
    times = [run["seconds"]["train"] / run["steps"] for run in runs if "seconds" in run and run["steps"] > 0]
    return median(times) if times else None


def _share(row: TableRow, column: Column) -> float:
    """How much of the way from the strongest baseline to 100 %."""
    base = column.strongest[1] if column.strongest else 0.0
    if base >= 100.0:
        return 0.0
    return max(0.0, (row.summary.mean - base) / (100.0 - base))


def cost_svg(columns: Sequence[Column]) -> str:
    """Empty where there are no two systems to place."""
    points = cost_points(columns)
    if len(points) < 2:
        return ""
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
    return rendered(
        "cost.svg.j2",
        width=WIDTH,
        height=HEIGHT,
        left=LEFT,
        right=WIDTH - RIGHT,
        bottom=HEIGHT - BOTTOM,
        marks=marks,
        across=[(x(time), f"{time:g}×") for time in TICKS if low <= time <= high],
        up=[(y(step * part), f"{100 * step * part:.0f} %") for part in range(round(top / step) + 1)],
    )


def _place_names(marks: list[dict[str, Any]]) -> None:
    """Put each name to the right of its mark or to the left, higher or lower where it would cover a mark or a name
    before it."""
    covered = [(mark["x"] - 5, mark["x"] + 5, mark["y"] + 4) for mark in marks]
    for place in sorted(range(len(marks)), key=lambda place: (marks[place]["y"], marks[place]["x"])):
        mark = marks[place]
        width = LETTER * len(mark["name"])
        right, left = mark["x"] + 8, mark["x"] - 8 - width
        others = [spot for number, spot in enumerate(covered) if number != place]
        heights = [mark["y"] + 4 + sign * away for away in range(HEIGHT) for sign in (-1, 1)]
        places = [(start, height) for height in heights for start in (right, left)]
        start, height = next(
            (
                (start, height)
                for start, height in places
                if not any(
                    start < end and begin < start + width and abs(height - other) < LINE for begin, end, other in others
                )
            ),
            (right, mark["y"] + 4),
        )
        covered.append((start, start + width, height))
        mark |= {"name_y": height, "name_x": right if start == right else mark["x"] - 8}
        mark["anchor"] = "start" if start == right else "end"
