"""verdicts.svg: the differences to the reference as dots with their intervals, a panel for each task.

It is text like the tables, so that it is the same on every machine, and it follows the reader's light or dark page.
"""

from collections.abc import Iterator, Sequence
from html import escape

import numpy as np

from lra.report.table import Column, TableRow

LINE, HEAD, FOOT = 17, 34, 34  # pixels: of a row, above and below them
LETTER = 6.1  # of a name
PANEL, GAP = 150, 18
STYLE = (
    "text{font:11px system-ui,sans-serif;fill:#222}.s{fill:#666;font-size:10px}.z{stroke:#999}.m{fill:#8883}"
    ".i{stroke:#0072b2;stroke-width:3}.c{stroke:#0072b2;stroke-width:1}.d{fill:#0072b2}"
    ".better .i,.worse .i{stroke:#d55e00}.better .c,.worse .c{stroke:#d55e00}.better .d,.worse .d{fill:#d55e00}"
    "@media (prefers-color-scheme:dark){text{fill:#ddd}.s{fill:#aaa}.i,.c{stroke:#56b4e9}.d{fill:#56b4e9}"
    ".better .i,.worse .i,.better .c,.worse .c{stroke:#e69f00}.better .d,.worse .d{fill:#e69f00}}"
)


def drawing(columns: Sequence[Column], headings: Sequence[str], most: int) -> str:
    """The picture; empty where nothing was tested. `most`: so many systems at most."""
    shown = [(column, name) for column, name in zip(columns, headings, strict=True) if any(map(_tested, column.rows))]
    names = {row.order: row.name for column, _ in shown for row in column.rows if row.verdict is not None}
    places = {order: place for place, order in enumerate(sorted(names)[:most])}
    if not places:
        return ""
    left = min(260.0, 12 + LETTER * max(len(names[order]) for order in places))
    width, height = left + len(shown) * (PANEL + GAP), HEAD + LINE * len(places) + FOOT
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" role="img" width="{width:.0f}" height="{height}">',
            "<title>Differences to the reference, with intervals</title>",
            f"<style>{STYLE}</style>",
            *(_text(left - 8, _y(place), names[order], "end") for order, place in places.items()),
            *(
                part
                for number, (column, name) in enumerate(shown)
                for part in _panel(column, name, left + number * (PANEL + GAP), places)
            ),
            "</svg>\n",
        ]
    )


def _tested(row: TableRow) -> bool:
    return row.verdict is not None and row.verdict.interval is not None


def _panel(column: Column, name: str, left: float, places: dict[tuple, int]) -> Iterator[str]:
    rows = [row for row in column.rows if _tested(row) and row.order in places]
    margin = next(row.verdict.margin for row in column.rows if row.verdict is not None)
    reach = _reach(rows, margin)
    bottom = HEAD + LINE * len(places)

    def x(value: float) -> float:
        return left + PANEL * (min(max(value, -reach), reach) + reach) / (2 * reach)

    yield _text(left + PANEL / 2, 12, name, "middle")
    yield _text(left + PANEL / 2, 24, " ".join(badge.code for badge in column.shared), "middle", "s")
    yield _box(x(-margin), HEAD - 6, x(margin) - x(-margin), bottom - HEAD + 8)
    yield _line("z", x(0), HEAD - 6, x(0), bottom + 2)
    for row in rows:
        verdict, y = row.verdict, _y(places[row.order]) - 4
        yield f'<g class="{verdict.word}">'
        if verdict.crossed is not None:
            yield _line("c", x(verdict.crossed[0]), y, x(verdict.crossed[1]), y)
        yield _line("i", x(verdict.interval[0]), y, x(verdict.interval[1]), y)
        yield f'<circle class="d" cx="{x(verdict.estimate):.1f}" cy="{y}" r="4"/></g>'
    for value, anchor in ((-reach, "start"), (0, "middle"), (reach, "end")):
        yield _text(x(value), bottom + 14, f"{value:+.1f}" if value else "0", anchor, "s")


def _reach(rows: list[TableRow], margin: float) -> float:
    """Half of the axis: all estimates and the margin, and three of four ends of intervals."""
    ends = [abs(end) for row in rows for end in row.verdict.interval] or [0.0]
    largest = max((abs(row.verdict.estimate) for row in rows), default=0.0)
    return 1.15 * max(largest, margin, float(np.quantile(ends, 0.75)))


def _y(place: int) -> float:
    return HEAD + LINE * (place + 0.75)


def _text(x: float, y: float, text: str, anchor: str, kind: str = "") -> str:
    known = f' class="{kind}"' if kind else ""
    return f'<text{known} x="{x:.1f}" y="{y}" text-anchor="{anchor}">{escape(text)}</text>'


def _line(kind: str, *ends: float) -> str:
    places = " ".join(f'{name}="{value:.1f}"' for name, value in zip(("x1", "y1", "x2", "y2"), ends, strict=True))
    return f'<line class="{kind}" {places}/>'


def _box(x: float, y: float, width: float, height: float) -> str:
    return f'<rect class="m" x="{x:.1f}" y="{y}" width="{width:.1f}" height="{height}"/>'
