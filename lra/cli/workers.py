"""Signals in a joblib sweep: the driver forwards them; its workers save their runs and start no others.

joblib kills its workers if the driver raises anything, so the driver sets a flag and waits for them.
"""

import multiprocessing
import os
import signal
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from lra.core.signals import ASKING, Paused, StopFlag, by_signal

_signalled = False
_in_a_run = False


class Forwarding(StopFlag):
    """The stop flag of the driver."""

    def _set(self, number: int, frame: FrameType | None) -> None:
        super()._set(number, frame)
        warnings.filterwarnings("ignore", "A worker stopped while some jobs were given", UserWarning)  # of joblib
        for worker in multiprocessing.active_children():
            with suppress(ProcessLookupError):
                os.kill(worker.pid, signal.SIGTERM)


def told() -> bool:
    """In a worker: True after a signal."""
    return _signalled


@contextmanager
def stoppable() -> Iterator[None]:
    """In a worker, around a run: a signal outside of training raises `Paused`; between runs it is remembered."""
    global _in_a_run
    for number in ASKING:
        signal.signal(number, _hear)
    _in_a_run = True
    try:
        yield
    except Paused as pause:
        _remember(pause)
        raise
    finally:
        _in_a_run = False


def _remember(pause: Paused) -> None:
    global _signalled
    _signalled = _signalled or not pause.alone


def _hear(number: int, _frame: FrameType | None) -> None:
    pause = by_signal(number)
    _remember(pause)
    if _in_a_run:
        raise pause
