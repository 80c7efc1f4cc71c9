"""When a training ends: its best evaluation, milestones and early stopping; and the time of a whole sweep."""

import math
import time
from typing import Any

from lra.config.settings import Settings
from lra.core.console import say, span
from lra.core.errors import CONFIG_ERROR
from lra.core.signals import Paused
from lra.runs.build import System
from lra.training.recipe import Recipe

REACHED = (50, 90, 99)  # percent of validation
GOALS = 2  # consecutive evaluations that solve a task
STATE = ("step", "why", "at_goal", "progress", "reached")
LEAST_STEPS, LEAST_SECONDS = 3, 5.0  # before the time of a step is known; the first step is not counted

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


class EndOfTraining:
    """End of a training: solved, without progress, or after all steps.

    A task is solved at a validation accuracy of `train.goal` in two consecutive evaluations. Progress is a better
    validation or, with `train.progress`, an error that has dropped by this share since the last progress. After
    `train.patience` evaluations without progress the training ends with `train.cooldown` steps of a falling rate.
    """

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.step, self.why = recipe.steps, "steps"
        self.at_goal = 0  # consecutive evaluations
        self.reached: dict[str, dict[str, float]] = {}  # milestones, recorded if there is a goal
        self.progress: dict[str, float] | None = None  # step and error (percent) of the last progress

    def take(self, last: dict[str, Any], best_step: int, tokens: int, seconds: float) -> None:
        """Add an evaluation.

        Args:
            last: its entry in the record.
            best_step: step of the best evaluation so far.
            tokens, seconds: of all training and evaluation so far.
        """
        recipe, step = self.recipe, last["step"]
        if recipe.goal is not None:
            for percent in (part for part in REACHED if last["accuracy"] >= part):
                self.reached.setdefault(str(percent), {"step": step, "tokens": tokens, "seconds": seconds})
            self.at_goal = self.at_goal + 1 if last["accuracy"] >= recipe.goal else 0
            if self.at_goal == GOALS:
                self.step, self.why = step, "solved"
        better = best_step if recipe.progress is None else self._last_progress(step, 100 - last["accuracy"])
        cooled = step + (recipe.cooldown or 0)
        if self.why == "steps" and cooled < recipe.steps and self.out_of_patience(step, better):
            self.step, self.why = cooled, "no progress"

    def out_of_patience(self, step: int, best: int) -> bool:
        """Return True if the evaluation of step `best`, the last with progress, and the end of the warm-up are at least
        `patience` evaluations before `step`."""
        recipe = self.recipe
        return recipe.patience is not None and step - max(best, recipe.warmup) >= recipe.patience * recipe.eval_every

    def _last_progress(self, step: int, wrong: float) -> int:
        if self.progress is None or wrong < (1 - self.recipe.progress) * self.progress["wrong"]:
            self.progress = {"step": step, "wrong": wrong}
        return self.progress["step"]

    def state(self) -> dict[str, Any]:
        """Return the state for a checkpoint; `vars(self).update` restores it."""
        return {key: getattr(self, key) for key in STATE}

    def entries(self) -> dict[str, Any]:
        """Return the entries of the record, if a training may end before its steps."""
        if self.recipe.patience is None and self.recipe.goal is None:
            return {}
        return {"ended": self.why} | ({} if self.recipe.goal is None else {"reached": self.reached})


def training_tokens(system: System) -> int:
    """Return the tokens of one training and its pretraining, padding included."""
    phases = [system] if system.pretraining is None else [system, system.pretraining.system]
    facts = system.builder.facts
    return sum(phase.recipe.steps * phase.recipe.batch_size for phase in phases) * facts.documents * facts.max_len


class SweepTime:
    """Print the time of the whole sweep during its first run, and stop it if that is above `max_hours`."""

    def __init__(self, settings: Settings, system: System, number: int) -> None:
        self._tokens = settings.sweep["tokens"] if number == 0 else None
        self._per_step = system.recipe.batch_size * system.builder.facts.documents * system.builder.facts.max_len
        self._max_hours = settings.max_hours if settings.sweep_minutes is None else None
        self._steps, self._began = 0, 0.0

    def on_step(self) -> Paused | None:
        """Count a step; return the reason to stop the sweep, or None."""
        if self._tokens is None:
            return None
        self._steps += 1
        now = time.monotonic()
        if self._steps == 1:
            self._began = now
        if self._steps <= LEAST_STEPS or now - self._began < LEAST_SECONDS:
            return None
        seconds = (now - self._began) / (self._steps - 1) / self._per_step * self._tokens
        self._tokens = None
        say(f"the sweep takes about {span(seconds)} without evaluations, at the speed of its first run")
        if self._max_hours is not None and seconds / 3600 > self._max_hours:
            limit = f"{span(seconds)} is above max_hours={self._max_hours:g}; use max_hours=null, or sweep_minutes=..."
            return Paused(limit, code=CONFIG_ERROR)
        return None
