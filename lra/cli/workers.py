"""joblib's workers in a sweep that is asked to stop: they save their runs first.

joblib kills them where anything is raised in the driver. So the driver, when it hears a signal, hands it on to them and
waits; a worker that was told ends its run as a run by itself would, and begins no other.
"""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from lra.core import locks
from lra.core.console import say
from lra.core.signals import ASKING, Paused

_told: list[int] = []
_in_a_run = False


def told() -> bool:
    """In a worker: whether it was told to stop."""
    return bool(_told)


@contextmanager
def stoppable() -> Iterator[None]:
    """In a worker, around a run: a signal raises `Paused` where the run does not listen yet. Between runs, in joblib's
    own code, signals are remembered from now on."""
    global _in_a_run
    for number in ASKING:
        signal.signal(number, _hear)
    _in_a_run = True
    try:
        if _told:
            raise Paused.by(_told[0])
        yield
    finally:
        _in_a_run = False


def _hear(number: int, frame: FrameType | None) -> None:
    _told.append(number)
    if _in_a_run and frame is not None:  # a run that has heeded a signal hands it on without a frame
        raise Paused.by(number)


@contextmanager
def saved_first(folders: Sequence[Path], lock: str) -> Iterator[None]:
    """While workers train the runs of these folders: a signal is heeded when they hold no `lock` there any longer, a
    second one at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in ASKING}
    asked: list[int] = []

    def hear(number: int, frame: FrameType | None) -> None:
        if not asked:
            asked.append(number)
            _stop_workers(signal.Signals(number).name, [folder / lock for folder in folders])
        heed = before[number]
        if callable(heed):
            heed(number, frame)

    for number in ASKING:
        signal.signal(number, hear)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _stop_workers(asked: str, files: Sequence[Path]) -> None:
    workers = [worker.pid for worker in multiprocessing.active_children() if worker.pid is not None]
    if workers:
        say(f"lra-train: {asked}: the runs stop after their steps; again: now")
    for worker in workers:
        with suppress(ProcessLookupError):
            os.kill(worker, signal.SIGTERM)
    while any(locks.held_by(file, worker) for file in files for worker in workers):
        time.sleep(locks.WAIT_SECONDS)
