"""The pictures of README.md, a panel for each task: verdicts.svg, the differences to the reference as dots with their
intervals, and race.svg, the steps in which each seed reached the goal of its task.

They are text like the tables, so that they are the same on every machine, and follow the reader's light or dark page.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from lra.report.render.templates import rendered
from lra.report.statistics.table import Column, TableRow

LINE, HEAD, FOOT = 17, 34, 34  # pixels: of a row, above and below them
LETTER = 6.1  # of a name
PANEL, GAP = 150, 18


Named = Sequence[tuple[Column, str]]
"""Columns with their headings."""


def verdicts_svg(columns: Named, most: int) -> str:
    """The picture; empty where nothing was tested. `most`: so many systems at most."""
    shown = [(column, name) for column, name in columns if any(map(_tested, column.rows))]
    rows = [row for column, _ in shown for row in column.rows if row.verdict is not None]
    return _picture("verdicts.svg.j2", shown, rows, most, _differences)


def race_svg(columns: Named, most: int) -> str:
    """The picture of columns with a goal; empty where there are none. `most`: so many systems at most."""
    rows = [row for column, _ in columns for row in column.rows if row.race]
    return _picture("race.svg.j2", columns, rows, most, _steps)


def _picture(
    template: str,
    shown: Named,
    rows: Sequence[TableRow],
    most: int,
    panel: Callable[[Column, str, float, dict[tuple, int]], dict[str, Any]],
) -> str:
    """Columns with their names side by side, and the first `most` systems of `rows` below each other."""
    names = {row.order: row.name for row in rows}
    places = {order: place for place, order in enumerate(sorted(names)[:most])}
    if not places:
        return ""
    left = min(260.0, 12 + LETTER * max(len(names[order]) for order in places))
    return rendered(
        template,
        width=f"{left + len(shown) * (PANEL + GAP):.0f}",
        height=HEAD + LINE * len(places) + FOOT,
        names=[(f"{left - 8:.1f}", _y(place), names[order]) for order, place in places.items()],
        top=HEAD - 6,
        bottom=HEAD + LINE * len(places),
        panels=[
            panel(column, name, left + number * (PANEL + GAP), places) for number, (column, name) in enumerate(shown)
        ],
    )


def _steps(column: Column, name: str, left: float, places: dict[tuple, int]) -> dict[str, Any]:
    """What the template draws of the races of a column, in pixels: a dot for each seed, and a bar for the median."""
    races = {places[row.order]: row.race for row in column.rows if row.race and row.order in places}
    longest = max(max(known.steps.values()) for known in races.values())

    def x(step: float) -> str:
        return f"{left + PANEL * step / longest:.1f}"

    rows = []
    for place, known in races.items():
        middle = _y(place) - 4
        apart = (LINE - 8) / max(1, len(known.steps) - 1)
        dots = [
            {"x": x(steps), "y": f"{middle + apart * (number - (len(known.steps) - 1) / 2):.1f}",
             "kind": "solved" if seed in known.solved else "unsolved"}
            for number, (seed, steps) in enumerate(known.steps.items())
        ]  # fmt: skip
        rows.append({"y": middle, "dots": dots, "median": None if known.median is None else x(known.median)})
    return {
        "name": name,
        "middle": f"{left + PANEL / 2:.1f}",
        "goal": f"{column.goal:g} %",
        "start": f"{left:.1f}",
        "end": f"{left + PANEL:.1f}",
        "rows": rows,
        "axis": [(f"{left:.1f}", "start", "0"), (f"{left + PANEL:.1f}", "end", f"{longest:,} steps")],
    }


def _tested(row: TableRow) -> bool:
    return row.verdict is not None and row.verdict.interval is not None


def _differences(column: Column, name: str, left: float, places: dict[tuple, int]) -> dict[str, Any]:
    """What the template draws of the verdicts of a column, in pixels."""
    rows = [row for row in column.rows if _tested(row) and row.order in places]
    margin = next(row.verdict.margin for row in column.rows if row.verdict is not None)
    reach = _reach(rows, margin)

    def x(value: float) -> float:
        return left + PANEL * (min(max(value, -reach), reach) + reach) / (2 * reach)

    def ends(interval: tuple[float, float] | None) -> list[str] | None:
        return None if interval is None else [f"{x(end):.1f}" for end in interval]

    return {
        "name": name,
        "middle": f"{left + PANEL / 2:.1f}",
        "codes": " ".join(badge.code for badge in column.shared),
        "margin": (f"{x(-margin):.1f}", f"{x(margin) - x(-margin):.1f}"),
        "zero": f"{x(0):.1f}",
        "rows": [
            {
                "word": row.verdict.word,
                "y": _y(places[row.order]) - 4,
                "crossed": ends(row.verdict.crossed),
                "interval": ends(row.verdict.interval),
                "estimate": f"{x(row.verdict.estimate):.1f}",
            }
            for row in rows
        ],
        "axis": [
            (f"{x(value):.1f}", anchor, f"{value:+.1f}" if value else "0")
            for value, anchor in ((-reach, "start"), (0, "middle"), (reach, "end"))
        ],
    }


def _reach(rows: list[TableRow], margin: float) -> float:
    """Half of the axis: all estimates and the margin, and three of four ends of intervals."""
    ends = [abs(end) for row in rows for end in row.verdict.interval] or [0.0]
    largest = max((abs(row.verdict.estimate) for row in rows), default=0.0)
    return 1.15 * max(largest, margin, float(np.quantile(ends, 0.75)))


def _y(place: int) -> float:
    return HEAD + LINE * (place + 0.75)
