"""Who asks a run to stop is answered at once, whatever the run is doing."""

import ctypes
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from support import Commands

from lra.cli import train, workers
from lra.core import signals
from lra.core.errors import UserError
from lra.core.signals import ASKING, Paused, Requests
from lra.records.names import CONFIG
from lra.records.outcome import state
from lra.runs.folder import Runner


def test_a_signal_is_acknowledged_at_once(capfd: pytest.CaptureFixture) -> None:
    with Requests(None, None, one_of_many=False) as requests:
        requests.patiently(True)
        os.kill(os.getpid(), signal.SIGTERM)
        assert requests.pending() is not None
    assert capfd.readouterr().err == "\nlra-train: SIGTERM: stopping after this step\n"


def meeting() -> Callable[[], int]:
    """A function that returns when two threads have called it. Until then it is an operation that hears no signal, as
    the backward pass of a large model."""
    library, barrier = ctypes.CDLL(None), ctypes.create_string_buffer(128)
    library.pthread_barrier_init(barrier, None, 2)
    return partial(library.pthread_barrier_wait, barrier)


def test_control_c_is_answered_within_an_operation(
    capfd: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    meet, tell, rescued = meeting(), signals._tell, []
    monkeypatch.setattr(signals, "_tell", lambda message: (tell(message), meet()))
    rescue = threading.Timer(60, lambda: (rescued.append(True), meet()))
    rescue.start()
    with Requests(None, None, one_of_many=False) as requests:
        requests.patiently(True)
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
        meet()
        rescue.cancel()
        assert not rescued, "nobody answered while the operation went on"
        assert requests.pending().code == 130
    assert capfd.readouterr().err == "\nlra-train: stopping after this step; again: now\n"


def test_control_c_twice_ends_even_an_operation_that_goes_on(capfd: pytest.CaptureFixture) -> None:
    child = os.fork()
    if child == 0:
        try:
            signal.alarm(60)
            signals.GRACE, tell, process = 0.05, signals._tell, os.getpid()
            signals._tell = lambda message: (tell(message), os.kill(process, signal.SIGINT))
            with Requests(None, None, one_of_many=False) as requests:
                requests.patiently(True)
                threading.Timer(0.5, os.kill, (process, signal.SIGINT)).start()
                meeting()()
        finally:
            os._exit(99)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 130
    assert capfd.readouterr().err == (
        "\nlra-train: stopping after this step; again: now\n"
        "\nlra-train: stopped; the same command goes on from the last checkpoint\n"
    )


def test_a_second_control_c_is_no_longer_patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signals, "GRACE", 600)
    with pytest.raises(KeyboardInterrupt), Requests(None, None, one_of_many=False) as requests:
        requests.patiently(True)
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)


def test_control_c_after_another_signal_is_a_first_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process that started this one heard Ctrl-C, too, and its SIGTERM may overtake the terminal's SIGINT."""
    monkeypatch.setattr(signals, "GRACE", 600)
    with Requests(None, None, one_of_many=False) as requests:
        requests.patiently(True)
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.1)  # the bell has rung
        assert requests.pending().code == 75
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_a_child_does_not_ring_for_its_parent(capfd: pytest.CaptureFixture) -> None:
    """As the workers of a preparation, which hear a Ctrl-C of the terminal, too."""
    with Requests(None, None, one_of_many=False) as requests:
        requests.patiently(True)
        child = os.fork()
        if child == 0:
            os.kill(os.getpid(), signal.SIGINT)
            os._exit(0)
        os.waitpid(child, 0)
        assert requests.pending() is None
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(("asked", "code"), [(signal.SIGTERM, 75), (signal.SIGINT, 130)])
@pytest.mark.parametrize("error", [AttributeError("flags"), UserError("nothing"), None], ids=["other", "ours", "none"])
def test_a_signal_is_no_fault_of_the_library_that_it_came_through(
    cli: Commands, monkeypatch: pytest.MonkeyPatch, asked: int, code: int, error: Exception | None
) -> None:
    """Libraries have a `finally` that fails where an object is half made, and handle what comes through them."""

    def composed(*_: object) -> None:
        try:
            os.kill(os.getpid(), asked)
        finally:
            if error is not None:
                raise error

    monkeypatch.setattr("lra.cli.command._composed", composed)
    exit_code, _, err = cli(train.main)
    assert (exit_code, err) == (code, f"lra-train: paused ({signal.Signals(asked).name}); the same command goes on\n")


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This process, as if it were one of joblib's."""
    monkeypatch.setattr(workers, "_told", [])
    before = {number: signal.getsignal(number) for number in ASKING}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("worker")
def test_a_worker_that_is_asked_before_its_run_listens_begins_none() -> None:
    begun = []
    with pytest.raises(Paused, match=r"^SIGINT$") as pause, workers.stoppable():
        os.kill(os.getpid(), signal.SIGINT)
        begun.append("a run")
    with pytest.raises(Paused, match=r"^SIGINT$"), workers.stoppable():
        begun.append("another run")
    assert (pause.value.code, begun, workers.told()) == (130, [], True)


@pytest.mark.usefixtures("worker")
def test_a_worker_that_is_asked_outside_of_a_run_or_within_it_remembers() -> None:
    with workers.stoppable(), Requests(None, None, one_of_many=False) as requests:
        requests.patiently(True)
        os.kill(os.getpid(), signal.SIGTERM)
        assert requests.pending() is not None
        assert not workers.told(), "the run heeds it first"
    assert workers.told()
    os.kill(os.getpid(), signal.SIGUSR1)
    assert workers._told == [signal.SIGTERM, signal.SIGUSR1]


def test_a_run_that_is_asked_while_its_folder_is_made_says_that_it_is_paused(
    cli: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    tidy = Runner._tidy

    def asked(runner: Runner) -> None:
        tidy(runner)
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(Runner, "_tidy", asked)
    code, _, err = cli(train.main, "experiment=smoke", "out=runs")
    [config] = Path("runs").rglob(CONFIG)
    assert (code, state(config.parent)) == (75, ("paused", "SIGTERM")), err
    assert "seed 1: stopped before its first step (SIGTERM), nothing is saved; the same command begins it" in err
