"""The course of a training by its evaluations: which is the best, what was first reached when, what solves a task, and
when it ends."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

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
    loss_now, loss_before = (math.inf if loss is None or not math.isfinite(loss) else loss for _, loss in (now, best))
    return loss_now < loss_before


class Goal:
    """`train.goal`, a validation accuracy in percent that solves a task in `GOALS` evaluations `running`; and when each
    of `REACHED` was first `reached`. None: no goal, and nothing is kept."""

    def __init__(self, percent: float | None) -> None:
        self.percent, self.running = percent, 0
        self.reached: dict[str, dict[str, float]] = {}

    def update(self, step: int, accuracy: float, tokens: int, seconds: float) -> bool:
        """Take in an evaluation, and return whether the task is solved now; `tokens` and `seconds` are those of all
        training and evaluation so far."""
        if self.percent is None:
            return False
        for percent in (part for part in REACHED if accuracy >= part):
            self.reached.setdefault(str(percent), {"step": step, "tokens": tokens, "seconds": seconds})
        self.running = self.running + 1 if accuracy >= self.percent else 0
        return self.running == GOALS


@dataclass(frozen=True, kw_only=True)
class StoppingRule:
    """What ends a training: keys of `train` in the configuration."""

    steps: int
    eval_every: int
    warmup: int
    patience: int | None
    progress: float | None
    goal: float | None
    cooldown: int | None

    @classmethod
    def of(cls, train: Mapping[str, Any]) -> Self:
        """That of a recipe; what an older record does not have, there was not."""
        optional = ("patience", "progress", "goal", "cooldown")
        needed = {key: train[key] for key in ("steps", "eval_every", "warmup")}
        return cls(**needed, **{key: train.get(key) for key in optional})

    @property
    def open(self) -> bool:
        """Whether a training may end before its steps."""
        return self.patience is not None or self.goal is not None

    def out_of_patience(self, step: int, best: int) -> bool:
        """Whether training comes to its end at the evaluation of `step`, since the one of `best`, the last that was
        progress, and the warm-up are both `patience` evaluations ago."""
        return self.patience is not None and step - max(best, self.warmup) >= self.patience * self.eval_every


class EndOfTraining:
    """When a training ends: solved, without progress, or after all steps; and when it first reached what.

    Solved is a validation accuracy of `train.goal` in two evaluations running. Progress is a better validation; with
    `train.progress`, wrong answers that are fewer by this share than at the last progress. Without any for
    `train.patience`, what is left is `train.cooldown`, in which the rate falls, as before the last of all steps.
    """

    def __init__(self, rule: StoppingRule) -> None:
        self.rule = rule
        self.step, self.why = rule.steps, "steps"
        self.goal = Goal(rule.goal)
        self.progress: dict[str, float] | None = None  # step and wrong answers, in percent, of when there last was any

    def take(self, last: dict[str, Any], best_step: int, tokens: int, seconds: float) -> None:
        """After an evaluation, `last`; `tokens` and `seconds` of all training and evaluation so far."""
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
        """What a checkpoint keeps."""
        return {
            "step": self.step,
            "why": self.why,
            "at_goal": self.goal.running,
            "progress": self.progress,
            "reached": self.goal.reached,
        }

    def load(self, state: dict[str, Any] | None) -> None:
        """Restore `state()`; None comes from checkpoints that are older than this class."""
        if state is not None:
            self.step, self.why, self.progress = state["step"], state["why"], state.get("progress")
            self.goal.running, self.goal.reached = state["at_goal"], state["reached"]

    def said(self) -> dict[str, Any]:
        """What a record says, where a training may end before its steps."""
        if not self.rule.open:
            return {}
        return {"ended": self.why} | ({} if self.rule.goal is None else {"reached": self.goal.reached})
