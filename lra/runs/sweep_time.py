"""Estimate of the time of a whole sweep, from the first steps of its first run."""

import time

from lra.core.console import say, span
from lra.core.errors import CONFIG_ERROR
from lra.core.signals import Paused
from lra.runs.build import Components, Job

MIN_STEPS, MIN_SECONDS = 3, 5.0  # measured before the estimate, without the first step


def training_tokens(components: Components) -> int:
    """Return the number of tokens in one training and its pretraining, padding included."""
    phases = [components] if components.pretraining is None else [components, components.pretraining.components]
    spec = components.builder.spec
    return sum(phase.recipe.steps * phase.recipe.batch_size for phase in phases) * spec.documents * spec.max_len


class SweepTime:
    """Estimator that prints the time of the sweep during its first run, and stops a sweep above `max_hours`."""

    def __init__(self, job: Job) -> None:
        settings, spec = job.settings, job.components.builder.spec
        self._tokens = settings.sweep.tokens if job.number == 0 else None
        self._per_step = settings.train.batch_size * spec.documents * spec.max_len
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
        if self._steps <= MIN_STEPS or now - self._began < MIN_SECONDS:
            return None
        seconds = (now - self._began) / (self._steps - 1) / self._per_step * self._tokens
        self._tokens = None
        say(f"the sweep takes about {span(seconds)} without evaluations, at the speed of its first run")
        if self._max_hours is not None and seconds / 3600 > self._max_hours:
            limit = f"{span(seconds)} is above max_hours={self._max_hours:g}; use max_hours=null, or sweep_minutes=..."
            return Paused(limit, code=CONFIG_ERROR)
        return None
