"""Processes that do not outlive the one that started them."""

import ctypes
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection
from threading import Thread
from typing import Any

from lra.core.signals import ASKING

PR_SET_PDEATHSIG = 1  # of prctl(2)


def die_with_parent(parent: int) -> None:
    """Let the system kill this process when the process `parent`, which started it, ends in whatever way.

    Only Linux does that: elsewhere nothing happens, unless the parent has ended already.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "prctl"):
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the system was told
        os._exit(1)


def results_from_child(work: Callable[..., None], *arguments: Any, seconds: float | None = None) -> Iterator[Any]:
    """What `work(send, *arguments)` sends from a child, which leaves nothing in this process and is killed when the
    seconds are over. Raises ChildProcessError, with the name of the signal, where it was killed otherwise."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_child, args=(work, arguments, sender, os.getpid()), daemon=True)
    child.start()
    sender.close()
    end = None if seconds is None else time.monotonic() + seconds
    try:
        with suppress(EOFError):
            while receiver.poll(end if end is None else max(0.0, end - time.monotonic())):
                yield receiver.recv()
            return
        child.join()
        if child.exitcode < 0 and -child.exitcode not in ASKING:
            raise ChildProcessError(signal.Signals(-child.exitcode).name)
    finally:
        child.kill()
        child.join()


def _child(work: Callable[..., None], arguments: tuple, sender: Connection, parent: int) -> None:
    die_with_parent(parent)
    for number in ASKING:
        signal.signal(number, signal.SIG_DFL)
    # OpenMP keeps the threads of a pool by the thread that began it. This one's, if the parent has used it, are not in
    # the child, which would wait for them for ever; those of a new thread are.
    worker = Thread(target=work, args=(sender.send, *arguments))
    worker.start()
    worker.join()
