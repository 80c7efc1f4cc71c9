"""What a person sees while something runs, on standard error: bars in a terminal, plain lines elsewhere."""

import sys
import time
from contextlib import suppress

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from lra.core.errors import printable

SECONDS_BETWEEN_LINES = 10.0
_bars = True


def without_bars() -> None:
    """Plain lines from now on: several processes write into this terminal, and their bars would cross each other."""
    global _bars
    _bars = False


def say(message: str, to_stdout: bool = False) -> None:
    """Print a message on standard error or standard output; a message that cannot be written is dropped.

    Control characters in it are shown and not sent to the terminal.
    """
    with suppress(OSError):
        file = sys.stdout if to_stdout else sys.stderr
        lines = "\n".join(map(printable, message.split("\n")))
        print(f"{lines}\n", end="", file=file, flush=True)  # in one piece, also from a thread


class Bar:
    """Progress of one piece of work of `total` units, `done` of which another process did; a context manager."""

    def __init__(self, title: str, total: int, done: int = 0) -> None:
        self.title, self.total, self._before = title, total, done
        self._bar: Progress | None = None
        self._started = self._last_line = time.monotonic()
        if _bars and sys.stderr.isatty():
            columns = [TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn()]
            columns += [TextColumn("{task.fields[note]}", markup=False), TimeRemainingColumn()]
            self._bar = Progress(*columns, console=Console(stderr=True), transient=True, refresh_per_second=4)
            self._task = self._bar.add_task(printable(title), total=total, completed=done, note="")

    def __enter__(self) -> "Bar":
        if self._bar:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar:
            self._bar.stop()

    def update(self, done: int, note: str = "", left: float | None = None) -> None:
        """`done` units of `total`; `note` stands beside them; `left`: seconds, where another pace counts."""
        if self._bar:
            self._bar.update(self._task, completed=done, total=self.total, note=note)
            return
        now = time.monotonic()
        if now - self._last_line < SECONDS_BETWEEN_LINES:
            return
        self._last_line = now
        if left is None:
            left = (now - self._started) / max(done - self._before, 1) * (self.total - done)
        say(f"{self.title}: {done}/{self.total} {note} {left:.0f} s left")


class Parts:
    """Progress of work that tells how much there is when it is called: silent until then. A context manager."""

    def __init__(self, title: str) -> None:
        self.title = title
        self._bar: Bar | None = None

    def __enter__(self) -> "Parts":
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar:
            self._bar.__exit__()

    def __call__(self, done: int, total: int) -> None:
        if self._bar is None:
            self._bar = Bar(self.title, total).__enter__()
        self._bar.total = total
        self._bar.update(done)


class Preparation(Parts):
    """Progress of data preparation, which is announced; silent where the data are there already."""

    def __call__(self, done: int, total: int) -> None:
        if self._bar is None:
            say(f"{self.title}: preparing the data, once")
        super().__call__(done, total)


class TrainingBar:
    """The bar of one run: step, loss, validation score, tokens per second, time left."""

    def __init__(self, title: str, steps: int, done: int) -> None:
        self._bar = Bar(title, steps, done)
        self._done, self._score = done, ""
        self._clock, self._tokens, self._rate = time.monotonic(), 0, 0.0
        self._evaluated = False

    def __enter__(self) -> "TrainingBar":
        self._bar.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.__exit__()

    def step(self, done: int, loss: float, tokens: int) -> None:
        """After an update that read `tokens`; the rate is that since the last evaluation."""
        now = time.monotonic()
        if self._evaluated:
            self._clock, self._tokens, self._evaluated = now, 0, False
        else:
            self._tokens += tokens
            self._rate = self._tokens / max(now - self._clock, 1e-9)
        self._done = done
        self._bar.update(done, f"loss {loss:.3f}{self._score}, {self._rate:,.0f} tokens/s,")

    def evaluating(self, done: int, total: int) -> None:
        """Between the parts of an evaluation, in examples."""
        now = time.monotonic()
        if done == 0:
            self._clock = now
        left = (now - self._clock) / max(done, 1) * (total - done)
        self._bar.update(self._done, f"evaluating {done:,}/{total:,},", left)

    def evaluated(self, score: str) -> None:
        """Before the `step` of the update that was evaluated."""
        self._score, self._evaluated = f", validation {score}", True
