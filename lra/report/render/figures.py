"""The figures of a report, SVG for print and PNG for everything else; only those whose data exist are drawn."""

import io
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np

from lra.core.errors import UserError
from lra.core.files import write_atomic
from lra.records.names import FIGURES as FOLDER
from lra.report.read import records
from lra.report.read.records import PROBES, Curve, Record, computed_tokens, training_seconds
from lra.report.render import layout
from lra.report.render.pictures import COLOURS, colour_number, shortened, system_number
from lra.report.statistics import columns, inference
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


def write_figures(folder: Path, shown: Sequence[Column]) -> list[Path]:
    """Draw what the records hold into `folder`/figures; returns the paths below `folder`. Raises UserError."""
    written = []
    with styled(), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of letters that a font lacks, and of names without room
        for column in shown:
            systems = drawn(column)
            for name, (draw, _) in DRAWINGS.items():
                figure = draw(column, systems)
                if figure is not None:
                    figure.suptitle(plain(layout.with_caveats(column, column.name), 150), fontsize=8)
                    for kind, data in rendered(figure).items():
                        written.append(Path(FOLDER, f"{stem(name, column.name)}.{kind}"))
                        write_atomic(folder / written[-1], data)
    return written


@contextmanager
def styled() -> Iterator[None]:
    """What all figures have in common, whatever a user's matplotlibrc says. Raises UserError."""
    try:
        import matplotlib
    except ValueError as error:  # of what MPLBACKEND says
        raise UserError(f"no figures: matplotlib: {error}") from None
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(LOOK)
        yield


def rendered(figure: "Figure") -> dict[str, bytes]:
    """A figure as svg and as png, the same bytes for the same figure."""
    figure.get_layout_engine().execute(figure)
    figure.set_layout_engine("none")
    svg, png = io.BytesIO(), io.BytesIO()
    figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": None})
    figure.savefig(png, format="png", metadata={"Software": None})
    return {"svg": svg.getvalue(), "png": _reduced(png)}


