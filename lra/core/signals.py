"""One stop flag for a run: set by SIGINT, SIGTERM or SIGHUP, or when its time is up.

The run finishes its step, saves its state and ends with exit code 130 (SIGINT), 143 (SIGTERM), 129 (SIGHUP) or 75 (time
limit). A second SIGINT or SIGTERM ends the process at once; the run then resumes from its last checkpoint.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

PAUSED, INTERRUPTED = 75, 130
ASKING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
STARTED = time.monotonic()


class Paused(BaseException):
    """A run stopped before its end; rerunning the command resumes it.

    Not an Exception, like KeyboardInterrupt, so that handlers of failures let it pass.

    Args:
        reason: the signal, or the limit that was reached.
        code: exit code.
    """

    def __init__(self, reason: str, code: int = PAUSED) -> None:
        super().__init__(reason)
        self.code, self.title = code, "lra-train"

    @property
    def line(self) -> str:
        """Message to print."""
        return f"{self.title}: paused ({self}); rerun the command to resume"


class StopFlag:
    """Context manager that turns the first signal of `ASKING` into a flag, which a training loop reads between steps.

    Args:
        minutes: limit of the whole command, from its start; None: no limit.
        repeated: True if a launcher repeats the terminal's signals, as torchrun does; a second signal is then ignored.
    """

    def __init__(self, minutes: float | None = None, repeated: bool = False) -> None:
        self._minutes, self._repeated = minutes, repeated
        self._handlers: dict[int, Any] = {}
        self._number: int | None = None

    def __enter__(self) -> "StopFlag":
        if threading.current_thread() is threading.main_thread():
            ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN  # by nohup
            numbers = [number for number in ASKING if not (number == signal.SIGHUP and ignored)]
            self._handlers = {number: signal.signal(number, self._set) for number in numbers}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def _set(self, number: int, _frame: FrameType | None) -> None:
        if self._number is not None:
            return
        self._number = number
        if not self._repeated:
            for each in (signal.SIGINT, signal.SIGTERM):  # a shell repeats SIGHUP
                signal.signal(each, signal.SIG_DFL)
        again = "" if self._repeated else "; again: stop now"
        with suppress(OSError):  # after SIGHUP the terminal is gone
            os.write(2, f"\n{signal.Signals(number).name}: stopping after this step{again}\n".encode())

    def signalled(self) -> Paused | None:
        """Return the pause that a signal asked for."""
        return None if self._number is None else Paused(signal.Signals(self._number).name, 128 + self._number)

    def pending(self) -> Paused | None:
        """Return the pause that a signal or the time limit asks for."""
        if self._minutes is not None and time.monotonic() >= STARTED + 60 * self._minutes:
            return self.signalled() or Paused(f"sweep_minutes={self._minutes:g} are over")
        return self.signalled()


@contextmanager
def interruptible(program: str) -> Iterator[None]:
    """Exit with one line and code 130 on Ctrl-C."""
    try:
        yield
    except KeyboardInterrupt:
        print(f"\n{program}: interrupted; rerun the command to resume", file=sys.stderr)
        raise SystemExit(INTERRUPTED) from None
