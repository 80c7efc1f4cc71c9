"""The figures of a report, SVG for print and PNG for everything else; only those whose data exist are drawn."""

import io
import re
from itertools import cycle
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from lra.core.files import write_atomic
from lra.records.names import FIGURES as FOLDER
from lra.report import batches, blocks, curves, diagnostics
from lra.report.drawing import (
    COLOURS,
    DASHES,
    LOOK,
    MARKERS,
    TOGETHER,
    DrawnSystem,
    course,
    legend,
    new_figure,
    plain,
    unit,
)
from lra.report.table import Column, Section

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COSTS = {
    "parameters": lambda run: run.get("parameters"),
    "training time (s)": lambda run: run.get("seconds", {}).get("train"),
    "tokens computed": lambda run: run.get("tokens", {}).get("computed"),
}


def write_figures(folder: Path, sections: list[Section]) -> list[Path]:
    """Draw what the records hold into `folder`/figures; returns the paths below `folder`. Raises UserError."""
    import matplotlib

    columns = [column for section in sections for column in section.columns]
    orders = sorted({row.order for column in columns for row in column.rows})
    written = []
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(LOOK)
        for column in columns:
            systems = [DrawnSystem.of(row, orders.index(row.order)) for row in column.rows]
            protocol, selection, task = column.key
            for name, draw in DRAWINGS.items():
                figure = draw(column, systems)
                if figure is not None:
                    figure.suptitle(plain(f"{task}; protocol {protocol}, selection {selection}", 150), fontsize=8)
                    written += _save(figure, folder, re.sub(r"\W+", "_", f"{name} {task} {protocol} {selection}"))
    return written


def _save(figure: "Figure", folder: Path, stem: str) -> list[Path]:
    figure.get_layout_engine().execute(figure)
    figure.set_layout_engine("none")
    paths = []
    for kind, metadata in (("svg", {"Date": None, "Creator": None}), ("png", {"Software": None})):
        data = io.BytesIO()
        figure.savefig(data, format=kind, metadata=metadata)
        paths.append(Path(FOLDER, f"{stem}.{kind}"))
        write_atomic(folder / paths[-1], data.getvalue() if kind == "svg" else _reduced(data))
    return paths


def _reduced(png: io.BytesIO) -> bytes:
    """The same picture in 256 colours: a quarter of the bytes."""
    from PIL import Image

    data = io.BytesIO()
    picture = Image.open(png).convert("RGB").quantize(256, Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    picture.save(data, format="png", optimize=True)
    return data.getvalue()


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
    legend(figure, panels[0], "line: mean over seeds; band: lowest to highest seed")
    return figure


def _a_panel_each(shown: list[DrawnSystem], score: str, label: str) -> "Figure":
    figure, panels = new_figure(len(shown), 1.35, across=4, sharex=True, sharey=True)
    means = [(steps, values.mean(axis=0)) for steps, values in (curves.over_seeds(s.curves, score) for s in shown)]
    for panel, system in zip(panels, shown, strict=True):
        for steps, mean in means:
            panel.plot(steps, mean, color="0.8", linewidth=0.6)
        course(panel, system, score)
        panel.set_title(system.title)
    figure.supxlabel("step (line: mean over seeds; band: lowest to highest seed; grey: the other systems)", fontsize=8)
    figure.supylabel(label, fontsize=8)
    return figure


def _seed_strips(column: Column, systems: list[DrawnSystem]) -> "Figure | None":
    """Every seed a ring; below the rings the mean and its interval."""
    shown = [system for system in systems if system.runs]
    if not shown:
        return None
    figure, [panel] = new_figure(1, 1.1 + 0.3 * len(shown), across=1)
    panel.plot([], [], "o", color="0.4", fillstyle="none", label="one seed")
    for row, system in enumerate(shown):
        values = list(system.row.cell.scores().values())
        panel.plot(values, [row - 0.15] * len(values), "o", color=system.colour, fillstyle="none")
        summary = system.row.summary
        if summary.interval is not None:
            panel.plot(summary.interval, [row + 0.2] * 2, color="black", linewidth=1, label="95 % interval of the mean")
        panel.plot(summary.mean, row + 0.2, "D", color="black", markersize=3.5, label="mean")
        if summary.published_best is not None:
            panel.plot(summary.published_best, row - 0.15, "*", color="black", markersize=7, label="published")
    panel.set(xlabel=f"test {unit(column)}", ylim=(len(shown) - 0.4, -0.6))
    panel.set_yticks(range(len(shown)), [system.name for system in shown])
    panel.grid(axis="y", visible=False)
    low, high = panel.get_xlim()
    for (name, value), dash in zip(column.baselines.items(), cycle(DASHES[1:])):
        label = plain(f"baseline: {name}, {value:.2f}")
        if 2 * low - high <= value <= 2 * high - low:
            panel.axvline(value, color="0.45", linestyle=dash, linewidth=1, label=label)
        else:
            panel.plot([], [], " ", label=f"{label} (off the axis)")
    legend(figure, panel)
    return figure


def _cost(column: Column, systems: list[DrawnSystem]) -> "Figure | None":
    """The mean score of a system and its standard deviation, against what it costs."""
    shown = [system for system in systems if system.runs]
    costs = {
        label: [(system, fmean(spent)) for system in shown if (spent := [c for run in system.runs if (c := cost(run))])]
        for label, cost in COSTS.items()
    }
    costs = {label: points for label, points in costs.items() if points}
    if not costs:
        return None
    figure, panels = new_figure(len(costs), 2.4, across=3, sharey=True)
    for panel, (label, points) in zip(panels, costs.items(), strict=True):
        for system, spent in points:
            panel.errorbar(
                spent,
                system.row.summary.mean,
                yerr=system.row.summary.sd,
                fmt=system.marker,
                color=system.colour,
                capsize=2,
                label=system.name,
            )
        panel.set_xlabel(label)
        _scale(panel, [spent for _, spent in points])
    panels[0].set_ylabel(f"test {unit(column)}")
    legend(figure, max(panels, key=lambda panel: len(panel.containers)), "mean ± standard deviation over seeds")
    return figure


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


def _by_depth(column: Column, systems: list[DrawnSystem]) -> "Figure | None":
    """Table 2 of the paper: every seed at every number of blocks, and the means."""
    scores = {
        name: {depth: list(by_depth.values()) for depth, row in rows.items() if (by_depth := row.cell.scores())}
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
    accuracies = [(system, diagnostics.accuracy_by(system.runs)) for system in systems]
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
    """How often a prediction of a given confidence is right, all seeds together."""
    shown = [(system, points) for system in systems if (points := diagnostics.reliability(system.runs))]
    if not shown:
        return None
    figure, panels = new_figure(len(shown), 1.75, across=4, sharex=True, sharey=True)
    for panel, (system, points) in zip(panels, shown, strict=True):
        panel.plot([0, 100], [0, 100], color="0.6", linestyle=":", linewidth=1)
        panel.plot(
            [point["confidence"] for point in points],
            [point["accuracy"] for point in points],
            color=system.colour,
            marker=system.marker,
        )
        panel.set_title(system.title)
    figure.supxlabel("confidence (%)", fontsize=8)
    figure.supylabel("accuracy (%)", fontsize=8)
    return figure


DRAWINGS = {
    "curves": _learning_curves,
    "seeds": _seed_strips,
    "cost": _cost,
    "depth": _by_depth,
    "diagnostics": _diagnostics,
    "calibration": _calibration,
    **blocks.DRAWINGS,
    **batches.DRAWINGS,
}
