"""The figures of a report, drawn by matplotlib as SVG: seeds, curves, cost, accuracy by depth and length."""

import io
import math
import os
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from lra.report.frame import present

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from lra.report import Report

WIDTH = 6.9  # inches
LINE = 0.17  # inches for a row of small text
ACROSS = 3  # panels side by side
LONGEST = 32  # characters of a name
TOGETHER = 9  # most curves in a panel
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000", "#7f7f7f", "#8c564b")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
GROUPS = ("depth", "length", "position")  # of test examples, in records
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
    "lines.linewidth": 1.2,
    "lines.markersize": 4,
    "legend.frameon": False,
    "savefig.dpi": 200,
    "svg.fonttype": "none",
    "svg.hashsalt": "lra",
}

Panel = tuple[str, pd.DataFrame, pd.DataFrame]
"""Name, cells and runs of a column."""


def drawn(report: "Report") -> dict[str, str]:
    """Return the SVG of each figure by its title; a figure without data is left out."""
    draw: dict[str, Callable[[Axes, pd.DataFrame, pd.DataFrame], bool]] = {
        "Validation during training": _curves,
        "Training time and test result": _cost,
        "Test accuracy by depth and length": _groups,
    }
    with styled(), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of letters that a font lacks
        figures = {"Test result of each seed": _seeds(report.columns())}
        for title, panel in draw.items():
            figure = _panels(report.columns(), panel)
            if figure is not None:
                figures[title] = svg(figure)
    return figures


@contextmanager
def styled() -> Iterator[None]:
    """Draw with the style of this package, whatever matplotlibrc and MPLBACKEND say."""
    backend = os.environ.pop("MPLBACKEND", None)  # a notebook's; importing matplotlib fails where its package is absent
    try:
        import matplotlib
    finally:
        if backend is not None:
            os.environ["MPLBACKEND"] = backend
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(LOOK)
        yield


def svg(figure: "Figure") -> str:
    """Return a figure as SVG, the same text for the same figure."""
    data = io.StringIO()
    figure.savefig(data, format="svg", metadata={"Date": None, "Creator": None})
    return data.getvalue().partition("?>")[2].partition(">")[2].lstrip()


def _figure(height: float, rows: int, columns: int, **options: Any) -> "tuple[Figure, np.ndarray]":
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, **options)


def _named(name: str) -> str:
    half = LONGEST // 2
    text = name if len(name) <= LONGEST else f"{name[: half - 1]}…{name[-half:]}"
    return text.replace("$", r"\$")


def _panels(columns: list[Panel], draw: "Callable[[Axes, pd.DataFrame, pd.DataFrame], bool]") -> "Figure | None":
    """Draw a panel for each column with data, and one legend."""
    across = min(ACROSS, len(columns))
    rows = math.ceil(len(columns) / across)
    figure, axes = _figure(2.2 * rows + 0.6, rows, across)
    used, handles = 0, {}
    for name, cells, runs in columns:
        panel = axes.flat[used]
        if draw(panel, cells, runs):
            panel.set_title(_named(name))
            used += 1
            for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
                handles.setdefault(label, handle)
    for panel in axes.flat[used:]:
        panel.remove()
    if not used:
        return None
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=3, fontsize=7)
    return figure


def _systems(cells: pd.DataFrame) -> list[tuple[str, str]]:
    """Return the systems of a column, each with its colour."""
    names = cells[cells.kind == "system"].system
    return [(name, COLOURS[place % len(COLOURS)]) for place, name in enumerate(names)]


def caption(columns: list[Panel]) -> str:
    """Name the marks of the figure of seeds."""
    shown = [cells for _, cells, _ in columns if not _is_race(cells)]
    marks = ["Dot: seed", "bar: mean"] if shown else []
    if any(cells.published.notna().any() for cells in shown):
        marks.append("cross: published value")
    if any((cells.kind == "baseline").any() for cells in shown):
        marks.append("dashed line: best trivial baseline")
    if len(shown) < len(columns):
        dot = "with a goal, dot" if shown else "Dot"
        marks.append(f"{dot}: steps of a seed to the goal, open if it is not reached")
    return "; ".join(marks) + "."


def _is_race(cells: pd.DataFrame) -> bool:
    """True if all systems of a column train to a goal."""
    own = cells[cells.kind == "system"]
    return len(own) > 0 and bool(own.goal.notna().all())


