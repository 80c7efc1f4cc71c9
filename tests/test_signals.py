"""One flag stops a run, set by a signal or a time limit; locks have one holder at a time."""

import os
import signal
from pathlib import Path

import pytest
from forked import exit_code, fork

from lra.core import files, signals
from lra.core.signals import StopFlag
from lra.records.names import LOCK

CODES = {
    signal.SIGINT: 130,
    signal.SIGTERM: 143,
    signal.SIGHUP: 129,
    signal.SIGUSR1: 138,
    signal.SIGUSR2: 140,
    signal.SIGXCPU: 152,
}


@pytest.mark.parametrize(("number", "code"), CODES.items())
def test_a_signal_sets_the_flag_and_handlers_are_restored(number: signal.Signals, code: int) -> None:
    before = [signal.getsignal(each) for each in CODES]
    with StopFlag() as stop:
        assert stop.pending() is None
        os.kill(os.getpid(), number)
        assert (stop.pending().code, str(stop.signalled())) == (code, number.name)
    assert [signal.getsignal(each) for each in CODES] == before


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
    assert _ended(numbers, repeated=repeated, patience=0) == (0 if repeated else -numbers[1])


def test_signals_that_are_sent_twice_at_once_are_one() -> None:
    """`timeout` sends the signal to the process and to its group: one stop, not two."""
    assert _ended((signal.SIGTERM,) * 3, repeated=False, patience=signals.REPEAT_SECONDS) == 0


def test_a_signal_that_another_library_handles_is_left_to_it() -> None:
    seen = []
    before = signal.signal(signal.SIGUSR2, lambda *_: seen.append(1))
    try:
        with StopFlag() as stop:
            os.kill(os.getpid(), signal.SIGUSR2)
            assert (stop.pending(), seen) == (None, [1])
    finally:
        signal.signal(signal.SIGUSR2, before)


@pytest.mark.parametrize("number", CODES)
@pytest.mark.parametrize("is_within", [False, True])
def test_a_nested_flag_is_set_by_signals_before_and_during_it(number: signal.Signals, is_within: bool) -> None:
    with StopFlag(repeated=True) as around:
        if not is_within:
            os.kill(os.getpid(), number)
        with StopFlag() as stop:
            if is_within:
                os.kill(os.getpid(), number)
            assert stop.pending().code == CODES[number]
        assert (around.pending() is None) == is_within


def _ended(numbers: tuple, *, repeated: bool, patience: float) -> int:
    """Exit code of a process that gets these signals one after the other, or minus the signal that ended it."""

    def work() -> int:
        signals.REPEAT_SECONDS = patience
        with StopFlag(repeated=repeated):
            for number in numbers:
                os.kill(os.getpid(), number)
        return 0

    return exit_code(fork(work))


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
            assert str(tmp_path) in files.holder(path)
            with pytest.raises(files.Locked, match=tmp_path.name), files.hold(path, 0.1):
                pass
        assert files.holder(path) is None
