"""Bytes saved for the backward pass, as `describe=true` measures them."""

import numpy as np
import pytest
import torch
from support import composed
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lra.config.settings import settings_of
from lra.ops.dropout import set_keys
from lra.runs.build import System, assemble
from lra.runs.describe import measure_step, saved_tensors, stand_in
from lra.runs.initial_weights import draw_model
from lra.training.batches import predict, read, summed_loss

SMOKE = ("experiment=smoke", "train.batch_size=7", "train.micro_batch=3")


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
