"""Messages and progress on standard error: bars in a terminal, plain lines elsewhere."""

import os
import sys
import time
from contextlib import ExitStack, suppress
from typing import Self

from lra.core.errors import printable

SECONDS_BETWEEN_LINES = 10.0
MOMENT = 1.0  # seconds; parts of a step or of an evaluation are shown if it takes longer
_bars = True


def without_bars() -> None:
    """Print plain lines from now on: bars of several processes in one terminal would overwrite each other."""
    global _bars
    _bars = False


def say(message: str, to_stdout: bool = False) -> None:
    """Print a message on standard error or standard output, with control characters escaped.

    A message that cannot be written is dropped.
    """
    with suppress(OSError):
        file = sys.stdout if to_stdout else sys.stderr
        lines = "\n".join(map(printable, message.split("\n")))
        print(f"{lines}\n", end="", file=file, flush=True)  # in one piece, also from a thread


def plural(number: int, noun: str) -> str:
    """1 run, 2 runs."""
    return f"{number} {noun}{'s' * (number != 1)}"


def span(seconds: float) -> str:
    """A length of time for people: 77 s, 21 min, 394 h."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.3g} h"


class Bar:
    """Context manager that shows the progress of `total` units, of which an earlier process did `done`: a bar in a
    terminal, elsewhere a line every 10 seconds."""

    def __init__(self, title: str, total: int, done: int = 0) -> None:
        self.title, self.total, self._before = title, total, done
        self._started = self._last_line = time.monotonic()
        self._bar = None
        if _bars and sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
            from lra.core.bars import TerminalBar

            self._bar = TerminalBar(printable(title), total, done)

    def __enter__(self) -> Self:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar:
            self._bar.stop()

    def update(self, done: float, note: str = "") -> None:
        """Show `done` units, and a note beside them."""
        now = time.monotonic()
        if self._bar:
            self._bar.note = printable(note)
            self._bar.update(self._bar.task_ids[0], completed=done, total=self.total)
        elif now - self._last_line >= SECONDS_BETWEEN_LINES:
            self._last_line = now
            left = (now - self._started) / ((done - self._before) or 1) * (self.total - done)
            say(f"{self.title}: {int(done)}/{self.total} {note}{note and ', '}{span(left)} left")


class Parts(ExitStack):
    """Context manager and callback (done, total) for the progress of work that reports its size when it is called."""

    def __init__(self, title: str) -> None:
        super().__init__()
        self.title = title
        self._bar: Bar | None = None

    def __call__(self, done: int, total: int) -> None:
        if self._bar is None:
            self._bar = self.enter_context(Bar(self.title, total))
        self._bar.total = total
        self._bar.update(done)


class Preparation(Parts):
    """Progress of data preparation; silent if the data are prepared."""

    def __call__(self, done: int, total: int) -> None:
        if self._bar is None:
            say(f"{self.title}: preparing the data, once")
        super().__call__(done, total)


class TrainingBar(Bar):
    """Progress of one run: step, loss, validation score, tokens per second, time left."""

    def __init__(self, title: str, steps: int, done: int) -> None:
        super().__init__(title, steps, done)
        self._done, self._score = done, ""
        self._clock, self._tokens, self._rate = time.monotonic(), 0, 0.0
        self._part_began = self._clock
        self._evaluated = False

    def within(self, done: int, total: int) -> None:
        """Between the micro-batches of a step, in examples."""
        self._part("this step", done, total, self._done + done / total)

    def step(self, done: int, loss: float, tokens: int) -> None:
        """After an update that read `tokens`; the rate is that since the last evaluation."""
        now = time.monotonic()
        if self._evaluated:
            self._clock, self._tokens, self._evaluated = now, 0, False
        else:
            self._tokens += tokens
            self._rate = self._tokens / max(now - self._clock, 1e-9)
        self._done = done
        self.update(done, f"loss {loss:.3f}{self._score}, {self._rate:,.0f} tokens/s")

    def evaluating(self, step: int, done: int, total: int) -> None:
        """Between the parts of an evaluation after `step`, in examples."""
        self._done = step
        self._part("evaluating", done, total, step)

    def evaluated(self, score: str) -> None:
        """After an evaluation."""
        self._score, self._evaluated = f", validation {score}", True

    def _part(self, name: str, done: int, total: int, units: float) -> None:
        now = time.monotonic()
        if done == 0:
            self._part_began = now
        if now - self._part_began > MOMENT:
            self.update(units, f"{name} {done:,}/{total:,}")
