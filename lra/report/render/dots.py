"""Numbers as dots with their intervals: inside of a page, and in verdicts.svg, a panel for each task."""

import re
from collections.abc import Callable, Iterator, Sequence
from html import escape

import numpy as np

from lra.report.render import layout
from lra.report.render.drawing import colour_number
from lra.report.statistics import formats
from lra.report.statistics.table import BETTER, EQUIVALENT, SIGNS, UNDECIDED, UNTESTED, WORSE, Badge, Column, TableRow

WIDTH, HEIGHT, EDGE = 118, 14, 5  # pixels
SPREAD = 2.5  # standard deviations of a row that its column's axis shows

ORDER = (BETTER, WORSE, EQUIVALENT, UNDECIDED, UNTESTED)
FEW = 4  # names in a sentence

Href = Callable[[Column, TableRow], str]


def matrix(columns: Sequence[Column], headings: Sequence[str], href: Href) -> str:
    """One row a system, one column a task, baselines first. `href`: where the number of a row leads."""
    orders = {row.order: row for column in columns for row in column.rows}
    names = sorted({name for column in columns for name in column.baselines})
    head = "".join(map(_heading, columns, headings))
    lines = [
        f'<tr class="baseline"><th scope="row">{escape(name)}</th>'
        + "".join(f"<td>{formats.decimals(column.baselines.get(name))}</td>" for column in columns)
        + "</tr>"
        for name in names
    ]
    for order in sorted(orders):
        cells = "".join(_cell(column, order, href) for column in columns)
        lines.append(f'<tr><th scope="row">{key(orders[order])}</th>{cells}</tr>')
    return (
        f'<table class="matrix"><thead><tr><th scope="col">system</th>{head}</tr></thead><tbody>\n'
        + "\n".join(lines)
        + "\n</tbody></table>"
    )


def _cell(column: Column, order: tuple, href: Href) -> str:
    row = next((row for row in column.rows if row.order == order), None)
    return (
        "<td></td>"
        if row is None
        else f'<td class="{" ".join(kinds(row))}">{entry(column, row, href, column.shared)}</td>'
    )


def legend(columns: Sequence[Column]) -> str:
    """What the signs and codes mean."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(layout.legend(columns)))


def answer(name: str, column: Column) -> str:
    """The verdicts of a column, counted, before all that is said of them."""
    words: dict[str, list[str]] = {}
    for row in column.rows:
        if row.verdict is not None:
            words.setdefault(row.verdict.word, []).append(row.name)
    parts = [_counted(word, words[word]) for word in ORDER if word in words]
    against = sorted({row.verdict.reference for row in column.rows if row.verdict is not None})
    than = f" (against {against[0]})" if len(against) == 1 else ""
    counted = escape(f": {'; '.join(parts)}{than}") if parts else ""
    return f"<details><summary><strong>{escape(name)}</strong>{counted}</summary>{escape(column.answer)}</details>\n"


def _counted(word: str, names: list[str]) -> str:
    """With the names of those that differ, where they are few."""
    few = word in (BETTER, WORSE, EQUIVALENT) and len(names) <= FEW
    return f"{len(names)} {word}" + f": {', '.join(names)}" * few


def key(row: TableRow) -> str:
    """A system's name behind its colour."""
    return f'<i class="s{colour_number(row)}"></i>{escape(row.name)} <small>{escape(row.complexity)}</small>'


def _heading(column: Column, name: str) -> str:
    unit = " <small>perplexity, lower is better</small>" if column.metric == "perplexity" else ""
    marks = "".join(map(badge, column.shared))
    task, _, rules = name.partition(", ")
    shown = f"{escape(task)}{marks}<small>{escape(rules)}</small>"
    return f'<th scope="col" title="{escape(column.title)}">{shown}{unit}</th>'


def kinds(row: TableRow) -> list[str]:
    """What a cell is, for its look: its verdict, and whether it lost to a trivial baseline."""
    return [row.verdict.word if row.verdict else "reference"] + ["lost"] * any(m.code == "B" for m in row.badges)


