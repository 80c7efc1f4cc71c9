"""What a run or a step of it costs is said before anything is trained."""

import json
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from lra.core.subprocesses import results_from_child
from lra.runs.estimate import duration
from lra.runs.step_timing import StepCost, in_words, step_cost
from support import Commands, composed

from lra.cli import train
from lra.config.settings import settings_of
from lra.core.errors import UserError
from lra.runs import step_timing
from lra.runs.build import System, assemble
from lra.tasks.listops import ListOps

SMOKE = ("experiment=smoke", "train.batch_size=7", "train.micro_batch=3")


def system(*overrides: str) -> System:
    return assemble(settings_of(composed(*SMOKE, *overrides)))


@pytest.mark.parametrize("task", ["listops", "matching", "books", "mqar", "compress"])
def test_a_step_of_every_kind_of_task_is_measured_without_data(task: str) -> None:
    """With one example, a micro-batch and the batch, each twice."""
    settings, sent = settings_of(composed(*SMOKE, f"task={task}")), []
    step_timing._measure(sent.append, settings, assemble(settings))
    assert [cost.examples for cost in sent] == [1, 1, 3, 3, 7, 7]
    assert all(cost.seconds > 0 for cost in sent)
    for earlier, later in pairwise(cost.memory for cost in sent):
        assert later > earlier - 2**20, "a peak never falls, by more than the system's counting in batches of pages"


def multiplied_by_two_threads() -> float:
    """The sum of a product that is large enough for two threads."""
    torch.set_num_threads(2)
    ones = torch.ones(601, 601)
    return float((ones @ ones).sqrt().sum())


def test_where_threads_were_used_a_step_is_measured_all_the_same() -> None:
    """As in a notebook: a child that is forked has none of its parent's threads, and must not wait for them."""
    threads = torch.get_num_threads()
    try:
        expected = multiplied_by_two_threads()
        assert [*results_from_child(lambda send: send(multiplied_by_two_threads()), seconds=60)] == [expected]
    finally:
        torch.set_num_threads(threads)


def test_the_cost_is_that_of_the_most_examples_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = settings_of(composed(*SMOKE))
    costs = [StepCost(seconds=seconds, memory=None, examples=examples) for seconds, examples in ((7.0, 1), (5.0, 3))]

    def measure(send, *_: object) -> None:
        for cost in costs:
            send(cost)

    monkeypatch.setattr(step_timing, "_measure", measure)
    assert step_cost(settings, assemble(settings), 20) == costs[1]
    monkeypatch.setattr(step_timing, "_measure", lambda *_: None)
    assert step_cost(settings, assemble(settings), 20) is None


@pytest.mark.parametrize(
    ("cost", "words"),
    [
        ((1.5, 3 << 30, 7), "a step takes 1.5 s and 3 GiB here, with 7 examples of the greatest length"),
        ((1.5, None, 7), "a step takes 1.5 s here, with 7 examples of the greatest length"),
        ((94, 3 << 29, 3), "10 s did not suffice for more than 3 of them, so the time is reckoned"),
        ((94, 3 << 29, 1), "for more than 1 of them, so the time is reckoned, and the memory is more"),
        (None, "10 s did not suffice to measure a step: not one of its 7 examples of the greatest length"),
    ],
)
def test_what_did_not_fit_into_the_time_is_said(cost: tuple | None, words: str) -> None:
    known = cost and StepCost(seconds=cost[0], memory=cost[1], examples=cost[2])
    assert in_words(known, system()).endswith(words)


def test_describe_measures_a_step(cli: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_timing, "SECONDS", 60)
    code, out, err = cli(train.main, *SMOKE, "describe=true")
    measured = json.loads(out)["measured"]
    assert (code, measured["examples"]) == (0, 7)
    assert "seed 1: a step takes " in err
    assert not Path("runs").exists()


def test_without_any_choice_nothing_is_trained(cli: Commands) -> None:
    """15,000 steps of 5.13e12 FLOPs at 1e10 a second are 2,136 hours."""
    code, out, err = cli(train.main)
    assert (code, out) == (2, "")
    first, *lines, last = err.splitlines()
    assert first.startswith("nothing is chosen, so this would be listops simple/simple (paper) seed 1")
    assert [line.split("  ")[1] for line in lines] == [
        "lra-train task=listops",
        "lra-train experiment=small_listops train.steps=800",
        "lra",
    ]
    assert "about 2,136 hours here, evaluations aside (by its FLOPs, at an assumed speed)" in lines[0]
    assert last == "lra-train: error: choose a task, an attention or an experiment"
    assert not Path("runs").exists()
    assert max(map(len, lines)) <= 140


def test_data_that_are_missing_are_looked_for_once(cli: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def build(*_: object) -> None:
        asked.append("once")
        raise UserError("there are no such data")

    monkeypatch.setattr(ListOps, "build", build)
    code, _, err = cli(train.main, "task=listops")
    assert (code, err, asked) == (2, "lra-train: error: there are no such data\n", ["once"])
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("hours", "said"),
    [
        (0.05, "3 minutes"),
        (1 / 3, "20 minutes"),
        (1.6, "1.6 hours"),
        (4, "4 hours"),
        (99.4, "99 hours"),
        (99.7, "100 hours"),
        (123, "123 hours"),
    ],
)
def test_a_duration_is_a_plain_number(hours: float, said: str) -> None:
    assert duration(3600 * hours) == f"about {said}"
