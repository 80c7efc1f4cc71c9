"""The figures of a report, SVG for print and PNG for everything else; only those whose data exist are drawn.

A system has the same colour (of Okabe and Ito, safe for the colour-blind), dash and marker in all of them.
"""

import io
import re
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from lra.files import write_atomic
from lra.report import curves, diagnostics
from lra.report.curves import Curve
from lra.report.records import Record
from lra.report.table import Column, Row, Section

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FOLDER = "figures"
WIDTH = 6.9  # inches: the text width of a page
LINE = 0.17  # inches for one line of small text
TOGETHER = 7  # as many curves as can be told apart in one panel
COLOURS = ("#000000", "#E69F00", "#56B4E9", "#009E73", "#0072B2", "#D55E00", "#CC79A7")
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
COSTS = {
    "parameters": lambda run: run.get("parameters"),
    "training time (s)": lambda run: run.get("seconds", {}).get("train"),
    "tokens computed": lambda run: run.get("tokens", {}).get("computed"),
}


@dataclass(frozen=True)
class System:
    """A row of the table as it is drawn, with the records and curves of its finished seeds."""

    row: Row
    runs: list[Record]
    curves: list[Curve]
    colour: str
    marker: str
    dash: tuple

    @property
    def name(self) -> str:
        return self.row.name


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
            systems = [system(folder, row, orders.index(row.order)) for row in column.rows]
            protocol, selection, task = column.key
            for name, draw in DRAWINGS.items():
                figure = draw(column, systems)
                if figure is not None:
                    figure.suptitle(f"{task}; protocol {protocol}, selection {selection}", fontsize=8)
                    written += _save(figure, folder, re.sub(r"\W+", "_", f"{name} {task} {protocol} {selection}"))
    return written


def system(folder: Path, row: Row, number: int) -> System:
    runs = [row.cell.runs[seed] for seed in row.cell.scores()]
    return System(
        row=row,
        runs=runs,
        curves=[curve for run in runs if (curve := curves.read(folder, run))],
        colour=COLOURS[number % len(COLOURS)],
        marker=MARKERS[number % len(MARKERS)],
        dash=DASHES[number % len(DASHES)],
    )


def _unit(column: Column) -> str:
    return {"accuracy": "accuracy (%)", "perplexity": "perplexity (lower is better)"}[column.metric]


def _save(figure: "Figure", folder: Path, stem: str) -> list[Path]:
    figure.get_layout_engine().execute(figure)
    figure.set_layout_engine("none")
    paths = []
    for kind, metadata in (("svg", {"Date": None, "Creator": None}), ("png", {"Software": None})):
        data = io.BytesIO()
        figure.savefig(data, format=kind, metadata=metadata)
        paths.append(Path(FOLDER, f"{stem}.{kind}"))
        write_atomic(folder / paths[-1], data.getvalue())
    return paths


