"""The Python API leaves the calling process as it was, also when it is interrupted, and names wrong arguments."""

import os
import random
import signal
import threading
import warnings
from collections.abc import Callable

import numpy as np
import pytest
import torch
from forked import TINY, warm
from hydra.core.global_hydra import GlobalHydra

import lra

CALLS: dict[str, Callable[[], object]] = {
    "compose": lambda: lra.compose("experiment=smoke", "attention=simple").describe(),
    "train": lambda: lra.train(*TINY, "out=trained"),
    "check": lambda: lra.check("simple", "lengths=[3]"),
}


def state() -> dict[str, object]:
    """Process-wide state that a library must not change."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
    return {
        "signal handlers": [signal.getsignal(number) for number in numbers],
        "random": [random.getstate(), repr(np.random.get_state()), torch.get_rng_state().tolist()],
        "torch": [torch.get_num_threads(), torch.get_default_dtype(), torch.get_deterministic_debug_mode()],
        "process": [os.getcwd(), os.umask(os.umask(0)), dict(os.environ), threading.active_count()],
        "warnings": warnings.filters[:],
        "hydra": GlobalHydra.instance().hydra,
    }


@pytest.mark.usefixtures("cli")
@pytest.mark.parametrize("name", [*CALLS, "interrupted"])
def test_process_state_is_unchanged(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    warm()
    CALLS["compose"]()  # torch sets a variable when it first counts FLOPs
    if name == "interrupted":
        monkeypatch.setattr("lra.training.update.accumulate", interrupt)
    before = state()
    with warnings.catch_warnings():
        if name == "interrupted":
            with pytest.raises(KeyboardInterrupt):
                CALLS["train"]()
        else:
            CALLS[name]()
    assert state() == before


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: lra.compose("task=listops", None), "None: expected a text"),
        (lambda: lra.train(np.zeros(2)), r"array\(\[0., 0.\]\): expected a text"),
        (lambda: lra.attention("simple", width="6", heads=2, max_len=5), "width=6: should be a valid integer"),
        (lambda: lra.load("\0"), "no such folder"),
    ],
)
def test_arguments_of_another_type_are_named(call: Callable[[], object], message: str) -> None:
    with pytest.raises(lra.UserError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)
