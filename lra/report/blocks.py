"""What the probes found inside the blocks over training: a curve for each block, and a heat map (Figure 5)."""

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from lra.report import curves
from lra.report.curves import PROBES
from lra.report.drawing import LINE, MARKERS, WIDTH, DrawnSystem, legend, new_figure
from lra.report.table import Column

if TYPE_CHECKING:
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure

Found = list[tuple[DrawnSystem, np.ndarray, np.ndarray]]
"""Systems with steps [n] and means over the seeds [n, blocks]."""


def found(systems: list[DrawnSystem], probe: str) -> Found:
    """Of the systems that measured it."""
    measured = [(system, *curves.over_seeds(system.curves, probe)) for system in systems]
    means = [(system, steps, values.mean(axis=0)) for system, steps, values in measured if len(steps)]
    return [(system, steps, mean) for system, steps, mean in means if np.isfinite(mean).any()]


def by_block(probe: str, _column: Column, systems: list[DrawnSystem]) -> "Figure | None":
    """A panel for each system, a line for each block."""
    import matplotlib

    shown = found(systems, probe)
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
    if wide([mean for _, _, mean in shown]):
        panels[0].set_yscale("log")
    for panel in panels[-across:]:
        panel.set_xlabel("step")
    figure.supylabel(PROBES[probe], fontsize=8)
    legend(figure, max(panels, key=lambda panel: len(panel.lines)), "mean over seeds")
    return figure


def heat_map(_column: Column, systems: list[DrawnSystem]) -> "Figure | None":
    """A row for each system, a column for each probe, with one scale of colours; a cell reaches back to the last step
    that was measured."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullFormatter

    probes = {probe: known for probe in PROBES if (known := found(systems, probe))}
    if not probes:
        return None
    rows = [system for system in systems if any(system is other for known in probes.values() for other, _, _ in known)]
    figure = Figure(figsize=(WIDTH, 0.95 * len(rows) + 0.9 + 2 * LINE), layout="constrained")
    panels = figure.subplots(len(rows), len(probes), squeeze=False, sharex=True, sharey="row")
    for place, (probe, known) in enumerate(probes.items()):
        norm = scale([mean for _, _, mean in known])
        for system, steps, mean in known:
            edges, blocks = np.concatenate([[0], steps]), np.arange(mean.shape[1] + 1) + 0.5
            panel = panels[rows.index(system), place]
            panel.pcolormesh(edges, blocks, mean.T, norm=norm, cmap="viridis", rasterized=True)
            panel.set_yticks(range(1, mean.shape[1] + 1, -(-mean.shape[1] // 4)))
            panel.grid(visible=False)
        bar = figure.colorbar(ScalarMappable(norm, "viridis"), ax=panels[:, place], location="top", aspect=12)
        bar.set_label(PROBES[probe])
        bar.ax.tick_params(labelsize=6)
        bar.ax.xaxis.set_minor_formatter(NullFormatter())
        panels[-1, place].set_xlabel("step")
        panels[-1, place].locator_params(axis="x", nbins=3)
    for row, system in zip(panels, rows, strict=True):
        row[0].set_title(system.name, loc="left", fontsize=7)
        for panel in row:
            if not panel.collections:
                panel.set_axis_off()
    figure.supylabel("block", fontsize=8)
    return figure


def wide(means: list[np.ndarray]) -> bool:
    """Values that differ by more than a factor of ten are for a logarithmic scale."""
    values = np.concatenate([mean[np.isfinite(mean)] for mean in means])
    return values.min() > 0 and values.max() > 10 * values.min()


def scale(means: list[np.ndarray]) -> "Normalize":
    from matplotlib.colors import LogNorm, Normalize

    values = np.concatenate([mean[np.isfinite(mean)] for mean in means])
    return (LogNorm if wide(means) else Normalize)(values.min(), values.max())


DRAWINGS = {**{probe: partial(by_block, probe) for probe in PROBES}, "blocks": heat_map}
