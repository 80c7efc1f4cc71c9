"""Who learns a task, in how many seeds, and how soon: of runs that end where they have solved it (`train.goal`).

A run that did not reach the goal is censored: it would have taken more steps than it had.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lra.report.read.records import RecordedCell

GAP = 20.0  # points between neighbours that make the seeds of a cell two groups


@dataclass(frozen=True)
class Race:
    """The runs of a cell. `steps`: by seed those to the goal, or all that it had; `solved`: the seeds that reached it;
    `stuck`: those that ended for want of progress; `seconds`: by solved seed, of training and evaluation."""

    goal: float
    steps: dict[int, int]
    solved: frozenset[int]
    stuck: frozenset[int]
    seconds: dict[int, float]

    @property
    def word(self) -> str:
        """The verdict."""
        if not self.solved:
            return f"did not learn it in {max(self.steps.values()):,} steps"
        if len(self.solved) == len(self.steps):
            return "learns it"
        return f"learns it in {len(self.solved)} of {len(self.steps)} seeds"

    @property
    def median(self) -> int | None:
        """The steps in which half of all runs would solve it, by Kaplan and Meier's estimate; None where fewer do."""
        from scipy.stats import ecdf

        estimate = ecdf(self.censored()).sf
        steps = zip(estimate.quantiles, estimate.probabilities, strict=True)
        return next((int(step) for step, left in steps if left <= 0.5), None)

    def censored(self):
        """The steps as scipy's CensoredData."""
        from scipy.stats import CensoredData

        reached = [float(steps) for seed, steps in self.steps.items() if seed in self.solved]
        more = [float(steps) for seed, steps in self.steps.items() if seed not in self.solved]
        return CensoredData(uncensored=reached, right=more)


def race_of(cell: RecordedCell) -> Race | None:
    """None where its runs had no goal, or none came to an end."""
    runs = {seed: run for seed, run in sorted(cell.runs.items()) if cell.status(seed) in ("finished", "diverged")}
    goal = next((run["config"].get("train", {}).get("goal") for run in runs.values()), None)
    if goal is None:
        return None
    solved, stuck = (
        frozenset(seed for seed, run in runs.items() if run.get("ended") == end) for end in ("solved", "no progress")
    )
    return Race(
        goal=goal,
        steps={seed: run["steps"] for seed, run in runs.items()},
        solved=solved,
        stuck=stuck,
        seconds={seed: runs[seed]["seconds"]["train"] + runs[seed]["seconds"]["evaluate"] for seed in solved},
    )


def quicker(race: Race, other: Race) -> tuple[bool, float] | None:
    """Whether the first is the quicker, and the p of the log-rank test that both take as many steps; None where the
    seeds cannot say: nobody reached the goal, all reached it at once, or whoever did was alone by then."""
    from scipy.stats import logrank

    with np.errstate(invalid="ignore"):  # 0 / 0 then
        test = logrank(race.censored(), other.censored())
    return None if np.isnan(test.pvalue) else (bool(test.statistic > 0), float(test.pvalue))


def groups(scores: Mapping[int, float]) -> list[list[float]]:
    """The scores of the seeds, ascending, in one group, or in several between which lie `GAP` points or more."""
    parts: list[list[float]] = []
    for score in sorted(scores.values()):
        if parts and score - parts[-1][-1] < GAP:
            parts[-1].append(score)
        else:
            parts.append([score])
    return parts


def grouped(scores: Mapping[int, float]) -> str:
    """As in `2 at 25 to 32, 3 at 77 to 91`; empty where the seeds are one group."""
    parts = groups(scores)
    return ", ".join(f"{len(part)} at {_range(part)}" for part in parts) if len(parts) > 1 else ""


def _range(part: Sequence[float]) -> str:
    low, high = (f"{end:.0f}" for end in (part[0], part[-1]))
    return low if low == high else f"{low} to {high}"
