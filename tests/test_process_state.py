"""The Python API changes nothing of the process that calls it, also where it is interrupted, and says what is wrong."""

import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from faults.api_trial import After, changed
from faults.hostile import results
from faults.runs import TINY, warm

import lra

CALLS: dict[str, Callable[[], Any]] = {
    "compose": lambda: lra.compose("experiment=smoke", "attention=simple").describe(),
    "train": lambda: lra.train(*TINY, "out=trained"),
    "load": lambda: lra.load("runs").table,
    "check": lambda: lra.check("simple", "growth=[]", "lengths=[3]"),
    "attention": lambda: lra.attention("simple", width=6, heads=2, max_len=5),
}


@pytest.fixture(scope="module", autouse=True)
def imported() -> None:
    """Torch sets a variable when it first counts FLOPs."""
    warm()
    CALLS["compose"]()


@pytest.mark.usefixtures("cli")
@pytest.mark.parametrize("name", CALLS)
def test_nothing_of_the_process_is_another_afterwards(name: str) -> None:
    """But for torch's generator, from which a layer draws its weights."""
    if name == "load":
        results(Path("runs"))
    said = changed(CALLS[name], torch_draws=name == "attention")
    assert said == ("returned", [])


def test_no_check_seeds_an_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    seeded: list[int] = []
    monkeypatch.setattr(torch.cuda, "manual_seed_all", seeded.append)
    torch.manual_seed(3)
    assert seeded == [3]
    CALLS["check"]()
    assert seeded == [3]


@pytest.mark.usefixtures("cli")
@pytest.mark.parametrize(
    ("after", "how"), [(40, "SIGINT"), (400, "raised"), (400, "SIGINT"), (400, "SIGTERM"), (2_500, "SIGINT")]
)
def test_nothing_of_it_is_another_after_an_interrupt(after: int, how: str) -> None:
    """In the middle of a training; a signal that comes before a run listens is not ours."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell lets what it starts with & ignore it
    signal.signal(signal.SIGTERM, signal.default_int_handler)

    def interrupted() -> None:
        with After(after, how):
            CALLS["train"]()

    try:
        said, left = changed(interrupted)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, before)
    assert left == []
    assert re.match("KeyboardInterrupt: ", said)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: lra.compose(5), "5: expected a text, as 'task=listops'"),
        (lambda: lra.compose("task=listops", None), "None: expected a text"),
        (lambda: lra.train(np.zeros(2)), r"array\(\[0., 0.\]\): expected a text"),
        (lambda: lra.check("simple", int), "<class 'int'>: expected a text"),
        (lambda: lra.compare("a", 5), "'a': expected what Results.system returned"),
        (lambda: lra.attention("simple", width="6", heads=2, max_len=5), "width='6': should be a valid integer"),
        (lambda: lra.attention("simple", width=6, heads=2, max_len=5, options={"x": torch.zeros(1)}), "attention.x: "),
        (lambda: lra.load("\0"), "no such folder"),
    ],
)
def test_what_is_of_another_type_is_named(call: Callable[[], object], said: str) -> None:
    with pytest.raises(lra.UserError, match=said) as caught:
        call()
    assert "\n" not in str(caught.value)
