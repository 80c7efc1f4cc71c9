"""Locks: one holder at a time, and free when their holder ends, however it ends."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lra.core import locks
from lra.records.names import LOCK

HOLD = """
import sys, time
from pathlib import Path
from lra.core.locks import hold
with hold(Path(sys.argv[1]), 0):
    print(flush=True)
    time.sleep(600)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / LOCK


def test_a_lock_has_one_holder_at_a_time(path: Path) -> None:
    assert locks.holder(path) is None
    with locks.hold(path, 0):
        assert str(path) in locks.holder(path)
        with pytest.raises(locks.Held, match=LOCK), locks.hold(path, 0.1):
            pass
    assert locks.holder(path) is None
    with locks.hold(path, 0):
        pass


def test_a_killed_process_holds_nothing(path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        process.send_signal(signal.SIGSTOP)
        with pytest.raises(locks.Held), locks.hold(path, 0.2):
            pass
        process.kill()
    with locks.hold(path, 0):
        assert locks.holder(path) is not None


def test_a_child_that_lives_on_does_not_keep_a_lock(path: Path) -> None:
    """A child forked meanwhile, such as a logger's, inherits the descriptor."""
    with locks.hold(path, 0):
        child = os.fork()
        if not child:
            time.sleep(600)
            os._exit(0)
    try:
        assert locks.holder(path) is None
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