def _panels(count: int, height: float, across: int, **shared: Any) -> "tuple[Figure, list[Axes]]":
    """A figure of the page's width with `count` panels, `across` in a row, each `height` inches high."""
    from matplotlib.figure import Figure

    rows, across = -(-count // across), min(count, across)
    figure = Figure(figsize=(WIDTH, rows * height + 2 * LINE), layout="constrained")
    panels = list(figure.subplots(rows, across, squeeze=False, **shared).ravel())
    for place, unused in enumerate(panels[count:], start=count):
        panels[place - across].xaxis.set_tick_params(labelbottom=True)
        unused.remove()
    return figure, panels[:count]


def _legend(figure: "Figure", panel: "Axes", title: str | None = None) -> None:
    """Every label of a panel once, below all panels; the figure grows by what this takes."""
    handles, labels = panel.get_legend_handles_labels()
    entries = dict(zip(labels, handles, strict=True))
    across = max(1, int(WIDTH / (0.55 + 0.065 * max(map(len, entries)))))
    lines = -(-len(entries) // across) + (title is not None)
    figure.set_figheight(figure.get_figheight() + LINE * lines)
    figure.legend(
        entries.values(), entries.keys(), loc="outside lower center", ncols=across, title=title, title_fontsize=7
    )


def _learning_curves(column: Column, systems: list[System]) -> "Figure | None":
    """Figure 2 of the paper, with the spread over the seeds."""
    score = f"val_{column.metric}"
    shown = [system for system in systems if any(score in curve for curve in system.curves)]
    if not shown:
        return None
    if len(shown) > TOGETHER:
        return _a_panel_each(shown, score, f"validation {_unit(column)}")
    figure, panels = _panels(3, 2.3, across=3)
    panels[1].sharey(panels[2])
    names = {score: f"validation {_unit(column)}", "val_loss": "validation loss", "train_loss": "training loss"}
    for panel, (name, label) in zip(panels, names.items(), strict=True):
        for system in shown:
            _course(panel, system, name)
        panel.set(xlabel="step", title=label)
        panel.locator_params(axis="x", nbins=4)
    _legend(figure, panels[0], "line: mean over seeds; band: lowest to highest seed")
    return figure


def _a_panel_each(shown: list[System], score: str, label: str) -> "Figure":
    figure, panels = _panels(len(shown), 1.35, across=4, sharex=True, sharey=True)
    means = [(steps, values.mean(axis=0)) for steps, values in (curves.over_seeds(s.curves, score) for s in shown)]
    for panel, system in zip(panels, shown, strict=True):
        for steps, mean in means:
            panel.plot(steps, mean, color="0.8", linewidth=0.6)
        _course(panel, system, score)
        panel.set_title(system.name)
    figure.supxlabel("step (line: mean over seeds; band: lowest to highest seed; grey: the other systems)", fontsize=8)
    figure.supylabel(label, fontsize=8)
    return figure


def _course(panel: "Axes", system: System, name: str) -> None:
    """Mean and range over the seeds."""
    steps, values = curves.over_seeds(system.curves, name)
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
        low, high = values.min(axis=0), values.max(axis=0)
        panel.fill_between(steps, low, high, color=system.colour, alpha=0.15, linewidth=0)


def _seed_strips(column: Column, systems: list[System]) -> "Figure | None":
    """Every seed a ring; below the rings the mean and its interval."""
    shown = [system for system in systems if system.runs]
    if not shown:
        return None
    figure, [panel] = _panels(1, 1.1 + 0.3 * len(shown), across=1)
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
    panel.set(xlabel=f"test {_unit(column)}", ylim=(len(shown) - 0.4, -0.6))
    panel.set_yticks(range(len(shown)), [system.name for system in shown])
    panel.grid(axis="y", visible=False)
    low, high = panel.get_xlim()
    for (name, value), dash in zip(column.baselines.items(), cycle(DASHES[1:])):
        if 2 * low - high <= value <= 2 * high - low:
            panel.axvline(value, color="0.45", linestyle=dash, linewidth=1, label=f"baseline: {name}, {value:.2f}")
        else:
            panel.plot([], [], " ", label=f"baseline: {name}, {value:.2f} (off the axis)")
    _legend(figure, panel)
    return figure


def _cost(column: Column, systems: list[System]) -> "Figure | None":
    """The mean score of a system and its standard deviation, against what it costs."""
    shown = [system for system in systems if system.runs]
    costs = {
        label: [(system, fmean(spent)) for system in shown if (spent := [c for run in system.runs if (c := cost(run))])]
        for label, cost in COSTS.items()
    }
    costs = {label: points for label, points in costs.items() if points}
    if not costs:
        return None
    figure, panels = _panels(len(costs), 2.4, across=3, sharey=True)
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
    panels[0].set_ylabel(f"test {_unit(column)}")
    _legend(figure, max(panels, key=lambda panel: len(panel.containers)), "mean ± standard deviation over seeds")
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


def _attention_std(column: Column, systems: list[System]) -> "Figure | None":
    """Figure 5 of the paper: the standard deviation of what each attention puts out, over training."""
    import matplotlib

    shown = [(s, *curves.over_seeds(s.curves, "attention_std")) for s in systems]
    shown = [(system, steps, values) for system, steps, values in shown if len(steps)]
    if not shown:
        return None
    figure, panels = _panels(len(shown), 2.1, across=3, sharex=True, sharey=True)
    deepest = max(values.shape[2] for _, _, values in shown)
    colours = matplotlib.colormaps["viridis"].resampled(deepest + 1)
    for panel, (system, steps, values) in zip(panels, shown, strict=True):
        for block, course in enumerate(values.mean(axis=0).T):
            panel.plot(
                steps,
                course,
                color=colours(block),
                marker=MARKERS[block % len(MARKERS)],
                markevery=max(1, len(steps) // 6),
                label=f"block {block + 1}",
            )
        panel.set_title(system.name)
    for panel in panels[-3:]:
        panel.set_xlabel("step")
    figure.supylabel("sd of attention outputs", fontsize=8)
    _legend(figure, max(panels, key=lambda panel: len(panel.lines)), "mean over seeds")
    return figure


def _diagnostics(column: Column, systems: list[System]) -> "Figure | None":
    """Test accuracy by what an example is, all seeds together, beside what a trivial baseline gets."""
    accuracies = [(system, diagnostics.accuracy_by(system.runs)) for system in systems]
    accuracies = [(system, groups) for system, groups in accuracies if groups]
    if not accuracies:
        return None
    names = list(dict.fromkeys(group for _, groups in accuracies for group in groups))
    figure, panels = _panels(len(names), 2.2, across=3 if len(systems) <= TOGETHER else 1, sharey=True)
    for panel, group in zip(panels, names, strict=True):
        values = list(dict.fromkeys(value for _, groups in accuracies for value in groups.get(group, {})))
        trivial: dict[int, float] = {}
        for number, (system, groups) in enumerate(accuracies):
            offset = 0.8 * ((number + 0.5) / len(accuracies) - 0.5)
            found = [(values.index(value), one) for value, one in groups.get(group, {}).items()]
            trivial |= {place: one["baseline"] for place, one in found if "baseline" in one}
            panel.plot(
                [place + offset for place, _ in found],
                [one["accuracy"] for _, one in found],
                system.marker,
                color=system.colour,
                label=system.name,
            )
        for place, accuracy in trivial.items():
            panel.hlines(accuracy, place - 0.4, place + 0.4, color="0.45", linewidth=1, label="baseline")
        panel.set_xticks(range(len(values)), values, rotation=30 if sum(map(len, values)) > 30 else 0)
        panel.set_xlabel(group)
        panel.grid(axis="x", visible=False)
    figure.supylabel("test accuracy (%)", fontsize=8)
    _legend(figure, panels[0])
    return figure


def _calibration(column: Column, systems: list[System]) -> "Figure | None":
    """How often a prediction of a given confidence is right, all seeds together."""
    shown = [(system, points) for system in systems if (points := diagnostics.reliability(system.runs))]
    if not shown:
        return None
    figure, panels = _panels(len(shown), 1.75, across=4, sharex=True, sharey=True)
    for panel, (system, points) in zip(panels, shown, strict=True):
        panel.plot([0, 100], [0, 100], color="0.6", linestyle=":", linewidth=1)
        panel.plot(
            [point["confidence"] for point in points],
            [point["accuracy"] for point in points],
            color=system.colour,
            marker=system.marker,
        )
        panel.set_title(system.name)
    figure.supxlabel("confidence (%)", fontsize=8)
    figure.supylabel("accuracy (%)", fontsize=8)
    return figure


DRAWINGS = {
    "curves": _learning_curves,
    "seeds": _seed_strips,
    "cost": _cost,
    "attention_std": _attention_std,
    "diagnostics": _diagnostics,
    "calibration": _calibration,
}
