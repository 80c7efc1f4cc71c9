"""How a run is asked to stop: by a signal or by a time limit; and what it then does.

SIGTERM, SIGUSR1, SIGUSR2 (SLURM's warnings) and a first SIGINT ask; the run ends its step, or the part of an evaluation
that it is in, saves its state and ends with a code of its own: 75, try again, or 130 after SIGINT. A second SIGINT
stops at once.
"""

import os
import signal
import threading
import time
from types import FrameType

PAUSED, INTERRUPTED = 75, 130
NAMES = ("SIGTERM", "SIGUSR1", "SIGUSR2", "SIGINT")
ASKING = tuple(getattr(signal, name) for name in NAMES if hasattr(signal, name))  # Windows lacks two of them
STARTED = time.monotonic()


class Paused(BaseException):
    """A run, or a sweep between two of them, stopped before its end; the same command goes on with it. `code`: the exit
    code; `alone`: nothing else has to stop; `title`: of what was stopped.

    Like KeyboardInterrupt it is no Exception, so that code which handles exceptions does not take it for a failure.
    """

    def __init__(self, reason: str, code: int = PAUSED, alone: bool = False) -> None:
        super().__init__(reason)
        self.code, self.alone, self.title = code, alone, "lra-train"

    @property
    def line(self) -> str:
        """For people."""
        return f"{self.title}: paused ({self}); the same command goes on"


def hand_on(number: int) -> None:
    """Let a handler that is not Python's own hear a signal that we have heeded."""
    handler = signal.getsignal(number)
    if callable(handler) and handler is not signal.default_int_handler:
        handler(number, None)


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

    def __enter__(self) -> "Requests":
        if threading.current_thread() is threading.main_thread():
            for number in ASKING:
                self._handlers[number] = signal.signal(number, self._hear)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        if self._number is not None and kind is not KeyboardInterrupt:
            hand_on(self._number)

    def _hear(self, number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGINT and self._asked is not None and not self._one_of_many:
            raise KeyboardInterrupt
        if self._asked is None:
            self._number = number
            self._asked = Paused(signal.Signals(number).name, INTERRUPTED if number == signal.SIGINT else PAUSED)
        if not self._patient:
            raise self._asked
        if not self._one_of_many:  # the handler may have interrupted a print: no buffer is touched
            os.write(2, f"\nlra-train: {self._asked}: stopping after this step, with its state saved\n".encode())

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
