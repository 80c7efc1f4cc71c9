"""Accuracy over what makes a probe harder: the number of pairs to recall, the length of the prefix to follow.

One panel a system, so that who can do it is seen at a glance; the other systems are grey.
"""

from typing import TYPE_CHECKING

import numpy as np

from lra.report import diagnostics
from lra.report.drawing import DrawnSystem, new_figure, plain
from lra.report.table import Column

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HARDER = {
    "pairs": "pairs of the example",
    "order": "place among the tokens to copy",
    "position": "position of the answer",
}
"""Groups whose values are in an order, with the label of the axis; of several that a task has, the first is drawn."""

Course = dict[str, list[float]]
"""By a value of the group, the accuracy (percent) of every seed."""


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


def _course(system: DrawnSystem, group: str) -> Course:
    """Of the values that all seeds of the system have."""
    seeds = [diagnostics.accuracy_by([run]).get(group, {}) for run in system.runs]
    return {
        value: [seed[value]["accuracy"] for seed in seeds]
        for value in (seeds[0] if seeds else {})
        if all(value in seed for seed in seeds)
    }


DRAWINGS = {"difficulty": over_difficulty}
