"""Estimate the time of a whole sweep from the first steps of its first run."""

from lra.core.console import say, span
from lra.core.errors import CONFIG_ERROR
from lra.core.signals import Paused
from lra.runs.build import Components, Job

MIN_SECONDS = 5.0  # minimum training time before the estimate, without the first step


def training_tokens(components: Components) -> int:
    """Return the number of tokens in one training and its pretraining, padding included."""
    phases = [components] if components.pretraining is None else [components, components.pretraining.components]
    spec = components.builder.spec
    return sum(phase.recipe.steps * phase.recipe.batch_size for phase in phases) * spec.documents * spec.max_len


class SweepTime:
    """Estimator of a sweep's time.

    It prints the estimate after some seconds of the first run, and stops the sweep if the estimate exceeds `max_hours`
    and `sweep_minutes` is not set.
    """

    def __init__(self, job: Job) -> None:
        settings, spec = job.settings, job.components.builder.spec
        self._tokens = settings.sweep.tokens if job.number == 0 else None  # None: no estimate is due
        self._per_step = settings.train.batch_size * spec.documents * spec.max_len
        self._max_hours = settings.max_hours if settings.sweep_minutes is None else None
        self._first: tuple[int, float] | None = None

    def on_step(self, step: int, seconds: float) -> Paused | None:
        """Return the reason to stop the sweep, or None; `step` updates took `seconds`, without evaluations."""
        if self._tokens is None:
            return None
        if self._first is None:  # the first step of a process is slower than the others
            self._first = step, seconds
        steps, seconds = step - self._first[0], seconds - self._first[1]
        if steps == 0 or seconds < MIN_SECONDS:
            return None
        seconds *= self._tokens / (steps * self._per_step)
        self._tokens = None
        say(f"the sweep takes about {span(seconds)} without evaluations, at the speed of its first run")
        if self._max_hours is not None and seconds / 3600 > self._max_hours:
            limit = f"{span(seconds)} is above max_hours={self._max_hours:g}; use max_hours=null, or sweep_minutes=..."
            return Paused(limit, code=CONFIG_ERROR)
        return None
