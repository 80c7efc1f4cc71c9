"""Processes that do not outlive the one that started them."""

import ctypes
import os
import signal

PR_SET_PDEATHSIG = 1  # of prctl(2)


def end_with(parent: int) -> None:
    """Let the system kill this process when the process `parent`, which started it, ends in whatever way.

    Only Linux does that: elsewhere nothing happens, unless the parent has ended already.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "prctl"):
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the system was told
        os._exit(1)
