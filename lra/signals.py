"""How a run is asked to stop: by a signal or by a time limit; and what it then does.

SIGTERM, SIGUSR1 (SLURM's warning) and a first SIGINT ask; the run ends its step, saves its state and ends with a code
of its own: 75, try again, or 130 after SIGINT. A second SIGINT stops at once.
"""

import signal
import threading
import time
from types import FrameType

PAUSED, INTERRUPTED = 75, 130
STARTED = time.monotonic()


class Paused(BaseException):
    """A run stopped before its end; the same command goes on with it. `code`: the exit code.

    As KeyboardInterrupt no Exception, so that nothing that handles those takes it for a failure of its own.
    """

    def __init__(self, reason: str, code: int = PAUSED) -> None:
        super().__init__(reason)
        self.code = code


class Requests:
    """A context manager that listens. Between steps, `heed` raises `Paused` if someone asked or time is up; outside
    of `patiently`, where nothing would be lost, a signal raises it at once.

    `minutes`: from now on; `sweep_minutes`: from the start of the process.
    """

    def __init__(self, minutes: float | None, sweep_minutes: float | None) -> None:
        ends = []
        if minutes is not None:
            ends.append((time.monotonic() + 60 * minutes, f"train.minutes={minutes:g} are over"))
        if sweep_minutes is not None:
            ends.append((STARTED + 60 * sweep_minutes, f"sweep_minutes={sweep_minutes:g} are over"))
        self._end, self._end_reason = min(ends, default=(None, ""))
        self._asked: Paused | None = None
        self._patient = False
        self._handlers: dict[int, object] = {}

    def __enter__(self) -> "Requests":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
                self._handlers[number] = signal.signal(number, self._hear)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def _hear(self, number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGINT and self._asked is not None:
            raise KeyboardInterrupt
        self._asked = Paused(signal.Signals(number).name, INTERRUPTED if number == signal.SIGINT else PAUSED)
        if not self._patient:
            raise self._asked

    def patiently(self, patient: bool) -> None:
        """From now on, let signals wait for `heed`, or no longer."""
        self._patient = patient
        if not patient:
            self.heed()

    def heed(self) -> None:
        """Raises `Paused` if someone asked or the time is up."""
        if self._asked is not None:
            raise self._asked
        if self._end is not None and time.monotonic() >= self._end:
            raise Paused(self._end_reason)
