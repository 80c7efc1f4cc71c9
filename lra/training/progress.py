"""Show the progress of a training in the terminal."""

import time

from lra.core.console import Bar

MOMENT = 1.0  # seconds after which the progress of an evaluation is shown


class TrainingBar(Bar):
    """Progress bar of one run: step, loss, validation score, tokens per second, time left."""

    def __init__(self, title: str, steps: int, done: int) -> None:
        super().__init__(title, steps, done)
        self._score, self._tokens, self._rate = "", 0, 0.0
        self._clock = self._began = time.monotonic()  # times at the end and start of the last evaluation
        self._evaluated = False

    def step(self, done: int, loss: float, tokens: int) -> None:
        """Show the loss of an update that read `tokens`, and the token rate since the last evaluation."""
        now = time.monotonic()
        if self._evaluated:
            self._clock, self._tokens, self._evaluated = now, 0, False
        else:
            self._tokens += tokens
            self._rate = self._tokens / max(now - self._clock, 1e-9)
        self.update(done, f"loss {loss:.3f}{self._score}, {self._rate:,.0f} tokens/s")

    def evaluating(self, step: int, done: int, total: int) -> None:
        """Show how many of the `total` examples of an evaluation after `step` are done."""
        now = time.monotonic()
        if done == 0:
            self._began = now
        if now - self._began > MOMENT:
            self.update(step, f"evaluating {done:,}/{total:,}")

    def evaluated(self, score: str) -> None:
        """Store the score of an evaluation, which later updates of the bar show."""
        self._score, self._evaluated = f", validation {score}", True
