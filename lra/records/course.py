"""The course of a training by its evaluations: which is the best, what was first reached when, and what solves a task.

A trainer goes by these rules, and a check of its record by the same."""

import math
from typing import Any

REACHED = (50, 90, 99)  # percent of validation
GOALS = 2  # evaluations running that solve a task

Validation = tuple[float, float | None]
"""Accuracy in percent, and loss; None where that is not finite."""


def better(now: Validation, best: Validation | None, metric: str) -> bool:
    """Whether an evaluation is better than the best before it, by `TaskSpec.metric`; the first of equals stays the
    best, and a loss that is not finite is the worst."""
    if best is None:
        return True
    if metric == "accuracy":
        return now[0] > best[0]
    own, other = (math.inf if loss is None or not math.isfinite(loss) else loss for _, loss in (now, best))
    return own < other


class Goal:
    """`train.goal`, a validation accuracy in percent that solves a task in `GOALS` evaluations `running`; and when each
    of `REACHED` was first `reached`. None: no goal, and nothing is kept."""

    def __init__(self, percent: float | None) -> None:
        self.percent, self.running = percent, 0
        self.reached: dict[str, dict[str, float]] = {}

    def solved_by(self, step: int, accuracy: float, tokens: int, seconds: float) -> bool:
        """Take in an evaluation; `tokens` and `seconds` of all training and evaluation so far."""
        if self.percent is None:
            return False
        for percent in (part for part in REACHED if accuracy >= part):
            self.reached.setdefault(str(percent), {"step": step, "tokens": tokens, "seconds": seconds})
        self.running = self.running + 1 if accuracy >= self.percent else 0
        return self.running == GOALS


def solved(run: dict[str, Any]) -> bool:
    """Whether a finished run learned its task: its validation had `train.goal` in two evaluations running, which ends
    a training, or in the last one, after the rate has fallen."""
    goal = run["config"].get("train", {}).get("goal")
    if goal is None or run["status"] != "finished":
        return False
    last = run.get("validation", {}).get("last", {"accuracy": -math.inf})
    return run.get("ended") == "solved" or last["accuracy"] >= goal
