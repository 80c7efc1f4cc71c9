"""One flag stops a run, set by a signal or a time limit; locks have one holder at a time."""

import os
import signal
from pathlib import Path

import pytest

from lra.core import files
from lra.core.signals import ASKING, StopFlag
from lra.records.names import LOCK


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_sets_the_flag_and_handlers_are_restored(number: signal.Signals, code: int) -> None:
    before = [signal.getsignal(each) for each in ASKING]
    with StopFlag() as stop:
        assert stop.pending() is None
        os.kill(os.getpid(), number)
        assert (stop.pending().code, str(stop.signalled())) == (code, number.name)
    assert [signal.getsignal(each) for each in ASKING] == before


def test_a_signal_that_nohup_ignores_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopFlag() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert stop.pending() is None
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("numbers", [(signal.SIGINT, signal.SIGINT), (signal.SIGTERM, signal.SIGINT)])
@pytest.mark.parametrize("repeated", [False, True])
def test_a_second_signal_ends_the_process_unless_a_launcher_repeats_it(numbers: tuple, repeated: bool) -> None:
    child = os.fork()
    if child == 0:
        try:
            with StopFlag(repeated=repeated):
                for number in numbers:
                    os.kill(os.getpid(), number)
        finally:
            os._exit(0)
    ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert ended == (0 if repeated else -numbers[1])


def test_a_time_limit_stops_the_command() -> None:
    assert StopFlag(minutes=600).pending() is None
    assert StopFlag(minutes=1e-9).pending().code == 75
    assert StopFlag(minutes=1e-9).signalled() is None, "evaluations end before a time limit is heeded"


# ---------------------------------------------------------------- locks


def test_a_lock_has_one_holder_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / LOCK
    assert files.holder(path) is None
    for _ in range(2):
        with files.hold(path, 0):
            assert str(path) in files.holder(path)
            with pytest.raises(files.Held, match=LOCK), files.hold(path, 0.1):
                pass
        assert files.holder(path) is None
