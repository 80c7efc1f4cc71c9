"""Who learns a task, in how many seeds, and how soon: of runs that end where they have solved it (`train.goal`).

What counts is the budget that a run is given. One that is ended for want of progress, or diverges, did not solve the
task within it, whenever that was; at the step of its end it is no loss by chance, so it is not censored there.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lra.records import course
from lra.report.read.records import RecordedCell
from lra.report.statistics import inference

GAP = 20.0  # points between neighbours that make the seeds of a cell two groups


@dataclass(frozen=True)
class Race:
    """The runs of a cell that came to an end. `budget`: the steps that they were given; `declared`: how many seeds
    there are to be; `steps`: by seed those to the goal, or all that it had; `solved`: the seeds that reached it;
    `stuck`: those that ended for want of progress; `seconds`: by solved seed, of training and evaluation."""

    goal: float
    budget: int
    declared: int
    steps: dict[int, int]
    solved: frozenset[int]
    stuck: frozenset[int]
    seconds: dict[int, float]

    @property
    def learned(self) -> bool:
        """Whether every seed that was declared reached the goal."""
        return len(self.solved) == self.declared

    @property
    def complete(self) -> bool:
        return len(self.steps) == self.declared

    @property
    def share(self) -> str:
        """How many seeds reached the goal, as in `2 of 5`, or `2 of 3 so far`."""
        return f"{len(self.solved)} of {len(self.steps)}{'' if self.complete else ' so far'}"

    @property
    def seeds(self) -> str:
        """The same in a sentence, as in `2 of 5 seeds`, or `2 of 3 seeds so far (5 declared)`."""
        missing = "" if self.complete else f" so far ({self.declared} declared)"
        return f"{len(self.solved)} of {len(self.steps)} seeds{missing}"

    @property
    def word(self) -> str:
        """The verdict."""
        if self.learned:
            return "learns it"
        if self.solved:
            return f"learns it in {self.seeds}"
        if not self.complete:
            return f"has not learned it in {len(self.steps)} seeds so far ({self.declared} declared)"
        return f"did not learn it in {span(self)} steps"

    @property
    def median(self) -> int | None:
        """The steps in which half of all seeds solve it, by Kaplan and Meier; None where fewer do, or seeds are
        missing, since the quick ones are there first."""
        return inference.median_time(*self.times) if self.complete else None

    @property
    def times(self) -> tuple[list[float], list[float]]:
        """The steps to the goal, and those that did not suffice."""
        reached = [float(steps) for seed, steps in self.steps.items() if seed in self.solved]
        return reached, [float(self.budget)] * (len(self.steps) - len(reached))


def race_of(cell: RecordedCell) -> Race | None:
    """None where its runs had no goal, or none came to an end."""
    runs = {seed: run for seed, run in sorted(cell.runs.items()) if cell.status(seed) in ("finished", "diverged")}
    recipes = [run["config"].get("train", {}) for run in runs.values()]
    if not recipes or recipes[0].get("goal") is None:
        return None
    solved = frozenset(seed for seed, run in runs.items() if course.solved(run))
    stuck = frozenset(seed for seed, run in runs.items() if run.get("ended") == "no progress") - solved
    return Race(
        goal=recipes[0]["goal"],
        budget=recipes[0]["steps"],
        declared=len(cell.seeds()),
        steps={seed: run["steps"] for seed, run in runs.items()},
        solved=solved,
        stuck=stuck,
        seconds={seed: runs[seed]["seconds"]["train"] + runs[seed]["seconds"]["evaluate"] for seed in solved},
    )


def span(*races: Race) -> str:
    """After how many steps their runs ended, as in `1,900` or `1,900 to 5,000`."""
    return _range([steps for race in races for steps in race.steps.values()], ",")


def grouped(scores: Mapping[int, float]) -> str:
    """The scores of seeds in groups between which lie `GAP` points or more, as in `2 at 25 to 32, 3 at 77 to 91`; empty
    where they are one group."""
    ascending = np.sort(list(scores.values()))
    parts = np.split(ascending, np.flatnonzero(np.diff(ascending) >= GAP) + 1)
    return ", ".join(f"{len(part)} at {_range(part, '.0f')}" for part in parts) if len(parts) > 1 else ""


def _range(numbers: Sequence[float], form: str) -> str:
    low, high = (format(end, form) for end in (min(numbers), max(numbers)))
    return low if low == high else f"{low} to {high}"
