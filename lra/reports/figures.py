"""Draw the figures of a report as SVG with matplotlib: seeds, steps, curves, cost, accuracy by depth and length."""

import io
import math
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from itertools import cycle
from pathlib import Path
from statistics import median
from typing import Any

import matplotlib.style
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, StrMethodFormatter

from lra.reports.cells import Column
from lra.reports.frame import present

WIDTH = 3.5  # width of a panel in inches, which fits on a phone without scaling
LINE = 0.17  # height of a row of small text in inches
LONGEST = 28  # maximum number of characters of a name in a label
TOGETHER = 9  # maximum number of coloured curves in a panel; other curves are grey
COLOURS = (  # indexed by a system's position in table order, so that it has one colour in all reports
    "#0072b2", "#009e73", "#7f7f7f", "#8c564b", "#d55e00", "#e69f00", "#cc79a7",
    "#7b3294", "#000000", "#56b4e9", "#b8860b", "#6b8e23", "#17a2b8",
)  # fmt: skip
LINES = ("-", "--", ":", "-.")  # line styles; with the markers they distinguish systems of the same colour
DOT, CROSS, RULE = COLOURS[0], COLOURS[4], COLOURS[2]
GREY = {"color": "#b0b0b0", "linewidth": 0.7, "zorder": 1, "label": "others"}  # below coloured curves
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
GROUPS = ("depth", "length", "position")  # groupings of test examples in `RunRecord.diagnostics`
STYLE = Path(__file__).with_name("report.mplstyle")
SEEDS = "Test result of each seed"

Style = dict[str, Any]
"""Colour, line style, marker and label of a system, as keyword arguments of `Axes.plot`."""


def drawn(columns: list[Column]) -> tuple[str, dict[str, list[str]]]:
    """Return, as SVG, the figure of README.md, and by title the panels of each figure of index.html that has data."""
    draw: dict[str, Callable[[Axes, Column, dict[str, Style]], bool]] = {
        SEEDS: _seeds,
        "Steps to the goal": _steps,
        "Validation during training": _curves,
        "Training time and test result": _cost,
        "Test accuracy by depth and length": _groups,
    }
    styles = styles_of(columns)
    with styled(), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # ignore warnings about letters that the font lacks
        figures = {title: _panels(columns, panel, styles) for title, panel in draw.items()}
        heights = [_height(column) for column in columns]
        # columns are below one another, because a phone would shrink a wider figure
        figure = Figure(figsize=(1.3 * WIDTH, sum(heights)), layout="constrained")
        axes = figure.subplots(len(columns), squeeze=False, height_ratios=heights).flat
        for axis, column in zip(axes, columns, strict=True):
            _seeds(axis, column, styles)
            axis.set_title(_named(column.name))
        return svg(figure), {title: panels for title, panels in figures.items() if panels}


def styled() -> AbstractContextManager[None]:
    """Return a context manager that applies report.mplstyle and ignores the user's matplotlibrc."""
    return matplotlib.style.context(STYLE, after_reset=True)


def svg(figure: Figure) -> str:
    """Return a figure as SVG for an HTML page. It has no date, so that equal figures give equal SVG."""
    data = io.StringIO()
    figure.savefig(data, format="svg", metadata={"Date": None, "Creator": None})
    # HTML allows neither an XML header nor a doctype inside a page
    return data.getvalue().partition("?>")[2].partition(">")[2].lstrip()


def _named(name: str) -> str:
    """Return a matplotlib label for a name; the middle of a long name is left out."""
    half = LONGEST // 2
    text = name if len(name) <= LONGEST else f"{name[: half - 1]}…{name[-half:]}"
    return text.replace("$", r"\$")  # matplotlib would read the text between two dollars as a formula


