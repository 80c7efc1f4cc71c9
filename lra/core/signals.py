"""How a run is asked to stop: by a signal or by a time limit; and what it then does.

SIGTERM, SIGUSR1, SIGUSR2 (SLURM's warnings) and a first SIGINT ask; the run ends its step, or the part of an evaluation
that it is in, saves its state and ends with a code of its own: 75, try again, or 130 after SIGINT. A second SIGINT
stops at once, with the state of the last checkpoint; one after a SIGTERM is a first one, since the process that started
this one may have heard Ctrl-C, too, and handed it on as SIGTERM before the terminal's own came.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

PROGRAM = "lra-train"
SHOW_CURSOR = b"\x1b[?25h"
GRACE = 2.0  # seconds that a second SIGINT leaves the main thread to end by itself
PAUSED, INTERRUPTED = 75, 130
NAMES = ("SIGTERM", "SIGUSR1", "SIGUSR2", "SIGINT")
ASKING = tuple(getattr(signal, name) for name in NAMES if hasattr(signal, name))  # Windows lacks two of them
STARTED = time.monotonic()


class Paused(BaseException):
    """A run, or a sweep between two of them, stopped before its end; the same command goes on with it. `code`: the exit
    code; `alone`: nothing else has to stop; `title`: of what was stopped; `saved`: there is something to go on from.

    Like KeyboardInterrupt it is no Exception, so that code which handles exceptions does not take it for a failure.
    """

    def __init__(self, reason: str, code: int = PAUSED, alone: bool = False) -> None:
        super().__init__(reason)
        self.code, self.alone, self.title, self.saved = code, alone, PROGRAM, True

    @classmethod
    def by(cls, number: int) -> "Paused":
        """The pause that a signal asks for."""
        return cls(signal.Signals(number).name, INTERRUPTED if number == signal.SIGINT else PAUSED)

    @property
    def line(self) -> str:
        """The message to print."""
        if self.saved:
            return f"{self.title}: paused ({self}); the same command goes on"
        return f"{self.title}: stopped before its first step ({self}), nothing is saved; the same command begins it"


def raise_stop_behind(error: BaseException) -> None:
    """Raise what asked to stop and became an error on its way through a library, whose `finally` may fail; return where
    nothing did."""
    behind: BaseException | None = error
    while behind is not None:
        if isinstance(behind, Paused | KeyboardInterrupt):
            raise behind from None
        behind = behind.__cause__ or behind.__context__


@contextmanager
def interruptible(program: str) -> Iterator[None]:
    """Ctrl-C ends a command in one line."""
    try:
        yield
    except KeyboardInterrupt:
        print(f"\n{program}: interrupted; the same command again does what is left", file=sys.stderr)
        raise SystemExit(INTERRUPTED) from None


def hand_on(number: int) -> None:
    """Let a handler that is not Python's own hear a signal that we have heeded."""
    handler = signal.getsignal(number)
    if callable(handler) and handler is not signal.default_int_handler:
        handler(number, None)


def _tell(message: str) -> None:
    """In a line of its own: the terminal has shown ^C; a bar moves below it."""
    with suppress(OSError):
        print(f"\n{PROGRAM}: {message}", file=sys.stderr, flush=True)


class Bell:
    """A thread that hears signals at once: Python's own handlers wait for the end of an operation that runs outside of
    Python, such as the backward pass of a whole micro-batch. `hear` gets their numbers; one bell rings at a time."""

    def __init__(self, hear: Callable[[int], None]) -> None:
        self._hear = hear
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        self._before = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        while number := os.read(self._reader, 1)[0]:
            self._hear(number)

    def close(self) -> None:
        """What has rung before is heard to its end."""
        signal.set_wakeup_fd(self._before)
        os.write(self._writer, b"\0")
        self._thread.join()
        os.close(self._reader)
        os.close(self._writer)


os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))  # the bell is the parent's


class Requests:
    """A context manager that listens. Between steps, `pending` tells if someone asked or time is up; outside of
    `patiently`, where nothing would be lost, a signal raises `Paused` at once. A request that someone else listened to
    before, as a SLURM launcher that submits the job again, is handed on to them at the end.

    `minutes`: from now on; `sweep_minutes`: from the start of the process; `one_of_many`: a second SIGINT is nothing
    special, since launchers repeat what the terminal has sent already.
    """

    def __init__(self, minutes: float | None, sweep_minutes: float | None, one_of_many: bool) -> None:
        self._one_of_many = one_of_many
        self._ends: list[tuple[float, Paused]] = []
        if minutes is not None:
            over = Paused(f"train.minutes={minutes:g} are over", alone=True)
            self._ends.append((time.monotonic() + 60 * minutes, over))
        if sweep_minutes is not None:
            self._ends.append((STARTED + 60 * sweep_minutes, Paused(f"sweep_minutes={sweep_minutes:g} are over")))
        self._asked: Paused | None = None
        self._patient = False
        self._number: int | None = None
        self._handlers: dict[int, object] = {}
        self._bell: Bell | None = None
        self._rung = self._rung_by_hand = self._now = False  # the bell's
        self._by_hand = False
        self._over = threading.Event()

    def __enter__(self) -> "Requests":
        if threading.current_thread() is threading.main_thread():
            for number in ASKING:
                self._handlers[number] = signal.signal(number, self._hear)
            if not self._one_of_many:
                self._bell = Bell(self._answer)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._over.set()
        if self._bell is not None:
            self._bell.close()
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        if self._number is not None and kind is not KeyboardInterrupt:
            hand_on(self._number)

    def _answer(self, number: int) -> None:
        """In the bell's thread: say that a signal was heard; end the process after a second SIGINT that the main thread
        does not come to heed."""
        if number not in ASKING:
            return
        by_hand = number == signal.SIGINT
        if by_hand and self._rung_by_hand:
            self._now = True
            if not self._over.wait(GRACE):
                _tell("stopped; the same command goes on from the last checkpoint")
                if os.isatty(2):
                    os.write(2, SHOW_CURSOR)  # a bar has hidden it
                os._exit(INTERRUPTED)
        elif self._patient and not self._rung:
            name = signal.Signals(number).name
            _tell("stopping after this step; again: now" if by_hand else f"{name}: stopping after this step")
        self._rung = True
        self._rung_by_hand |= by_hand

    def _hear(self, number: int, _frame: FrameType | None) -> None:
        by_hand = number == signal.SIGINT
        again, self._by_hand = by_hand and (self._now or self._by_hand), self._by_hand or by_hand
        if again and not self._one_of_many:
            raise KeyboardInterrupt
        if self._asked is not None:
            return  # it is being heeded: the record of the run may be under way
        self._number = number
        self._asked = Paused.by(number)
        if not self._patient:
            raise self._asked

    def patiently(self, patient: bool) -> None:
        """From now on, let signals wait for `pending`, or no longer."""
        self._patient = patient

    def pending(self) -> Paused | None:
        """Why the run should stop now, if it should."""
        over = (pause for end, pause in self._ends if time.monotonic() >= end)
        return self._asked or next(over, None)

    def heard(self) -> Paused | None:
        """The signal that asked, if one did. Time limits wait for the end of a step, so that every start gets on."""
        return self._asked
