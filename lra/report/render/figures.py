"""The figures of a report, SVG for print and PNG for everything else; only those whose data exist are drawn."""

import io
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np

from lra.core.errors import UserError
from lra.core.files import write_atomic
from lra.records.names import FIGURES as FOLDER
from lra.report.read import records
from lra.report.read.records import PROBES, computed_tokens, training_seconds
from lra.report.render import layout
from lra.report.render.drawing import (
    DASHES,
    LOOK,
    MARKERS,
    TOGETHER,
    DrawnSystem,
    course,
    drawn,
    legend,
    new_figure,
    plain,
    unit,
)
from lra.report.render.layout import Named
from lra.report.render.pictures import COLOURS
from lra.report.statistics import columns
from lra.report.statistics.table import Column

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def write_figures(folder: Path, named: Named) -> list[Path]:
    """Draw what the records hold into `folder`/figures; returns the paths below `folder`. Raises UserError."""
    try:
        import matplotlib
    except ValueError as error:  # of what MPLBACKEND says
        raise UserError(f"no figures: matplotlib: {error}") from None
    written = []
    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of letters that a font lacks, and of names without room
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(LOOK)
        for title, column in named:
            systems = drawn(column)
            for name, draw in DRAWINGS.items():
                figure = draw(column, systems)
                if figure is not None:
                    figure.suptitle(plain(layout.with_caveats(column, title), 150), fontsize=8)
                    for kind, data in rendered(figure).items():
                        written.append(Path(FOLDER, f"{stem(name, title)}.{kind}"))
                        write_atomic(folder / written[-1], data)
    return written


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
    figure, panels = new_figure(len(shown), 2.1, across=across, sharex=True, sharey=True)
    deepest = max(mean.shape[1] for _, _, mean in shown)
    colours = matplotlib.colormaps["viridis"].resampled(deepest + 1)
    for panel, (system, steps, mean) in zip(panels, shown, strict=True):
        for block in np.flatnonzero(np.isfinite(mean).any(axis=0)):
            panel.plot(
                steps,
                mean[:, block],
                color=colours(block),
                marker=MARKERS[block % len(MARKERS)],
                markevery=max(1, len(steps) // 6),
                label=f"block {block + 1}",
            )
        panel.set_title(system.title)
    values = np.concatenate([mean[np.isfinite(mean)] for _, _, mean in shown])
    if values.min() > 0 and values.max() > 10 * values.min():
        panels[0].set_yscale("log")
    for panel in panels[-across:]:
        panel.set_xlabel("step")
    figure.supylabel(PROBES[probe], fontsize=8)
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
        style = {"color": system.colour, "linestyle": system.dash, "marker": system.marker}
        panel.plot(batches, middle, label=system.name, markevery=max(1, len(batches) // 6), **style)
        panel.fill_between(batches, low, high, color=system.colour, alpha=0.15, linewidth=0)
    panel.set(xlabel="batches", ylabel="training cost")
    legend(figure, panel, f"line: median of {WINDOW} batches, all seeds together; band: quartiles")
    return figure


def each(_column: Column, systems: list[DrawnSystem]) -> "Figure | None":
    """Figures 4, 6 and 8: every batch of every seed; on one scale, which leaves out what is rare."""
    shown = _shown(systems)
    if not shown:
        return None
    figure, panels = new_figure(len(shown), 1.8, across=3, sharex=True, sharey=True)
    medians = [quartiles(system.costs) for system in shown]
    for panel, system, (batches, (_, middle, _)) in zip(panels, shown, medians, strict=True):
        for other, (_, line, _) in medians:
            panel.plot(other, line, color="0.8", linewidth=0.6)
        for costs in system.costs:
            dots = {"marker": ".", "markersize": 2, "markeredgewidth": 0, "alpha": 0.5, "rasterized": True}
            panel.plot(np.arange(1, len(costs) + 1), costs, color=system.colour, linestyle="", **dots)
        panel.plot(batches, middle, color=system.colour)
        panel.set_title(system.title)
    panels[0].set_ylim(*np.quantile(np.concatenate([costs for system in shown for costs in system.costs]), (0, 0.995)))
    figure.supxlabel(f"batches (line: median of {WINDOW}; grey: the other systems')", fontsize=8)
    figure.supylabel("training cost", fontsize=8)
    return figure


def _shown(systems: list[DrawnSystem]) -> list[DrawnSystem]:
    return [system for system in systems if system.costs and min(map(len, system.costs)) >= WINDOW]


BATCH_DRAWINGS = {"batches": together, "batches_each": each}


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
    figure, panels = new_figure(len(shown), 1.35, across=4, sharex=True, sharey=True)
    for panel, (system, _) in zip(panels, shown, strict=True):
        for other, course in shown:
            places, lines = [values.index(value) for value in course], np.array(list(course.values()))
            if other is not system:
                panel.plot(places, lines.mean(axis=1), color="0.8", linewidth=0.6)
                continue
            panel.plot(places, lines.mean(axis=1), color=system.colour, marker=system.marker)
            panel.fill_between(places, lines.min(axis=1), lines.max(axis=1), color=system.colour, alpha=0.15)
        panel.set_title(system.title)
        every = -(-len(values) // 5)
        panel.set_xticks(range(0, len(values), every), map(plain, values[::every]))
    legend = "line: mean over seeds; band: lowest to highest seed; grey: the others"
    figure.supxlabel(f"{HARDER[group]} ({legend})", fontsize=8)
    figure.supylabel("test accuracy (%)", fontsize=8)
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
    figure, panels = new_figure(len(shown), 1.35, across=4, sharex=True, sharey=True)
    means = [(steps, values.mean(axis=0)) for steps, values in (records.over_seeds(s.curves, score) for s in shown)]
    for panel, system in zip(panels, shown, strict=True):
        for steps, mean in means:
            panel.plot(steps, mean, color="0.8", linewidth=0.6)
        course(panel, system, score)
        panel.set_title(system.title)
    figure.supxlabel("step (line: mean over seeds; band: its 95 % interval; grey: the other systems)", fontsize=8)
    figure.supylabel(label, fontsize=8)
    return figure


def _by_depth(column: Column, systems: list[DrawnSystem]) -> "Figure | None":
    """Table 2 of the paper: every seed at every number of blocks, and the means."""
    scores = {
        name: {depth: list(by_depth.values()) for depth, row in rows.items() if (by_depth := row.scores)}
        for name, rows in column.by_depth.items()
    }
    if not any(scores.values()):
        return None
    figure, [panel] = new_figure(1, 2.4, across=1)
    for number, (name, by_depth) in enumerate(scores.items()):
        style = {"color": COLOURS[number % len(COLOURS)], "marker": MARKERS[number % len(MARKERS)]}
        points = [(depth, score) for depth, seeds in by_depth.items() for score in seeds]
        panel.plot(*zip(*points, strict=True), fillstyle="none", linestyle="", alpha=0.6, **style)
        means = [(depth, fmean(seeds)) for depth, seeds in by_depth.items()]
        panel.plot(*zip(*means, strict=True), linestyle=DASHES[number % len(DASHES)], label=plain(name), **style)
        known = [(depth, row.summary.published_best) for depth, row in column.by_depth[name].items()]
        if any(value is not None for _, value in known):
            label = plain(f"{name}, published")
            panel.plot(*zip(*known, strict=True), color=style["color"], linestyle=":", label=label)
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
    figure, panels = new_figure(len(shown), 1.75, across=4, sharex=True, sharey=True)
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
    figure.supxlabel(
        f"confidence (%); line: 95 % interval; hollow: below {FEW} predictions; grey: how many", fontsize=8
    )
    figure.supylabel("accuracy (%)", fontsize=8)
    return figure


DRAWINGS = {
    "cost": _cost,
    "curves": _learning_curves,
    "depth": _by_depth,
    "diagnostics": _diagnostics,
    "calibration": _calibration,
    **{probe: partial(by_block, probe) for probe in PROBES},
    **BATCH_DRAWINGS,
    "difficulty": over_difficulty,
}


# What stands below a figure: what it shows, of which task, and the caveats of the systems in it.


SHOWS = {
    "cost": "score and cost",
    "curves": "learning curves",
    "depth": "accuracy and number of blocks",
    "diagnostics": "accuracy by kind of example",
    "calibration": "confidence and accuracy",
    **{probe: f"{what} in each block" for probe, what in PROBES.items()},
    "batches": "cost of every batch",
    "batches_each": "cost of every batch, by system",
    "difficulty": "accuracy and difficulty",
}
"""By the name of a drawing."""


@dataclass(frozen=True)
class Caption:
    """`title`: the task and what is shown; `caveats`: those of all its systems, then those of some."""

    title: str
    caveats: str = ""


def stem(drawing: str, heading: str) -> str:
    """The name of the file of a figure."""
    return re.sub(r"[^\w-]+", "_", f"{drawing} {heading}")


def captions(named: Named, paths: Sequence[Path]) -> dict[Path, Caption]:
    """Of those of these figures that are SVG."""
    known = {
        stem(drawing, heading): Caption(f"{heading}: {shows}", layout.caveats(column))
        for heading, column in named
        for drawing, shows in SHOWS.items()
    }
    other = {path: Caption(path.stem.replace("_", " ")) for path in paths if path.suffix == ".svg"}
    return {path: known.get(path.stem, caption) for path, caption in other.items()}