def _panels(columns: list[Column], draw: Callable[..., bool], styles: dict[str, Style]) -> list[str]:
    """Return an SVG panel for each column with data, and one more with the legend if the panels have labels."""
    panels: list[str] = []
    handles: dict[str, Any] = {}
    for column in columns:
        figure = Figure(figsize=(WIDTH, _height(column) if draw in (_seeds, _steps) else 2.4), layout="constrained")
        axis = figure.subplots()
        if draw(axis, column, styles):
            axis.set_title(_named(column.name))
            panels.append(svg(figure))
            # one legend for all panels, since a system has the same style in each, unless it is grey
            for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
                handles.setdefault(label, handle)
    if handles:
        order = dict.fromkeys([*(style["label"] for style in styles.values()), *handles])  # "others" come last
        handles = {label: handles[label] for label in order if label in handles}
        # if all names are short, a legend of two columns fits into the width of a panel
        across = 2 if max(map(len, handles)) < LONGEST // 2 + 4 else 1
        figure = Figure(figsize=(WIDTH, LINE * math.ceil(len(handles) / across) + 0.1))
        figure.legend(handles.values(), handles.keys(), loc="center", ncols=across)
        panels.append(svg(figure))
    return panels


def styles_of(columns: list[Column]) -> dict[str, Style]:
    """Return the style of each system; systems with the same colour get different lines and markers."""
    styles: dict[str, Style] = {}
    used = {colour: zip(cycle(LINES), cycle(MARKERS), strict=False) for colour in COLOURS}
    cells = sorted((cell for column in columns for cell in column.cells), key=lambda cell: cell.order)
    for cell in {cell.system: cell for cell in cells}.values():
        colour = COLOURS[cell.order[0] % len(COLOURS)]
        line, marker = next(used[colour])
        styles[cell.system] = {"color": colour, "linestyle": line, "marker": marker, "label": _named(cell.system)}
    return styles


def highlighted(column: Column, styles: dict[str, Style]) -> dict[str, Style]:
    """Return the style of each system in a panel of curves.

    If there are at most `TOGETHER` systems, all are coloured. Otherwise the Transformer and the variants of Simple are
    coloured, then the best other systems until `TOGETHER` are coloured; the rest are grey.
    """
    cells, sign = column.cells, 1 if column.lower_is_better else -1
    best = sorted(cells, key=lambda cell: math.inf if cell.summary.mean is None else sign * cell.summary.mean)
    named = [cell for cell in cells if cell.is_vanilla or cell.attention == "simple"]
    first = list(dict.fromkeys(cell.system for cell in [*named, *best]))[: max(TOGETHER, len(named))]
    return {cell.system: styles[cell.system] if cell.system in first else GREY for cell in cells}


def _height(column: Column) -> float:
    return LINE * len(column.cells) + 0.7  # the rest is for the title and the label of the axis


def _seeds(axis: Axes, column: Column, _: dict[str, Style]) -> bool:
    """Draw the test result of each seed, the mean, the published value and the best trivial baseline."""
    for y, cell in enumerate(column.cells):
        # transparent, so that equal results show as a darker dot
        axis.scatter(cell.scores, [y] * len(cell.scores), s=12, color=DOT, alpha=0.7)
        if cell.summary.mean is not None:
            axis.plot([cell.summary.mean] * 2, [y - 0.3, y + 0.3], color=DOT)
        if cell.published is not None:
            axis.scatter([cell.published], [y], marker="x", s=18, color=CROSS)
    if column.best_baseline:
        axis.axvline(column.best_baseline[1], color=RULE, linewidth=0.8, linestyle="--")
    rows(axis, [cell.system for cell in column.cells])
    axis.set_xlabel(_unit(column))
    return True


def _steps(axis: Axes, column: Column, _: dict[str, Style]) -> bool:
    """Draw each seed's number of steps as a dot, open if the goal was missed; return True if the task has a goal."""
    cells = [cell for cell in column.cells if cell.goal is not None]
    for y, cell in enumerate(cells):
        ended = cell.frame[cell.frame.steps.notna()]
        for solved, face in ((True, DOT), (False, "none")):
            steps = ended[ended.solved.astype(bool) == solved].steps
            axis.scatter(steps, [y] * len(steps), s=12, facecolor=face, edgecolor=DOT, linewidth=0.7)
    rows(axis, [cell.system for cell in cells])
    axis.set_xlabel("steps to the goal (open: not reached)")
    _thousands(axis)
    return len(cells) > 0


