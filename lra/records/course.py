"""Evaluations of a training: the best one, milestones, and early stopping."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

REACHED = (50, 90, 99)  # percent of validation
GOALS = 2  # consecutive evaluations that solve a task

Validation = tuple[float, float | None]
"""Accuracy in percent, and loss; None where that is not finite."""


def better(now: Validation, best: Validation | None, metric: str) -> bool:
    """Return True if an evaluation is better than the best so far, by `TaskSpec.metric`.

    The first of equal evaluations stays the best; a loss that is not finite is the worst.
    """
    if best is None:
        return True
    if metric == "accuracy":
        return now[0] > best[0]
    loss_now, loss_before = (math.inf if loss is None or not math.isfinite(loss) else loss for _, loss in (now, best))
    return loss_now < loss_before


class Goal:
    """Milestones of the validation accuracy, and the goal that solves a task in `GOALS` consecutive evaluations.

    Args:
        percent: `train.goal`; None: no goal, and no milestones are recorded.
    """

    def __init__(self, percent: float | None) -> None:
        self.percent, self.running = percent, 0
        self.reached: dict[str, dict[str, float]] = {}

    def update(self, step: int, accuracy: float, tokens: int, seconds: float) -> bool:
        """Add an evaluation and return True if the task is solved.

        Args:
            tokens, seconds: of all training and evaluation so far.
        """
        if self.percent is None:
            return False
        for percent in (part for part in REACHED if accuracy >= part):
            self.reached.setdefault(str(percent), {"step": step, "tokens": tokens, "seconds": seconds})
        self.running = self.running + 1 if accuracy >= self.percent else 0
        return self.running == GOALS


@dataclass(frozen=True, kw_only=True)
class StoppingRule:
    """Early stopping: keys of `train` in the configuration."""

    steps: int
    eval_every: int
    warmup: int
    patience: int | None
    progress: float | None
    goal: float | None
    cooldown: int | None

    @classmethod
    def of(cls, train: Mapping[str, Any]) -> Self:
        """Construct from a recipe; keys that an older record lacks are None."""
        optional = ("patience", "progress", "goal", "cooldown")
        needed = {key: train[key] for key in ("steps", "eval_every", "warmup")}
        return cls(**needed, **{key: train.get(key) for key in optional})

    @property
    def open(self) -> bool:
        """True if a training may end before its steps."""
        return self.patience is not None or self.goal is not None

    def out_of_patience(self, step: int, best: int) -> bool:
        """Return True if the evaluation of step `best`, the last with progress, and the end of the warm-up are at least
        `patience` evaluations before `step`."""
        return self.patience is not None and step - max(best, self.warmup) >= self.patience * self.eval_every


class EndOfTraining:
    """End of a training: solved, without progress, or after all steps.

    A task is solved at a validation accuracy of `train.goal` in two consecutive evaluations. Progress is a better
    validation or, with `train.progress`, an error that has dropped by this share since the last progress. After
    `train.patience` evaluations without progress the training ends with `train.cooldown` steps of a falling rate.
    """

    def __init__(self, rule: StoppingRule) -> None:
        self.rule = rule
        self.step, self.why = rule.steps, "steps"
        self.goal = Goal(rule.goal)
        self.progress: dict[str, float] | None = None  # step and error (percent) of the last progress

    def take(self, last: dict[str, Any], best_step: int, tokens: int, seconds: float) -> None:
        """Add an evaluation.

        Args:
            last: its entry in the record.
            best_step: step of the best evaluation so far.
            tokens, seconds: of all training and evaluation so far.
        """
        rule, step = self.rule, last["step"]
        if self.goal.update(step, last["accuracy"], tokens, seconds):
            self.step, self.why = step, "solved"
        cooled = step + (rule.cooldown or 0)
        better = best_step if rule.progress is None else self._last_progress(step, 100 - last["accuracy"])
        if self.why == "steps" and cooled < rule.steps and rule.out_of_patience(step, better):
            self.step, self.why = cooled, "no progress"

    def _last_progress(self, step: int, wrong: float) -> int:
        if self.progress is None or wrong < (1 - self.rule.progress) * self.progress["wrong"]:
            self.progress = {"step": step, "wrong": wrong}
        return self.progress["step"]

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        return {
            "step": self.step,
            "why": self.why,
            "at_goal": self.goal.running,
            "progress": self.progress,
            "reached": self.goal.reached,
        }

    def load(self, state: dict[str, Any] | None) -> None:
        """Restore `state()`; None comes from older checkpoints."""
        if state is not None:
            self.step, self.why, self.progress = state["step"], state["why"], state.get("progress")
            self.goal.running, self.goal.reached = state["at_goal"], state["reached"]

    def said(self) -> dict[str, Any]:
        """Return the entries of the record, if a training may end before its steps."""
        if not self.rule.open:
            return {}
        return {"ended": self.why} | ({} if self.rule.goal is None else {"reached": self.goal.reached})
