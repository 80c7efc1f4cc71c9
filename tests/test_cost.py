"""Facts of a step, and the time of a sweep."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from support import Commands, composed
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lra.cli import train
from lra.config.settings import settings_of
from lra.ops.dropout import set_keys
from lra.runs import budget
from lra.runs.build import System, assemble
from lra.runs.describe import measure_step, stand_in
from lra.runs.initial_weights import draw_model
from lra.runs.operations import saved_tensors
from lra.training.batches import predict, read, summed_loss

SMOKE = ("experiment=smoke", "train.batch_size=7", "train.micro_batch=3")
SWEEP = ("--multirun", "experiment=smoke", "seed=1,2", "out=runs")


class Alive(TorchDispatchMode):
    """Every storage that an operation has made, except of int64: the tokens, and the positions of what is dropped."""

    def __init__(self) -> None:
        super().__init__()
        self.made: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        for value in tree_leaves(out):
            if isinstance(value, torch.Tensor) and value.dtype != torch.int64:
                storage = value.untyped_storage()
                self.made[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
        return out

    def bytes(self) -> int:
        return sum(size for storage, size in self.made.values() if not storage.expired())


def alive(system: System, examples: int) -> int:
    """Bytes of what the forward pass of so many examples has made and not freed."""
    facts, some = system.builder.facts, np.arange(examples)
    model = draw_model(system, facts, 1).train()
    model.redraw(1, 0)
    batch = read(stand_in(facts, examples, 1), some, some, facts.max_len)
    set_keys(model, seed=1, step=0, rows=batch.rows)
    with Alive() as mode:
        loss = summed_loss(*predict(model, batch, "fp32"))
    assert loss.requires_grad
    return mode.bytes()


@pytest.mark.parametrize("task", ["listops", "matching", "mqar"])
def test_a_step_of_every_kind_of_task_is_measured_without_data(task: str) -> None:
    """Kept for the backward pass are the tensors that are alive before it, and a causal mask whatever the batch."""
    settings = settings_of(composed(*SMOKE, f"task={task}", "attention=softmax", "model.dropout=0"))
    system = assemble(settings)
    measured = measure_step(settings, system)
    assert measured["examples"] == 3
    assert measured["step_seconds"] > 0
    tokens = 2 * system.builder.facts.documents * system.builder.facts.max_len
    each = (alive(system, 4) - alive(system, 2)) / tokens
    causal = task in ("books", "mqar")
    assert each * 0.95 < measured["saved_bytes_per_token"] < each * (1.5 if causal else 1.05)


def test_freed_tensors_are_not_kept() -> None:
    """One of two results stays allocated: 7 x 5 numbers; the weight is not counted."""
    weight = torch.randn(5, requires_grad=True)
    with saved_tensors([weight]) as saved:
        first = torch.ones(7, 5) * weight
        second = torch.ones(11, 5) * weight
        assert saved() == 4 * (7 + 11) * 5
        del second
        assert saved() == 4 * 7 * 5
        del first
        assert saved() == 0


def test_describe_prints_facts_and_trains_nothing(cli: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lra.runs.describe.measure_step", measure_step)
    code, out, _ = cli(train.main, *SMOKE, "describe=true")
    facts = json.loads(out)
    assert (code, facts["measured"]["examples"], Path("runs").exists()) == (0, 3, False)
    assert facts["tokens_per_step"] % 7 == 0


def test_without_any_choice_nothing_is_trained(cli: Commands) -> None:
    code, out, err = cli(train.main)
    assert (code, out, err.count("\n"), Path("runs").exists()) == (2, "", 1, False)
    assert train.QUICK in err


def test_the_tokens_of_a_training_include_its_pretraining() -> None:
    without, also = (
        assemble(settings_of(composed(*SMOKE, *more)))
        for more in ((), ("pretrain=masked", "pretrain.train.steps=30", "pretrain.train.warmup=3"))
    )
    facts = without.builder.facts
    assert settings_of(composed("sweep.tokens=10000000000000")).sweep["tokens"] == 10**13, "as many as Table 1 reads"
    assert budget.training_tokens(without) == without.recipe.steps * 7 * facts.documents * facts.max_len
    assert budget.training_tokens(also) == (without.recipe.steps + 30) * 7 * facts.documents * facts.max_len


def test_a_sweep_above_max_hours_stops_in_its_first_run_and_goes_on_later(
    cli: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget, "LEAST_SECONDS", 0.0)
    code, _, err = cli(train.main, *SWEEP, "max_hours=1e-9")
    assert code == 2, err
    assert "max_hours=1e-09" in err
    assert "0 of 2 runs finished, 1 paused, 1 waiting" in err
    code, _, err = cli(train.main, *SWEEP, "max_hours=null")
    assert (code, err.count("the sweep takes about")) == (0, 1), err
    assert "2 of 2 runs finished" in err
