"""The Extractor paper's Figures 4 to 8: the training cost of every batch, as quartiles over each 100 of them."""

from typing import TYPE_CHECKING

import numpy as np

from lra.report.drawing import DrawnSystem, legend, new_figure
from lra.report.table import Column

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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


DRAWINGS = {"batches": together, "batches_each": each}