def rows(axis: Axes, names: list[str]) -> None:
    """Label the rows of a panel with `names`, the first at the top."""
    axis.set_yticks(range(len(names)), [_named(name) for name in names])
    axis.set_ylim(len(names) - 0.5, -0.5)  # downwards


def _thousands(axis: Axes) -> None:
    axis.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    axis.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))


def _unit(column: Column) -> str:
    return "test perplexity" if column.metric == "perplexity" else "test accuracy (%)"


def _curves(axis: Axes, column: Column, styles: dict[str, Style]) -> bool:
    """Draw the validation result by step, averaged over seeds; return True if there is a curve.

    Steps at which fewer than half of the runs were evaluated are left out.
    """
    styles, key = highlighted(column, styles), "val_loss" if column.lower_is_better else "val_accuracy"
    for cell in column.cells:
        # lines with a phase are evaluations of self-pretraining
        lines = [line for run in present(cell.frame) for line in run.metrics if "phase" not in line]
        points = pd.DataFrame(lines, columns=["step", key], dtype=float).dropna()
        if column.lower_is_better:
            points[key] = np.exp(points[key].clip(upper=700))  # exp overflows at losses above 709
        by_step = points.groupby("step")[key].agg(["mean", "size"])
        means = by_step["mean"][by_step["size"] * 2 >= len(cell.records)]
        if len(means):
            axis.plot(means.index, means, **{**styles[cell.system], "marker": ""})
    axis.set_xlabel("step")
    axis.set_ylabel(_unit(column).replace("test", "validation"))
    _thousands(axis)
    return any(len(line.get_xdata()) > 1 for line in axis.lines)  # type: ignore[arg-type]


def _cost(axis: Axes, column: Column, styles: dict[str, Style]) -> bool:
    """Draw the mean test result against the median training time; return True if there are two systems or more."""
    times = []
    for cell in column.cells:
        seconds = cell.finished.train_seconds.dropna()
        if len(seconds) and cell.summary.mean is not None:
            times.append(median(seconds))
            axis.plot(times[-1:], [cell.summary.mean], **{**styles[cell.system], "linestyle": "none"})
    if len(times) < 2:  # a single point compares nothing
        return False
    wide = max(times) > 3 * min(times)  # a linear axis would crowd the fast systems
    if wide:
        axis.set_xscale("log")
    # beyond a factor of 30 only powers of ten have labels, because more labels would overlap
    digits = (1.0,) if max(times) > 30 * min(times) else (1.0, 2.0, 5.0)
    axis.xaxis.set_major_locator(LogLocator(subs=digits, numticks=6) if wide else MaxNLocator(4))
    axis.xaxis.set_major_formatter(StrMethodFormatter("{x:,.6g}"))
    axis.xaxis.set_minor_formatter(NullFormatter())
    axis.set_xlabel("training time (s)")
    axis.set_ylabel(_unit(column))
    return True


def _groups(axis: Axes, column: Column, styles: dict[str, Style]) -> bool:
    """Draw test accuracy by depth, length or position, pooled over seeds; return True if records have such groups."""
    found = [run.record.diagnostics for run in present(column.frame[column.frame.score.notna()])]
    name = next((name for name in GROUPS if any(len(groups.get(name, {})) > 1 for groups in found)), None)
    if name is None:
        return False
    styles = highlighted(column, styles)
    for cell in column.cells:
        groups = [item for record in cell.records for item in record.diagnostics.get(name, {}).items()]
        counts = [(value, group.correct, group.examples) for value, group in groups]
        pooled = pd.DataFrame(counts, columns=[name, "correct", "examples"]).groupby(name, sort=False).sum()
        axis.plot(pooled.index, 100 * pooled.correct / pooled.examples, **styles[cell.system])
    axis.set_xlabel(name)
    axis.set_ylabel("test accuracy (%)")
    axis.tick_params(axis="x", labelrotation=45)
    return True
