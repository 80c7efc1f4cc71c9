"""Named points where the tests make a run fail; nothing happens there otherwise.

`LRA_FAULT=point:n:action` acts at the n-th passing of a point: kill (SIGKILL), term, usr1, int, or full (no space).
"""

import errno
import os
import signal
from collections import Counter

SIGNALS = {"kill": signal.SIGKILL, "term": signal.SIGTERM, "usr1": signal.SIGUSR1, "int": signal.SIGINT}
_passed: Counter[str] = Counter()


def point(name: str) -> None:
    """Pass a point."""
    wanted = os.environ.get("LRA_FAULT")
    if not wanted:
        return
    where, number, action = wanted.rsplit(":", 2)
    if where != name:
        return
    _passed[name] += 1
    if _passed[name] != int(number):
        return
    if action == "full":
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), name)
    os.kill(os.getpid(), SIGNALS[action])
