"""Stop a training early if its task is solved, or if its validation makes no progress."""

import math
from typing import Any

from lra.training.recipe import Recipe

REACHED = (50, 90, 99)  # validation accuracies in percent; with a goal, the first step to reach each is recorded
GOALS = 2  # number of consecutive evaluations at `train.goal` that solve a task
STATE = ("step", "why", "at_goal", "progress", "reached")  # attributes saved in checkpoints


def is_better(now: dict[str, Any], best: dict[str, Any], metric: str) -> bool:
    """Return True if the evaluation `now` is better than `best` by `metric`, or if `best` is empty.

    Of equal evaluations the first stays the best; a loss that is not finite is worse than any finite one.
    """
    if not best:
        return True
    if metric == "accuracy":
        return now["accuracy"] > best["accuracy"]
    losses = (each["loss"] for each in (now, best))
    loss_now, loss_best = (math.inf if loss is None or not math.isfinite(loss) else loss for loss in losses)
    return loss_now < loss_best


class StoppingRule:
    """Early-stopping rule of a training.

    A task is solved at a validation accuracy of `train.goal` in two consecutive evaluations. Progress is a better
    validation score; if `train.progress` is set, it is instead an error that has dropped by more than this fraction
    since the last progress. If there is none for `train.patience` evaluations after the warm-up, the training
    ends with `train.cooldown` steps of a falling learning rate.

    Attributes:
        step: number of steps after which the training ends.
        why: the reason: `steps`, `solved` or `no progress`.
    """

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.step, self.why = recipe.steps, "steps"  # initial values, until an evaluation ends the run earlier
        self.at_goal = 0  # number of latest evaluations in a row that reached the goal
        self.reached: dict[str, dict[str, float]] = {}  # step, tokens, seconds at each of REACHED, if there is a goal
        self.progress: dict[str, Any] | None = None  # step and error (percent) of the last progress

    def update(self, last: dict[str, Any], best_step: int, tokens: int, seconds: float) -> None:
        """Decide after the evaluation `last`, an entry of the record, when the training ends.

        `tokens` and `seconds` are totals of the training so far; `seconds` includes evaluations.
        """
        recipe, step = self.recipe, last["step"]
        if recipe.goal is not None:
            for percent in (percent for percent in REACHED if last["accuracy"] >= percent):
                self.reached.setdefault(str(percent), {"step": step, "tokens": tokens, "seconds": seconds})
            self.at_goal = self.at_goal + 1 if last["accuracy"] >= recipe.goal else 0
            if self.at_goal == GOALS:
                self.step, self.why = step, "solved"
        progress = best_step
        if recipe.progress is not None:
            wrong = 100 - last["accuracy"]
            # Relative to the error at the last progress, so that slow gains add up.
            if self.progress is None or wrong < (1 - recipe.progress) * self.progress["wrong"]:
                self.progress = {"step": step, "wrong": wrong}
            progress = self.progress["step"]
        cooled = step + (recipe.cooldown or 0)
        # Without room for a cooldown before the last step, the run goes on to that step. This is decided once: later
        # evaluations do not prolong the cooldown.
        if self.why == "steps" and cooled < recipe.steps and self.out_of_patience(step, progress):
            self.step, self.why = cooled, "no progress"

    def out_of_patience(self, step: int, last_progress: int) -> bool:
        """Return True if at least `patience * eval_every` steps have passed since the last progress and the warm-up."""
        recipe = self.recipe
        if recipe.patience is None:
            return False
        return step - max(last_progress, recipe.warmup) >= recipe.patience * recipe.eval_every

    def state_dict(self) -> dict[str, Any]:
        """Return the state as JSON values."""
        return {key: getattr(self, key) for key in STATE}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state from `state_dict`."""
        for key in STATE:
            setattr(self, key, state[key])

    def entries(self) -> dict[str, Any]:
        """Return the record's entries about early stopping; empty if the recipe does not use it."""
        if self.recipe.patience is None and self.recipe.goal is None:
            return {}
        return {"ended": self.why} | ({} if self.recipe.goal is None else {"reached": self.reached})
