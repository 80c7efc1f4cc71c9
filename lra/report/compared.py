"""Figures that set the systems of a column beside each other: differences, seeds, and scores against costs."""

from itertools import cycle
from statistics import fmean
from typing import TYPE_CHECKING

from lra.report.drawing import DASHES, DrawnSystem, legend, new_figure, plain, unit
from lra.report.records import computed_tokens, training_seconds
from lra.report.table import Column

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COSTS = {
    "parameters": lambda run: run.get("parameters"),
    "training time (s)": training_seconds,
    "tokens computed": computed_tokens,
}


def _forest(column: Column, systems: list[DrawnSystem]) -> "Figure | None":
    """Every row minus its reference: what the verdicts rest on."""
    shown = [system for system in systems if system.runs and system.row.verdict and system.row.verdict.interval]
    if not shown:
        return None
    figure, [panel] = new_figure(1, 0.7 + 0.2 * len(shown), across=1)
    margin = shown[0].row.verdict.margin
    panel.axvspan(-margin, margin, color="0.9", zorder=0, label=f"margin: {margin:g}")
    panel.axvline(0, color="0.5", linewidth=0.8)
    for place, system in enumerate(shown):
        verdict = system.row.verdict
        if verdict.crossed is not None:
            panel.plot(verdict.crossed, [place] * 2, color=system.colour, linewidth=0.7)
        panel.plot(verdict.interval, [place] * 2, color=system.colour, linewidth=2.2)
        panel.plot(verdict.estimate, place, system.marker, color=system.colour)
        said = f"{verdict.estimate:+.2f} {verdict.word}"
        panel.text(1.01, place, said, transform=panel.get_yaxis_transform(), va="center", fontsize=7)
    reference = {system.row.verdict.reference for system in shown}
    panel.set(xlabel=f"difference to {plain(reference.pop()) if len(reference) == 1 else 'the reference'} (points)")
    panel.set_yticks(range(len(shown)), [system.name for system in shown])
    panel.set_ylim(len(shown) - 0.4, -0.6)
    panel.grid(axis="y", visible=False)
    legend(figure, panel, "thick: 95 % interval over seeds; thin: over seeds and examples")
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
    off = []
    for (name, value), dash in zip(column.baselines.items(), cycle(DASHES[1:])):
        label = plain(f"baseline: {name}, {value:.2f}")
        if 2 * low - high <= value <= 2 * high - low:
            panel.axvline(value, color="0.45", linestyle=dash, linewidth=1, label=label)
        else:
            off.append((label, value > high))
    _off_the_axis(panel, off)
    legend(figure, panel)
    return figure


def _off_the_axis(panel: "Axes", labels: list[tuple[str, bool]]) -> None:
    """Arrows to baselines that lie beyond the left or the right end, above the panel."""
    for right in (False, True):
        said = "; ".join(label for label, beyond in labels if beyond == right)
        if said:
            text, side = (f"{said} →", "right") if right else (f"← {said}", "left")
            panel.text(
                float(right), 1.01, text, transform=panel.transAxes, ha=side, va="bottom", color="0.3", fontsize=7
            )


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


DRAWINGS = {"forest": _forest, "seeds": _seed_strips, "cost": _cost}