def _reduced(png: io.BytesIO) -> bytes:
    """The same picture in 256 colours: a quarter of the bytes."""
    from PIL import Image

    data = io.BytesIO()
    picture = Image.open(png).convert("RGB").quantize(256, Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    picture.save(data, format="png", optimize=True)
    return data.getvalue()


# How a system looks in all figures, and what these share.


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

    @property
    def name(self) -> str:
        return plain(self.row.name)

    @property
    def title(self) -> str:
        """Its name above a panel, settings on a line of their own."""
        return self.name.replace(" (", "\n(")

    @property
    def look(self) -> dict[str, Any]:
        """The style of a line, for matplotlib."""
        return {"color": self.colour, "linestyle": self.dash, "marker": self.marker}


def drawn(column: Column) -> list[DrawnSystem]:
    """The rows of a column; those of one system have shades of one colour, in their order."""
    bases = [row.base for row in column.rows]
    systems = []
    for number, row in enumerate(column.rows):
        setting = bases[:number].count(row.base)
        colour = shade(COLOURS[colour_number(row)], setting, bases.count(row.base))
        at = system_number(row) + setting
        look = {"colour": colour, "marker": MARKERS[at % len(MARKERS)], "dash": DASHES[at % len(DASHES)]}
        left = {"curves": list(row.curves.values()), "costs": list(row.costs.values())}
        systems.append(DrawnSystem(row, row.finished, **left, **look))
    return systems


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
    text = shortened(text, most).replace("$", r"\$")
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


def panels_of(systems: Sequence[DrawnSystem], height: float, across: int, **labels: str) -> "tuple[Figure, list[Axes]]":
    """A panel for each system below its name, all on one scale; `x`, `y`: the `labels` of all."""
    figure, panels = new_figure(len(systems), height, across, sharex=True, sharey=True)
    for panel, system in zip(panels, systems, strict=True):
        panel.set_title(system.title)
    for axis, text in labels.items():
        {"x": figure.supxlabel, "y": figure.supylabel}[axis](text, fontsize=8)
    return figure, panels


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


def plot(panel: "Axes", x: Sequence, y: Sequence, **look: Any) -> None:
    """A line with a few markers."""
    panel.plot(x, y, markevery=max(1, len(x) // 6), **look)


def course(panel: "Axes", system: DrawnSystem, name: str) -> None:
    """The mean over the seeds, within its 95 % interval."""
    steps, values = records.over_seeds(system.curves, name)
    if not len(steps):
        return
    plot(panel, steps, values.mean(axis=0), label=system.name, **system.look)
    if len(values) > 1:
        low, high = zip(*(inference.mean_interval(seeds.tolist()) for seeds in values.T), strict=True)
        panel.fill_between(steps, low, high, color=system.colour, alpha=0.15, linewidth=0)


def others(panel: "Axes", lines: "Sequence[tuple[np.ndarray, np.ndarray]]") -> None:
    """The other systems' lines, in grey."""
    for x, y in lines:
        panel.plot(x, y, color="0.8", linewidth=0.6)


# What happens in the blocks.


def by_block(probe: str, _column: Column, systems: list[DrawnSystem]) -> "Figure | None":
    """A panel for each system, a line for each block."""
    import matplotlib

    measured = [(system, *records.over_seeds(system.curves, probe)) for system in systems]
    means = [(system, steps, values.mean(axis=0)) for system, steps, values in measured if len(steps)]
    shown = [(system, steps, mean) for system, steps, mean in means if np.isfinite(mean).any()]
    if not shown:
        return None
    across = 4 if len(shown) == 4 else 3
    figure, panels = panels_of([system for system, _, _ in shown], 2.1, across, y=PROBES[probe])
    deepest = max(mean.shape[1] for _, _, mean in shown)
    colours = matplotlib.colormaps["viridis"].resampled(deepest + 1)
    for panel, (_, steps, mean) in zip(panels, shown, strict=True):
        for block in np.flatnonzero(np.isfinite(mean).any(axis=0)):
            look = {"color": colours(block), "marker": MARKERS[block % len(MARKERS)]}
            plot(panel, steps, mean[:, block], label=f"block {block + 1}", **look)
    values = np.concatenate([mean[np.isfinite(mean)] for _, _, mean in shown])
    if values.min() > 0 and values.max() > 10 * values.min():
        panels[0].set_yscale("log")
    for panel in panels[-across:]:
        panel.set_xlabel("step")
    legend(figure, max(panels, key=lambda panel: len(panel.lines)), "mean over seeds")
    return figure


# Scores against costs.


COSTS = {
    "parameters": lambda run: run.get("parameters"),
    "training time (s)": training_seconds,
    "tokens computed": computed_tokens,
}


def _cost(column: Column, systems: list[DrawnSystem]) -> "Figure | None":
    """The mean score and its interval against what a system costs; a line joins those that no other beats in both."""
    shown = [system for system in systems if system.runs]
    costs = {
        label: [(system, fmean(spent)) for system in shown if (spent := [c for run in system.runs if (c := cost(run))])]
        for label, cost in COSTS.items()
    }
    costs = {label: points for label, points in costs.items() if len({spent for _, spent in points}) > 1}
    if not costs:
        return None
    figure, panels = new_figure(len(costs), max(2.4, 0.55 + 0.115 * len(shown)), across=3, sharey=True)
    for panel, (label, points) in zip(panels, costs.items(), strict=True):
        for system, spent in points:
            mean, ends = system.row.summary.mean, system.row.summary.interval
            if ends is not None:
                panel.plot([spent, spent], ends, color=system.colour, linewidth=1, alpha=0.6)
            panel.plot(spent, mean, system.marker, color=system.colour, label=system.name)
        front = _front(points, lower=column.metric == "perplexity")
        panel.plot(*zip(*front, strict=True), color="0.6", linewidth=0.8, zorder=0, drawstyle="steps-post")
        panel.set_xlabel(label)
        _scale(panel, [spent for _, spent in points])
    panels[0].set_ylabel(f"test {unit(column)}")
    _label_at_the_right(panels[-1], shown)
    figure.supxlabel("dot: mean; line: 95 % interval over seeds; grey: no other is better for less", fontsize=7)
    return figure


def _front(points: list[tuple[DrawnSystem, float]], lower: bool) -> list[tuple[float, float]]:
    """Costs and means of the systems that no cheaper one, or one as cheap, is better than."""
    sign = 1 if lower else -1
    front: list[tuple[float, float]] = []
    for system, spent in sorted(points, key=lambda point: (point[1], sign * point[0].row.summary.mean)):
        if not front or sign * system.row.summary.mean < sign * front[-1][1]:
            front.append((spent, system.row.summary.mean))
    return front


def _label_at_the_right(panel: "Axes", systems: list[DrawnSystem]) -> None:
    """Names in the order of the means, each as near to its mean as the others leave room."""
    low, high = panel.get_ylim()
    step = (high - low) / max(len(systems) + 1, 14)
    ranked = sorted(systems, key=lambda system: system.row.summary.mean)
    places: list[float] = []
    for system in ranked:
        places.append(max([system.row.summary.mean, *(place + step for place in places[-1:])]))
    over = max(0.0, places[-1] - high)
    places = [place - over for place in places]
    for at in range(len(places) - 2, -1, -1):
        places[at] = min(places[at], places[at + 1] - step)
    for system, place in zip(ranked, places, strict=True):
        panel.annotate(
            system.name, (1.0, system.row.summary.mean), (1.06, place), xycoords=panel.get_yaxis_transform(),
            va="center", fontsize=6.5, color=system.colour, annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": "0.75", "linewidth": 0.5, "relpos": (0, 0.5)},
        )  # fmt: skip


def _scale(panel: "Axes", spent: list[float]) -> None:
    """A logarithmic axis where costs differ by more than a factor of ten; numbers as 80k and 1.5M."""
    from matplotlib.ticker import EngFormatter, LogLocator, MaxNLocator, NullFormatter

    if max(spent) > 10 * min(spent):
        panel.set_xscale("log")
        panel.xaxis.set_major_locator(LogLocator(subs=(1, 3)))
        panel.xaxis.set_minor_formatter(NullFormatter())
    else:
        panel.set_xmargin(0.15)
        panel.xaxis.set_major_locator(MaxNLocator(4))
    panel.xaxis.set_major_formatter(EngFormatter(sep=""))


# The Extractor paper's Figures 4 to 8: the training cost of every batch, as quartiles over each 100 of them.


WINDOW = 100  # batches, not overlapping


def quartiles(seeds: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """(batches [windows], first quartile, median, third quartile [3, windows]) of each whole window, seeds together."""
    windows = min(map(len, seeds)) // WINDOW
    pooled = np.concatenate([costs[: windows * WINDOW].reshape(windows, WINDOW) for costs in seeds], axis=1)
    return np.arange(1, windows + 1) * WINDOW, np.quantile(pooled, (0.25, 0.5, 0.75), axis=1)


def together(_column: Column, systems: list[DrawnSystem]) -> "Figure | None":
    """Figures 5 and 7."""
    shown = _shown(systems)
    if not shown:
        return None
    figure, [panel] = new_figure(1, 3.2, across=1)
    for system in shown:
        batches, (low, middle, high) = quartiles(system.costs)
        plot(panel, batches, middle, label=system.name, **system.look)
        panel.fill_between(batches, low, high, color=system.colour, alpha=0.15, linewidth=0)
    panel.set(xlabel="batches", ylabel="training cost")
    legend(figure, panel, f"line: median of {WINDOW} batches, all seeds together; band: quartiles")
    return figure


def each(_column: Column, systems: list[DrawnSystem]) -> "Figure | None":
    """Figures 4, 6 and 8: every batch of every seed; on one scale, which leaves out what is rare."""
    shown = _shown(systems)
    if not shown:
        return None
    below = f"batches (line: median of {WINDOW}; grey: the other systems')"
    figure, panels = panels_of(shown, 1.8, across=3, x=below, y="training cost")
    medians = [(batches, middle) for batches, (_, middle, _) in (quartiles(system.costs) for system in shown)]
    for panel, system, median in zip(panels, shown, medians, strict=True):
        others(panel, medians)
        for costs in system.costs:
            dots = {"marker": ".", "markersize": 2, "markeredgewidth": 0, "alpha": 0.5, "rasterized": True}
            panel.plot(np.arange(1, len(costs) + 1), costs, color=system.colour, linestyle="", **dots)
        panel.plot(*median, color=system.colour)
    panels[0].set_ylim(*np.quantile(np.concatenate([costs for system in shown for costs in system.costs]), (0, 0.995)))
    return figure


def _shown(systems: list[DrawnSystem]) -> list[DrawnSystem]:
    return [system for system in systems if system.costs and min(map(len, system.costs)) >= WINDOW]


# Accuracy over what makes a probe harder: the number of pairs to recall, the length of the prefix to follow.
#
# One panel a system, so that who can do it is seen at a glance; the other systems are grey.


HARDER = {
    "pairs": "pairs of the example",
    "order": "place among the tokens to copy",
    "position": "position of the answer",
}
"""Groups whose values are in an order, with the label of the axis; of several that a task has, the first is drawn."""


def over_difficulty(column: Column, systems: list[DrawnSystem]) -> "Figure | None":
    """Mean and range over the seeds, by the first of the groups that the records have."""
    group = next((name for name in HARDER for system in systems if _course(system, name)), None)
    if group is None:
        return None
    shown = [(system, course) for system in systems if (course := _course(system, group))]
    values = list(dict.fromkeys(value for _, course in shown for value in course))
    below = f"{HARDER[group]} (line: mean over seeds; band: lowest to highest seed; grey: the others)"
    figure, panels = panels_of([system for system, _ in shown], 1.35, across=4, x=below, y="test accuracy (%)")
    every = -(-len(values) // 5)
    for panel, (system, _) in zip(panels, shown, strict=True):
        for other, course in shown:
            places, lines = [values.index(value) for value in course], np.array(list(course.values()))
            if other is not system:
                others(panel, [(places, lines.mean(axis=1))])
                continue
            panel.plot(places, lines.mean(axis=1), color=system.colour, marker=system.marker)
            panel.fill_between(places, lines.min(axis=1), lines.max(axis=1), color=system.colour, alpha=0.15)
        panel.set_xticks(range(0, len(values), every), map(plain, values[::every]))
    return figure


def _course(system: DrawnSystem, group: str) -> dict[str, list[float]]:
    """The accuracy (percent) of every seed, by the values of the group that all seeds of the system have."""
    seeds = [columns.accuracy_by([run]).get(group, {}) for run in system.runs]
    return {
        value: [seed[value]["accuracy"] for seed in seeds]
        for value in (seeds[0] if seeds else {})
        if all(value in seed for seed in seeds)
    }


# Curves, depths, kinds of examples, confidence.


FEW = 10  # predictions whose accuracy says little


def _learning_curves(column: Column, systems: list[DrawnSystem]) -> "Figure | None":
    """Figure 2 of the paper, with the spread over the seeds."""
    score = f"val_{column.metric}"
    shown = [system for system in systems if any(score in curve for curve in system.curves)]
    if not shown:
        return None
    if len(shown) > TOGETHER:
        return _a_panel_each(shown, score, f"validation {unit(column)}")
    figure, panels = new_figure(3, 2.3, across=3)
    panels[1].sharey(panels[2])
    names = {score: f"validation {unit(column)}", "val_loss": "validation loss", "train_loss": "training loss"}
    for panel, (name, label) in zip(panels, names.items(), strict=True):
        for system in shown:
            course(panel, system, name)
        panel.set(xlabel="step", title=label)
        panel.locator_params(axis="x", nbins=4)
    legend(figure, panels[0], "line: mean over seeds; band: its 95 % interval")
    return figure


def _a_panel_each(shown: list[DrawnSystem], score: str, label: str) -> "Figure":
    below = "step (line: mean over seeds; band: its 95 % interval; grey: the other systems)"
    figure, panels = panels_of(shown, 1.35, across=4, x=below, y=label)
    means = [(steps, values.mean(axis=0)) for steps, values in (records.over_seeds(s.curves, score) for s in shown)]
    for panel, system in zip(panels, shown, strict=True):
        others(panel, means)
        course(panel, system, score)
    return figure


def _by_depth(column: Column, systems: list[DrawnSystem]) -> "Figure | None":
    """Table 2 of the paper: every seed at every number of blocks, and the means."""
    if not any(row.scores for rows in column.by_depth.values() for row in rows.values()):
        return None
    figure, [panel] = new_figure(1, 2.4, across=1)
    for number, (name, rows) in enumerate(column.by_depth.items()):
        style = {"color": COLOURS[number % len(COLOURS)], "marker": MARKERS[number % len(MARKERS)]}
        points = [(depth, score) for depth, row in rows.items() for score in row.scores.values()]
        panel.plot(*zip(*points, strict=True), fillstyle="none", linestyle="", alpha=0.6, **style)
        means = [(depth, row.summary.mean) for depth, row in rows.items() if row.scores]
        panel.plot(*zip(*means, strict=True), linestyle=DASHES[number % len(DASHES)], label=plain(name), **style)
        published = [(depth, row.summary.published_best) for depth, row in rows.items()]
        if any(value is not None for _, value in published):
            label = plain(f"{name}, published")
            panel.plot(*zip(*published, strict=True), color=style["color"], linestyle=":", label=label)
    panel.set(xlabel="blocks", ylabel=f"test {unit(column)}")
    panel.xaxis.get_major_locator().set_params(integer=True)
    legend(figure, panel, "line: mean over seeds; hollow: one seed")
    return figure


def _diagnostics(column: Column, systems: list[DrawnSystem]) -> "Figure | None":
    """Test accuracy by what an example is, all seeds together, beside what a trivial baseline gets."""
    accuracies = [(system, columns.accuracy_by(system.runs)) for system in systems]
    accuracies = [(system, groups) for system, groups in accuracies if groups]
    if not accuracies:
        return None
    names = list(dict.fromkeys(group for _, groups in accuracies for group in groups))
    figure, panels = new_figure(len(names), 2.2, across=3 if len(systems) <= TOGETHER else 1, sharey=True)
    for panel, group in zip(panels, names, strict=True):
        values = list(dict.fromkeys(value for _, groups in accuracies for value in groups.get(group, {})))
        trivial: dict[int, float] = {}
        for number, (system, groups) in enumerate(accuracies):
            offset = 0.8 * ((number + 0.5) / len(accuracies) - 0.5)
            points = [(values.index(value), result) for value, result in groups.get(group, {}).items()]
            trivial |= {place: result["baseline"] for place, result in points if "baseline" in result}
            panel.plot(
                [place + offset for place, _ in points],
                [result["accuracy"] for _, result in points],
                system.marker,
                color=system.colour,
                label=system.name,
            )
        for place, accuracy in trivial.items():
            panel.hlines(accuracy, place - 0.4, place + 0.4, color="0.45", linewidth=1, label="baseline")
        panel.set_xticks(range(len(values)), map(plain, values), rotation=30 if sum(map(len, values)) > 30 else 0)
        panel.set_xlabel(plain(group))
        panel.grid(axis="x", visible=False)
    figure.supylabel("test accuracy (%)", fontsize=8)
    legend(figure, panels[0])
    return figure


def _calibration(column: Column, systems: list[DrawnSystem]) -> "Figure | None":
    """How often a prediction of a given confidence is right, all seeds together, and how many there are."""
    from scipy.stats import binomtest

    shown = [(system, points) for system in systems if (points := columns.reliability(system.runs))]
    if not shown:
        return None
    below = f"confidence (%); line: 95 % interval; hollow: below {FEW} predictions; grey: how many"
    figure, panels = panels_of([system for system, _ in shown], 1.75, across=4, x=below, y="accuracy (%)")
    most = max(point["examples"] for _, points in shown for point in points)
    for panel, (system, points) in zip(panels, shown, strict=True):
        panel.plot([0, 100], [0, 100], color="0.6", linestyle=":", linewidth=1)
        for point in points:
            right = binomtest(round(point["accuracy"] * point["examples"] / 100), int(point["examples"]))
            low, high = right.proportion_ci(method="wilson")
            panel.bar(point["confidence"], 25 * point["examples"] / most, width=6, color="0.85", zorder=0)
            panel.plot([point["confidence"]] * 2, [100 * low, 100 * high], color=system.colour, linewidth=1)
            fill = "full" if point["examples"] >= FEW else "none"
            panel.plot(point["confidence"], point["accuracy"], system.marker, color=system.colour, fillstyle=fill)
        panel.set_title(f"{system.title}\nECE {columns.calibration_error(points):.1f}")
    return figure


DRAWINGS: "dict[str, tuple[Callable[[Column, list[DrawnSystem]], Figure | None], str]]" = {
    "cost": (_cost, "score and cost"),
    "curves": (_learning_curves, "learning curves"),
    "depth": (_by_depth, "accuracy and number of blocks"),
    "diagnostics": (_diagnostics, "accuracy by kind of example"),
    "calibration": (_calibration, "confidence and accuracy"),
    **{probe: (partial(by_block, probe), f"{what} in each block") for probe, what in PROBES.items()},
    "batches": (together, "cost of every batch"),
    "batches_each": (each, "cost of every batch, by system"),
    "difficulty": (over_difficulty, "accuracy and difficulty"),
}
"""By name, what draws a figure of a column, and what it shows."""


def stem(drawing: str, heading: str) -> str:
    """The name of the file of a figure."""
    return re.sub(r"[^\w-]+", "_", f"{drawing} {heading}")


def captions(shown: Sequence[Column], paths: Sequence[Path]) -> dict[Path, tuple[str, str]]:
    """The captions of the figures that are SVG: the task and what is shown, and the caveats of all its systems, then
    those of some."""
    texts = {
        stem(drawing, column.name): (f"{column.name}: {shows}", layout.caveats(column))
        for column in shown
        for drawing, (_, shows) in DRAWINGS.items()
    }
    return {path: texts.get(path.stem, (path.stem.replace("_", " "), "")) for path in paths if path.suffix == ".svg"}
