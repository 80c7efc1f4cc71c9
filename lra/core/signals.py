"""Stop a run at a signal or at a time limit.

The run finishes its current step, saves its state and ends with exit code 130 (SIGINT), 143 (SIGTERM), 129 (SIGHUP),
128 plus the number of another signal that a scheduler sends before a time limit, or 75 (time limit). Except under
torchrun and joblib, a second SIGINT, or a SIGTERM later than `REPEAT_SECONDS` after the first signal, ends the process
at once; rerunning the command then resumes the run from its last checkpoint.

A `StopFlag` is active inside `with stop` in `lra/runs/`: while the trainer is made, in pretraining and in training.
While data are prepared and in the final test, a signal ends the process at once, except in a joblib worker, which
records it in `worker_flag`. After a signal in the test, rerunning the command repeats only the test.
"""

import os
import signal
import threading
import time
from contextlib import suppress
from types import FrameType
from typing import Any

PAUSED = 75  # exit code at a time limit, or while another process trains the run
# Signals that end the process if they come second. SIGHUP does not, because a shell repeats it.
ENDING = (signal.SIGINT, signal.SIGTERM)
ASKING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # the first of these makes the run pause
# Signals that schedulers send before a time limit, as with `sbatch --signal=USR1@300`.
WARNINGS = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU)
# A SIGTERM within this time after the first signal is a repetition: `timeout` sends SIGTERM to the process and again to
# its group.
REPEAT_SECONDS = 1.0
STARTED = time.monotonic()  # start of the command, from which time limits count


class Paused(BaseException):
    """Raised when a run stops before its end; rerunning the command resumes it.

    The reason names what stopped the run, such as a signal or a time limit; `code` is the exit code. Like
    KeyboardInterrupt it is not an Exception, so that `except Exception` does not treat it as a failure.
    """

    def __init__(self, reason: str, code: int = PAUSED) -> None:
        super().__init__(reason)
        self.code, self.title = code, "lra-train"

    @property
    def line(self) -> str:
        """Message to print when the run pauses."""
        return f"{self.title}: paused ({self}); rerun the command to resume"


class StopFlag:
    """Context manager that records the first signal; a training loop reads the flag between steps.

    It handles the signals in `ASKING`, and those in `WARNINGS` for which no other library has a handler. For example,
    submitit handles some of them.

    Args:
        minutes: time limit of the command, from its start; None for no limit.
        repeated: True if a launcher sends the terminal's signals again, as torchrun does; a second signal is then
            ignored.
    """

    def __init__(self, minutes: float | None = None, repeated: bool = False) -> None:
        self._minutes, self._repeated = minutes, repeated
        self._handlers: dict[int, Any] = {}
        self._number: int | None = None
        self._since = 0.0

    def __enter__(self) -> "StopFlag":
        # Python lets only the main thread set handlers; `lra.train` may be called from another one.
        if threading.current_thread() is threading.main_thread():
            ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN  # nohup ignores SIGHUP
            numbers = [number for number in ASKING if not (number == signal.SIGHUP and ignored)]
            outer = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
            if isinstance(outer, StopFlag) and self._number is None:  # take over a signal that came earlier
                self._number, self._since = outer._number, outer._since
            # Handle a warning only if its handler is the default one or that of an outer flag.
            free = (signal.SIG_DFL, getattr(outer, "_set", None))
            numbers += [number for number in WARNINGS if signal.getsignal(number) in free]
            self._handlers = {number: signal.signal(number, self._set) for number in numbers}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def _set(self, number: int, _frame: FrameType | None) -> None:
        now = time.monotonic()
        if self._number is not None:
            is_echo = number == signal.SIGTERM and now < self._since + REPEAT_SECONDS
            if number in ENDING and not self._repeated and not is_echo:
                # The default handler ends the process with the status that shells expect after this signal.
                signal.signal(number, signal.SIG_DFL)
                signal.raise_signal(number)
            return
        self._number, self._since = number, now
        again = "" if self._repeated else "; again: stop now"
        # Not `print`: the signal may have interrupted a print, whose lock or buffer is not reentrant.
        with suppress(OSError):  # after SIGHUP the terminal is gone
            os.write(2, f"\n{signal.Signals(number).name}: stopping after this step{again}\n".encode())

    def signalled(self) -> Paused | None:
        """Return the `Paused` to raise after a signal; None without one."""
        return None if self._number is None else Paused(signal.Signals(self._number).name, 128 + self._number)

    def pending(self) -> Paused | None:
        """Return the `Paused` to raise after a signal or at the time limit; None if the run can continue."""
        # After both, the signal is the reason: its exit code tells a scheduler why the run ended.
        if self._minutes is not None and time.monotonic() >= STARTED + 60 * self._minutes:
            return self.signalled() or Paused(f"the limit sweep_minutes={self._minutes:g} is reached")
        return self.signalled()


worker_flag = StopFlag(repeated=True)
"""Flag for signals that a joblib worker receives outside training: its run then pauses, and no other run starts."""


def keep_worker() -> None:
    """Record signals in `worker_flag` instead of ending this worker: if one worker dies, joblib kills the others."""
    worker_flag.__enter__()