def _seeds(columns: list[Panel]) -> str:
    """Draw the test result of each seed, or where a task has a goal, the steps to it."""
    across = min(2, len(columns))
    rows = [columns[place : place + across] for place in range(0, len(columns), across)]
    heights = [LINE * max((cells.kind == "system").sum() for _, cells, _ in row) + 0.7 for row in rows]
    figure, axes = _figure(sum(heights), len(rows), across, gridspec_kw={"height_ratios": heights})
    for place, (name, cells, runs) in enumerate(columns):
        axis = axes[place // across, place % across]
        _dots(axis, cells[cells.kind == "system"], cells[cells.kind == "baseline"], runs)
        axis.set_title(_named(name))
    for place in range(len(columns), axes.size):
        axes.flat[place].remove()
    return svg(figure)


def _dots(axis: "Axes", own: pd.DataFrame, trivial: pd.DataFrame, runs: pd.DataFrame) -> None:
    own = own.reset_index(drop=True)
    race = _is_race(own)
    for y, row in own.iterrows():
        mine = runs[runs.system == row.system]
        if race:
            mine = mine[mine.steps.notna()]
            for solved, face in ((True, COLOURS[0]), (False, "none")):
                part = mine[mine.solved.astype(bool) == solved]
                axis.scatter(part.steps, [y] * len(part), s=12, facecolor=face, edgecolor=COLOURS[0], linewidth=0.7)
        else:
            scores = mine.score.dropna()
            axis.scatter(scores, [y] * len(scores), s=12, color=COLOURS[0], alpha=0.7)
            axis.plot([row["mean"]] * 2, [y - 0.3, y + 0.3], color=COLOURS[0])
            if pd.notna(row.published):
                axis.scatter([row.published], [y], marker="x", s=18, color=COLOURS[1])
    if not race and len(trivial):
        lower = own.metric.iloc[0] == "perplexity" if len(own) else False
        strongest = trivial.sort_values("mean", ascending=lower).iloc[0]
        axis.axvline(strongest["mean"], color=COLOURS[7], linewidth=0.8, linestyle="--")
    axis.set_yticks(range(len(own)), [_named(name) for name in own.system])
    axis.set_ylim(len(own) - 0.5, -0.5)
    axis.set_xlabel("steps to the goal (open: not reached)" if race else _unit(own))


def _unit(cells: pd.DataFrame) -> str:
    return "test perplexity" if (cells.metric == "perplexity").any() else "test accuracy (%)"


def curve(metrics: list[dict[str, Any]], metric: str) -> list[tuple[int, float]]:
    """Return (step, validation result) of each evaluation of a training."""
    points = []
    for line in metrics:
        if "phase" in line:
            continue
        value = line.get("val_accuracy")
        if metric == "perplexity":
            value = None if line.get("val_loss") is None else math.exp(min(line["val_loss"], 700))
        if value is not None:
            points.append((line["step"], value))
    return points


def _curves(axis: "Axes", cells: pd.DataFrame, runs: pd.DataFrame) -> bool:
    """The mean over seeds of the validation result by step."""
    for name, colour in _systems(cells)[:TOGETHER]:
        by_step: dict[int, list[float]] = defaultdict(list)
        mine = present(runs[runs.system == name])
        for run in mine:
            for step, value in curve(run.metrics, run.record.metric):
                by_step[step].append(value)
        steps = sorted(step for step, values in by_step.items() if len(values) * 2 >= len(mine))
        axis.plot(steps, [fmean(by_step[step]) for step in steps], color=colour, label=_named(name))
    axis.set_xlabel("step")
    axis.set_ylabel(_unit(cells).replace("test", "validation"))
    return bool(axis.lines) and any(len(line.get_xdata()) > 1 for line in axis.lines)


def _cost(axis: "Axes", cells: pd.DataFrame, runs: pd.DataFrame) -> bool:
    """Mean test result by the median of the training time."""
    own = cells[(cells.kind == "system") & (cells.n > 0)]
    if len(own) < 2:
        return False
    for place, (name, colour) in enumerate(_systems(cells)):
        row = own[own.system == name]
        seconds = runs[(runs.system == name) & runs.score.notna()].train_seconds.dropna()
        if len(row) and len(seconds):
            marker = MARKERS[place // len(COLOURS) % len(MARKERS)]
            axis.scatter([median(seconds)], row["mean"], color=colour, marker=marker, s=18, label=_named(name))
    axis.set_xscale("log")
    axis.set_xlabel("training time (s)")
    axis.set_ylabel(_unit(cells))
    return bool(axis.collections)


def _groups(axis: "Axes", cells: pd.DataFrame, runs: pd.DataFrame) -> bool:
    """Test accuracy of examples of each depth or length, all seeds of a system together."""
    names = [
        name for name in GROUPS
        if any(len(run.record.diagnostics.get(name, {})) > 1 for run in present(runs[runs.score.notna()]))
    ]  # fmt: skip
    if not names:
        return False
    for system, colour in _systems(cells)[:TOGETHER]:
        total, correct = Counter[str](), Counter[str]()
        for run in present(runs[runs.system == system]):
            for value, group in run.record.diagnostics.get(names[0], {}).items():
                total[value] += group.examples
                correct[value] += group.correct
        shown = list(total)
        axis.plot(
            shown,
            [100 * correct[value] / total[value] for value in shown],
            color=colour,
            marker="o",
            label=_named(system),
        )
    axis.set_xlabel(names[0])
    axis.set_ylabel("test accuracy (%)")
    axis.tick_params(axis="x", labelrotation=45)
    return True
