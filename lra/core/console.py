"""What a person sees while something runs, on standard error: bars in a terminal, plain lines elsewhere."""

import os
import sys
import time
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from typing import Self

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column
from rich.text import Text

from lra.core.errors import printable

SECONDS_BETWEEN_LINES = 10.0
MOMENT = 1.0  # seconds; a part that takes longer has a bar of its own
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


def plural(number: int, what: str) -> str:
    """1 run, 2 runs."""
    return f"{number} {what}{'s' * (number != 1)}"


def span(seconds: float) -> str:
    """A length of time for people: 77 s, 21 min, 394 h."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.3g} h"


class Bar:
    """Progress of one piece of work of `total` units, `done` of which another process did; a context manager.

    In a terminal it is a bar, and below it one of the unit that is under way, where that takes long, and a note.
    Elsewhere it is a line every 10 seconds.
    """

    def __init__(self, title: str, total: int, done: int = 0) -> None:
        self.title, self.total, self._before = title, total, done
        self._started = self._last_line = self._part_began = time.monotonic()
        self._slow: set[str] = set()  # the parts that have taken more than a moment
        self._bar: _Bars | None = None
        if _bars and sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
            self._bar = _Bars.on_stderr()
            self._task = self._bar.add_task(printable(title), total=total, completed=done)
            self._part = self._bar.add_task("", total=1, visible=False)

    def __enter__(self) -> Self:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar:
            self._bar.stop()

    def update(self, done: int, note: str = "") -> None:
        """`done` units of `total`; `note` stands beside them."""
        if self._bar:
            self._bar.note = printable(note)
            self._bar.update(self._task, completed=done, total=self.total)
            self._bar.update(self._part, visible=False)
        else:
            self._line(done, note, self._left(done))

    def part(self, name: str, done: int, total: int, units: float, alone: bool = False) -> None:
        """Within a unit: `done` of `total` examples of a part of that name, which makes it `units` in all. A part that
        stands `alone` counts in no unit, and has its own time left."""
        now = time.monotonic()
        if done == 0:
            self._part_began = now
        if now - self._part_began > MOMENT:
            self._slow.add(name)
        if self._bar:
            self._bar.update(self._task, completed=units)
            shown = name in self._slow
            self._bar.update(self._part, description=f"  {name}", completed=done, total=total, visible=shown)
        elif name in self._slow:
            seconds = (now - self._part_began) / max(done, 1) * (total - done)
            self._line(int(units), f"{name} {done:,}/{total:,}", seconds if alone else self._left(units))

    def _left(self, units: float) -> float:
        """The seconds that are left, at the pace until now."""
        return (time.monotonic() - self._started) / ((units - self._before) or 1) * (self.total - units)

    def _line(self, done: int, note: str, left: float) -> None:
        now = time.monotonic()
        if now - self._last_line >= SECONDS_BETWEEN_LINES:
            self._last_line = now
            say(f"{self.title}: {done}/{self.total} {note}{note and ', '}{span(left)} left")


class _Bars(Progress):
    """Bars that fit their terminal: titles and the note below them are cut where they are too long."""

    note = ""

    @classmethod
    def on_stderr(cls) -> "_Bars":
        whole = Column(no_wrap=True, overflow="ellipsis", ratio=3)
        columns = [TextColumn("{task.description}", markup=False, table_column=whole)]
        columns += [BarColumn(None, table_column=Column(ratio=2)), MofNCompleteColumn(), TimeRemainingColumn()]
        console = Console(stderr=True)
        return cls(*columns, console=console, transient=True, expand=True, speed_estimate_period=600)

    def get_renderables(self) -> Iterable[RenderableType]:
        yield self.make_tasks_table([task for task in self.tasks if task.visible])
        if self.note:
            yield Text(self.note, no_wrap=True, overflow="ellipsis")


class Parts(ExitStack):
    """Progress of work that tells how much there is when it is called: silent until then. A context manager."""

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
    """Progress of data preparation, which is announced; silent where the data are there already."""

    def __call__(self, done: int, total: int) -> None:
        if self._bar is None:
            say(f"{self.title}: preparing the data, once")
        super().__call__(done, total)


class TrainingBar(Bar):
    """The bar of one run: step, loss, validation score, tokens per second, time left."""

    def __init__(self, title: str, steps: int, done: int) -> None:
        super().__init__(title, steps, done)
        self._done, self._score = done, ""
        self._clock, self._tokens, self._rate = time.monotonic(), 0, 0.0
        self._evaluated = False

    def within(self, done: int, total: int) -> None:
        """Between the parts of a step, in examples."""
        self.part("this step", done, total, self._done + done / total)

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
        self.part("evaluating", done, total, step, alone=True)

    def evaluated(self, score: str) -> None:
        """Before the `step` of the update that was evaluated."""
        self._score, self._evaluated = f", validation {score}", True
