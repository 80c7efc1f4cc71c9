"""Print messages, and show progress on standard error: as a bar in a terminal, as plain lines elsewhere."""

import os
import sys
import time
from contextlib import ExitStack, suppress
from typing import Any, Self

from lra.core.errors import printable

SECONDS_BETWEEN_LINES = 10.0
_bars = True


def without_bars() -> None:
    """Turn off progress bars in this process: bars of several processes in one terminal would overwrite each other."""
    global _bars
    _bars = False


def say(message: str, to_stdout: bool = False) -> None:
    """Print a message on standard error or standard output, with control characters escaped.

    A message that cannot be written is dropped.
    """
    with suppress(OSError):  # a closed terminal must not end a training
        file = sys.stdout if to_stdout else sys.stderr
        lines = "\n".join(map(printable, message.split("\n")))
        print(f"{lines}\n", end="", file=file, flush=True)  # one write, so that lines of several threads do not mix


def plural(number: int, noun: str) -> str:
    """Return a number and a noun in singular or plural: 1 run, 2 runs."""
    return f"{number} {noun}{'s' * (number != 1)}"


def span(seconds: float) -> str:
    """Return a duration in a readable unit: 77 s, 21 min, 394 h."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.3g} h"


class Bar:
    """Context manager that shows progress: a bar in a terminal, elsewhere a line every 10 seconds.

    An earlier process may have finished `done` of the `total` units of work.
    """

    def __init__(self, title: str, total: int, done: int = 0) -> None:
        self.title, self.total, self._before = title, total, done
        self._started = self._last_line = time.monotonic()  # so that work of less than 10 s prints no line
        self._bar: Any = None
        if not (_bars and sys.stderr.isatty() and os.environ.get("TERM") != "dumb"):
            return
        from rich.console import Console  # imported here because it takes a tenth of a second
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
        from rich.table import Column

        narrow = Column(no_wrap=True, overflow="ellipsis", ratio=1)
        self._bar = Progress(
            TextColumn("{task.description}", markup=False, table_column=narrow),
            BarColumn(10),
            MofNCompleteColumn(),
            TimeRemainingColumn(compact=True),
            TextColumn("{task.fields[note]}", markup=False, table_column=narrow),
            console=Console(stderr=True),
            transient=True,
            expand=True,
            speed_estimate_period=600,  # seconds: longer than an evaluation, during which no step is done
        )
        self._task = self._bar.add_task(printable(title), total=total, completed=done, note="")

    def __enter__(self) -> Self:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar:
            with suppress(OSError):  # the terminal may be gone
                self._bar.stop()

    def update(self, done: float, note: str = "") -> None:
        """Show the number `done` of finished units, and a note."""
        now = time.monotonic()
        if self._bar:
            self._bar.update(self._task, completed=done, total=self.total, note=printable(note))
        elif now - self._last_line >= SECONDS_BETWEEN_LINES:
            self._last_line = now
            left = (now - self._started) / ((done - self._before) or 1) * (self.total - done)
            say(f"{self.title}: {int(done)}/{self.total} {note}{note and ', '}{span(left)} left")


class ProgressBar(ExitStack):
    """Callable progress bar: each call passes (done, total), so the total need not be known in advance.

    The message `announced` is printed at the first call.
    """

    def __init__(self, title: str, announced: str = "") -> None:
        super().__init__()
        self.title, self.announced = title, announced
        self._bar: Bar | None = None

    def __call__(self, done: int, total: int) -> None:
        if self._bar is None:
            if self.announced:
                say(f"{self.title}: {self.announced}")
            self._bar = self.enter_context(Bar(self.title, total))
        self._bar.total = total
        self._bar.update(done)
