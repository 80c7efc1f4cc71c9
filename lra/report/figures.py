"""The figures of a report, SVG for print and PNG for everything else; only those whose data exist are drawn."""

import io
import warnings
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from lra.core.errors import UserError
from lra.core.files import write_atomic
from lra.records.names import FIGURES as FOLDER
from lra.report import batches, blocks, compared, curves, diagnostics, difficulty, matrix
from lra.report.captions import stem
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
    from matplotlib.figure import Figure

FEW = 10  # predictions whose accuracy says little


def write_figures(folder: Path, sections: list[Section]) -> list[Path]:
    """Draw what the records hold into `folder`/figures; returns the paths below `folder`. Raises UserError."""
    try:
        import matplotlib
    except ValueError as error:  # of what MPLBACKEND says
        raise UserError(f"no figures: matplotlib: {error}") from None
    columns = [column for section in sections for column in section.columns]
    written = []
    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of letters that a font lacks, and of names without room
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(LOOK)
        for column, title in zip(columns, matrix.headings(sections), strict=True):
            systems = drawn(column)
            for name, draw in DRAWINGS.items():
                figure = draw(column, systems)
                if figure is not None:
                    figure.suptitle(plain(matrix.with_caveats(column, title), 150), fontsize=8)
                    written += _save(figure, folder, stem(name, title))
    return written


def drawn(column: Column) -> list[DrawnSystem]:
    """The rows of a column, those of one system in one colour."""
    bases = [row.base for row in column.rows]
    places = [bases[:number].count(base) for number, base in enumerate(bases)]
    return [DrawnSystem.of(row, place, bases.count(row.base)) for row, place in zip(column.rows, places, strict=True)]


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
    legend(figure, panels[0], "line: mean over seeds; band: its 95 % interval")
    return figure


def _a_panel_each(shown: list[DrawnSystem], score: str, label: str) -> "Figure":
    figure, panels = new_figure(len(shown), 1.35, across=4, sharex=True, sharey=True)
    means = [(steps, values.mean(axis=0)) for steps, values in (curves.over_seeds(s.curves, score) for s in shown)]
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
    """How often a prediction of a given confidence is right, all seeds together, and how many there are."""
    shown = [(system, points) for system in systems if (points := diagnostics.reliability(system.runs))]
    if not shown:
        return None
    figure, panels = new_figure(len(shown), 1.75, across=4, sharex=True, sharey=True)
    most = max(point["examples"] for _, points in shown for point in points)
    for panel, (system, points) in zip(panels, shown, strict=True):
        panel.plot([0, 100], [0, 100], color="0.6", linestyle=":", linewidth=1)
        for point in points:
            low, high = diagnostics.wilson(point["accuracy"], point["examples"])
            panel.bar(point["confidence"], 25 * point["examples"] / most, width=6, color="0.85", zorder=0)
            panel.plot([point["confidence"]] * 2, [low, high], color=system.colour, linewidth=1)
            fill = "full" if point["examples"] >= FEW else "none"
            panel.plot(point["confidence"], point["accuracy"], system.marker, color=system.colour, fillstyle=fill)
        panel.set_title(f"{system.title}\nECE {diagnostics.calibration_error(points):.1f}")
    figure.supxlabel(
        f"confidence (%); line: 95 % interval; hollow: below {FEW} predictions; grey: how many", fontsize=8
    )
    figure.supylabel("accuracy (%)", fontsize=8)
    return figure


DRAWINGS = {
    **compared.DRAWINGS,
    "curves": _learning_curves,
    "depth": _by_depth,
    "diagnostics": _diagnostics,
    "calibration": _calibration,
    **blocks.DRAWINGS,
    **batches.DRAWINGS,
    **difficulty.DRAWINGS,
}
