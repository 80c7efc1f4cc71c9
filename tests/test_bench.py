"""lra-bench: both sides of a comparison do the same work; time, memory and operations are measured correctly."""

import json
from dataclasses import asdict
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from support import Commands, accumulate, composed, stub_task
from torch import nn

from lra.bench import compare
from lra.bench.compare import peak_memory, seconds_in_turns
from lra.bench.settings import BenchSettings
from lra.bench.straightforward import Straightforward, update
from lra.cli.bench import main
from lra.config import configure
from lra.runs.build import assemble
from lra.runs.initial_weights import draw_model

TINY = ("model.dim=12", "model.heads=3", "model.depth=2", "model.mlp_dim=10")


@cache
def settings(*overrides: str) -> BenchSettings:
    return configure.part(BenchSettings, composed(*TINY, *overrides, config="bench"))


def test_steps_take_turns_in_alternating_order() -> None:
    calls: list[str] = []
    steps = {name: lambda name=name: calls.append(name) for name in "abc"}
    seconds = seconds_in_turns(steps, rounds=2)
    assert list("".join(calls)) == [name for name in "abccba" for _ in range(3)], "two calls before each warm up"
    assert [len(values) for values in seconds.values()] == [2, 2, 2]


def test_peak_of_allocated_tensors() -> None:
    """11 and 7 numbers coexist, then 11 and 13; a tensor that replaces that of the step before exists twice."""
    kept = {}

    def step() -> None:
        first, second = torch.ones(11), torch.ones(7)
        del second
        third = torch.ones(13)
        del first, third

    def keep() -> None:
        kept["it"] = torch.ones(17)

    module = nn.Linear(7, 5)
    for call, elements in ((step, 24), (keep, 17), (lambda: module(torch.ones(3, 7)), 3 * 7 + 3 * 5)):
        assert peak_memory(call, "cpu") == 4 * elements


@pytest.mark.parametrize(("task", "protocol"), [("text", "strict"), ("matching", "paper")])
@pytest.mark.parametrize("system", ["simple", "simple_res", "simple_resl", "transformer"])
def test_the_straightforward_step_is_the_same_step(task: str, protocol: str, system: str) -> None:
    """Loss and gradients of a whole batch in float64, without dropout; P = 1 and 2."""
    given = settings(
        f"task={task}",
        f"protocol={protocol}",
        f"system={system}",
        "task.max_length=11",
        "model.dropout=0",
        "train.batch_size=5",
    )
    assembled = assemble(given)
    spec = assembled.builder.spec
    split = stub_task(**vars(spec)).train
    model = draw_model(assembled, spec, given.seed).double().train()
    with torch.no_grad():
        model.embedding.cls.normal_()
        model.embedding.positions.normal_()
    other = Straightforward(given.attention, asdict(given.model), spec).double()
    other.load_state_dict(model.state_dict())
    examples = np.array([3, 19, 4, 0, 11])
    loss = accumulate(model, split, examples, 2, seed=1, step=0, precision="fp32")[0].item()
    tokens = torch.from_numpy(split.pad(examples, spec.max_len)).long()
    still = torch.optim.SGD(other.parameters(), lr=0)
    other_loss = update(other, still, tokens, torch.from_numpy(split.targets(examples)), 2, bf16=False)
    assert other_loss == pytest.approx(loss, rel=1e-12)
    other_parameters = dict(other.named_parameters())
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(other_parameters[name].grad, parameter.grad, rtol=1e-9, atol=1e-13)


@pytest.mark.parametrize(
    ("subject", "message"),
    [
        ("simpel", "attention=simpel: no such option; did you mean 'simple'"),
        ("straightforward:linear", "only simple and softmax have a straightforward form"),
        ("'simple model.dpeth=3'", "did you mean 'model.depth'"),
    ],
)
def test_a_mistaken_subject_is_named(subject: str, message: str, cli: Commands) -> None:
    code, _, err = cli(main, "what=layer", "lengths=[16]", f"subjects=[{subject}]")
    assert code == 2 and message in err


@pytest.mark.parametrize(
    ("what", "named", "rows"),
    [
        ("layer", "subjects=[simple,straightforward:softmax,'performer attention.features=5']", 3 * 2),
        ("model", "subjects=['simple variant=simple_res',straightforward:softmax]", 2 * 2),
        ("step", "task.max_length=20", 2),
    ],
)
def test_end_to_end(what: str, named: str, rows: int, cli: Commands) -> None:
    line = (f"what={what}", named, "lengths=[16,32]", "batch=2", "rounds=2", "train.batch_size=3", *TINY)
    code, _, err = cli(main, *line, "train.micro_batch=3")
    assert code == 0, err
    folder = Path(f"runs/bench/{what}_text_paper")
    record = json.loads((folder / compare.NAME).read_text())
    assert len(record["results"]) == rows
    assert record["results"][0]["ratio"] == [1.0, 1.0]
    for result in record["results"]:
        assert len(result["seconds"]) == 2 and min(result["seconds"]) > 0
        assert result["peak_bytes"] > 0 and result["flops"] > 0
    assert ("products" in record) == (what == "step")
    assert (folder / compare.FIGURE).exists() == (what != "step")
    assert cli(main, *line, "train.micro_batch=3")[0] == 2, "a measurement is not overwritten"


def test_operations_of_a_step_are_counted_with_its_backward_pass() -> None:
    """A linear layer and the gradient of its weight."""
    module = nn.Linear(7, 5, bias=False)
    assert compare.flops(lambda: module(torch.ones(3, 7)).sum().backward()) == 2 * 2 * 3 * 7 * 5
    rates = compare.product_rates(64, 16, 32, rounds=1)
    assert {"fp32 mkl", "bf16"} <= set(rates["gflops"]) and min(rates["gflops"].values()) > 0