def badge(mark: Badge) -> str:
    """A caveat: its code, and what it means."""
    return f'<abbr class="badge" title="{escape(f"{mark.label}: {mark.meaning}")}">{escape(mark.code)}</abbr>'


def entry(column: Column, row: TableRow, href: Href, said: Sequence[Badge] = (), beside: Sequence[Column] = ()) -> str:
    """Mean and sd, the sign of the verdict, the caveats that are not `said` of the column already, and the dot, on one
    axis with the columns `beside` it."""
    address = escape(href(column, row))
    if row.summary.mean is None:
        return f'<a href="{address}">{escape(formats.count(row.summary))}</a>'
    mean = f"<strong>{row.summary.mean:.2f}</strong>" if row.name == column.bold else f"{row.summary.mean:.2f}"
    sd = "" if row.summary.sd is None else f" <small>± {row.summary.sd:.2f}</small>"
    marks = "".join(badge(mark) for mark in row.badges if mark not in said)
    return f'<a href="{address}">{mean}</a>{sd}{_sign(row)}{marks}{svg(column, row, beside)}'


def _sign(row: TableRow) -> str:
    verdict = row.verdict
    if verdict is None or verdict.word not in SIGNS:
        return ""
    said = f"{verdict.word}: {formats.signed(verdict.estimate)} {formats.interval(verdict.interval)}"
    return f' <abbr class="sign" title="{escape(f"{said} to {verdict.reference}")}">{SIGNS[verdict.word]}</abbr>'


def svg(column: Column, row: TableRow, beside: Sequence[Column] = ()) -> str:
    """The mean as a dot, its interval as a line, the strongest baseline as a tick; on one axis for these columns."""
    ends_of_axes = [axis(other) for other in (column, *beside)]
    low, high = min(low for low, _ in ends_of_axes), max(high for _, high in ends_of_axes)

    def x(value: float) -> str:
        share = (min(max(value, low), high) - low) / (high - low)
        return f"{EDGE + share * (WIDTH - 2 * EDGE):.1f}"

    mean, ends, y = row.summary.mean, row.summary.interval, HEIGHT / 2
    line = "" if ends is None else f'<line x1="{x(ends[0])}" x2="{x(ends[1])}" y1="{y}" y2="{y}"/>'
    trivial = strongest(column)
    tick = "" if trivial is None else f'<path d="M{x(trivial)} 1V{HEIGHT - 1}"/>'
    said = ", ".join(filter(None, [f"{mean:.2f}", formats.interval(ends)]))
    return (
        f'<svg class="dots s{colour_number(row)}" width="{WIDTH}" height="{HEIGHT}" role="img" aria-label="{said}">'
        f'<title>{said}</title>{tick}{line}<circle cx="{x(mean)}" cy="{y}" r="3.5"/></svg>'
    )


def strongest(column: Column) -> float | None:
    """The best trivial baseline."""
    return (min if column.metric == "perplexity" else max)(column.baselines.values(), default=None)


def axis(column: Column) -> tuple[float, float]:
    """From the lowest to the highest of what the column has: means with their spread, and the strongest baseline."""
    known = [row.summary for row in column.rows if row.summary.mean is not None]
    ends = [known_row.mean + side * (known_row.sd or 0.0) for known_row in known for side in (-SPREAD, SPREAD)]
    trivial = strongest(column)
    ends += [] if trivial is None else [trivial]
    low, high = min(ends, default=0.0), max(ends, default=1.0)
    return (low, high) if low < high else (low - 1.0, high + 1.0)


# verdicts.svg: the differences to the reference as dots with their intervals, a panel for each task.
#
# It is text like the tables, so that it is the same on every machine, and it follows the reader's light or dark page.


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


def verdicts_svg(columns: Sequence[Column], headings: Sequence[str], most: int) -> str:
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
