"""How the figures of a report are drawn: their look, their panels, and how a system looks in all of them."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from lra.report.read import records
from lra.report.read.records import Curve, Record
from lra.report.render.pictures import COLOURS, colour_number, system_number
from lra.report.statistics import inference
from lra.report.statistics.table import Column, TableRow

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH = 6.9  # inches: the text width of a page
LINE = 0.17  # inches for one line of small text
TOGETHER = 7  # as many curves as can be told apart in one panel
LONGEST = 60  # characters of a name
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
DASHES = ((0, ()), (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (6, 1.5, 1.5, 1.5)))
LOOK = {
    "font.family": "DejaVu Sans",
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.alpha": 0.25,
    "grid.linewidth": 0.5,
    "lines.linewidth": 1.3,
    "lines.markersize": 4,
    "legend.frameon": False,
    "savefig.dpi": 200,
    "path.simplify_threshold": 1.0,
    "svg.hashsalt": "lra",
}


@dataclass(frozen=True)
class DrawnSystem:
    """A row of the table as it is drawn, with the records, curves and costs of its finished seeds."""

    row: TableRow
    runs: list[Record]
    curves: list[Curve]
    costs: list[np.ndarray]
    colour: str
    marker: str
    dash: tuple

    @classmethod
    def of(cls, row: TableRow, setting: int = 0, settings: int = 1) -> "DrawnSystem":
        """`setting`: its number among so many rows of its system, which have shades of one colour, in their order."""
        number = system_number(row) + setting
        return cls(
            row=row,
            runs=row.finished,
            curves=list(row.curves.values()),
            costs=list(row.costs.values()),
            colour=shade(COLOURS[colour_number(row)], setting, settings),
            marker=MARKERS[number % len(MARKERS)],
            dash=DASHES[number % len(DASHES)],
        )

    @property
    def name(self) -> str:
        return plain(self.row.name)

    @property
    def title(self) -> str:
        """Its name above a panel, settings on a line of their own."""
        return self.name.replace(" (", "\n(")


def drawn(column: Column) -> list[DrawnSystem]:
    """The rows of a column, those of one system in one colour."""
    bases = [row.base for row in column.rows]
    places = [bases[:number].count(base) for number, base in enumerate(bases)]
    return [DrawnSystem.of(row, place, bases.count(row.base)) for row, place in zip(column.rows, places, strict=True)]


def shade(colour: str, place: int, count: int) -> str:
    """From light to dark, one of `count` shades of a colour; the colour itself where there is one."""
    if count == 1:
        return colour
    parts = [int(colour[at : at + 2], 16) for at in (1, 3, 5)]
    lighter = 0.65 * (1 - place / (count - 1))
    return "#" + "".join(f"{round(part + lighter * (255 - part)):02x}" for part in parts)


def plain(text: str, most: int = LONGEST) -> str:
    """A name as matplotlib shall draw it: `$` begins no formula, and `_` at its start hides it from no legend.

    `most`: of a longer one the middle is left out, lest the panels have no room.
    """
    if len(text) > most:
        text = f"{text[: most // 2]} … {text[-most // 2 :]}"
    text = text.replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text


def unit(column: Column) -> str:
    return {"accuracy": "accuracy (%)", "perplexity": "perplexity (lower is better)"}[column.metric]


def new_figure(count: int, height: float, across: int, **shared: Any) -> "tuple[Figure, list[Axes]]":
    """A figure of the page's width with `count` panels, `across` in a row, each `height` inches high."""
    from matplotlib.figure import Figure

    rows, across = -(-count // across), min(count, across)
    figure = Figure(figsize=(WIDTH, rows * height + 2 * LINE), layout="constrained")
    panels = list(figure.subplots(rows, across, squeeze=False, **shared).ravel())
    for place, unused in enumerate(panels[count:], start=count):
        panels[place - across].xaxis.set_tick_params(labelbottom=True)
        unused.remove()
    return figure, panels[:count]


def legend(figure: "Figure", panel: "Axes", title: str | None = None) -> None:
    """Every label of a panel once, below all panels; the figure grows by what this takes."""
    handles, labels = panel.get_legend_handles_labels()
    entries = dict(zip(labels, handles, strict=True))
    across = max(1, int(WIDTH / (0.55 + 0.065 * max(map(len, entries)))))
    lines = -(-len(entries) // across) + (title is not None)
    figure.set_figheight(figure.get_figheight() + LINE * lines)
    figure.legend(
        entries.values(), entries.keys(), loc="outside lower center", ncols=across, title=title, title_fontsize=7
    )


def course(panel: "Axes", system: DrawnSystem, name: str) -> None:
    """The mean over the seeds, within its 95 % interval."""
    steps, values = records.over_seeds(system.curves, name)
    if not len(steps):
        return
    panel.plot(
        steps,
        values.mean(axis=0),
        color=system.colour,
        linestyle=system.dash,
        marker=system.marker,
        markevery=max(1, len(steps) // 6),
        label=system.name,
    )
    if len(values) > 1:
        low, high = zip(*(inference.mean_interval(seeds.tolist()) for seeds in values.T), strict=True)
        panel.fill_between(steps, low, high, color=system.colour, alpha=0.15, linewidth=0)
