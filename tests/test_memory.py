"""What is kept for the backward pass, counted without data, against what is alive after a real forward pass."""

import json

import attentions_page
import numpy as np
import pytest
import torch
from lra.runs.memory import memory
from support import composed, options
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lra.config.compose import systems
from lra.config.settings import settings_of
from lra.core.paths import CHECKOUT
from lra.ops.dropout import set_keys
from lra.ops.saved_tensors import saved_tensors
from lra.runs.build import System, assemble
from lra.runs.initial_weights import draw_model
from lra.runs.stand_in import stand_in
from lra.training.batches import predict, read
from lra.training.losses import summed_loss

SMALL = ("task=text", "model.dim=24", "model.qkv_dim=24", "model.heads=3", "model.mlp_dim=41", "model.depth=2")
LENGTH = 331
PLAIN = ("simple", "linear", "performer", "conv", "s4d", "gla", "mamba2")
FULL = (*PLAIN, "softmax", "softmax model.dropout=0", "longformer", "sinkhorn")
CASES = [("fp32", mixer) for mixer in FULL] + [("bf16", mixer) for mixer in PLAIN]
CASES += [pytest.param("fp32", mixer, marks=pytest.mark.slow) for mixer in options("attention") if mixer not in FULL]


def system_of(*overrides: str, length: int = LENGTH) -> System:
    return assemble(settings_of(composed(*SMALL, f"task.max_length={length}", *overrides)))


class Alive(TorchDispatchMode):
    """Knows every storage that an operation has made, but of int64: the tokens, and the places of what is dropped."""

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


def alive(system: System, precision: str, examples: int) -> int:
    """Bytes of what the forward pass of so many examples has made and not freed."""
    facts, part = system.builder.facts, np.arange(examples)
    model = draw_model(system, facts, 1).train()
    model.redraw(1, 0)
    batch = read(stand_in(facts, examples, 1), part, part, facts.max_len)
    set_keys(model, seed=1, step=0, rows=batch.rows)
    with Alive() as mode:
        loss = summed_loss(*predict(model, batch, precision))
    assert loss.requires_grad
    return mode.bytes()


@pytest.mark.parametrize(("precision", "mixer"), CASES)
def test_the_count_is_what_a_forward_pass_leaves(mixer: str, precision: str) -> None:
    """A softmax has another type under the autocast of a CPU."""
    system = system_of(*f"attention={mixer}".split())
    few, more = (alive(system, precision, examples) for examples in (2, 5))
    assert memory(system, precision)["saved_bytes_per_token"] == pytest.approx((more - few) / (3 * LENGTH), rel=0.02)


@pytest.mark.parametrize("task", ["listops", "matching", "image", "mqar", "books"])
def test_so_it_is_of_every_kind_of_task(task: str) -> None:
    """One document, two, pictures, scored positions, next tokens; with padding masked."""
    protocol = "paper" if task == "books" else "strict"
    system = assemble(settings_of(composed("experiment=smoke", f"task={task}", f"protocol={protocol}")))
    few, more = (alive(system, "fp32", examples) for examples in (2, 5))
    tokens = 3 * system.builder.facts.documents * system.builder.facts.max_len
    assert memory(system, "fp32")["saved_bytes_per_token"] == pytest.approx((more - few) / tokens, rel=0.02)


@pytest.mark.parametrize(("precision", "weight"), [("fp32", 4 + 4), ("bf16", 4 + 2)])
def test_a_weight_of_softmax_is_kept_before_and_after_dropout(precision: str, weight: int) -> None:
    """By the second difference in the length: of three heads, in the only block that reads more than the CLS."""
    lengths = (101, 307, 1009)
    kept = [
        length * memory(system_of("attention=softmax", length=length), precision)["saved_bytes_per_token"]
        for length in lengths
    ]
    slopes = np.diff(kept) / np.diff(lengths)
    assert (slopes[1] - slopes[0]) / (lengths[2] - lengths[0]) == pytest.approx(3 * weight, rel=0.01)


def test_softmax_without_dropout_is_linear() -> None:
    """Since it is fused."""
    short, long = (
        memory(system_of("attention=softmax", "model.dropout=0", length=length), "fp32")["saved_bytes_per_token"]
        for length in (307, 1009)
    )
    assert long < 1.01 * short


@pytest.mark.parametrize("freeze", ["null", "[embedding,head]"])
def test_the_largest_micro_batch_fits_and_no_larger_one(freeze: str) -> None:
    """16 bytes for a weight that is trained, 4 for another."""
    system = system_of("attention=conv", f"train.freeze={freeze}")
    estimate = memory(system, "fp32")
    trainable = sum(
        weight.numel() for weight in system.model(system.builder.facts).parameters() if weight.requires_grad
    )
    assert (trainable == system.parameters) == (freeze == "null")
    for size, examples in estimate["micro_batch_that_fits"].items():
        room = int(size.removesuffix(" GB")) * 1e9 - 4 * system.parameters - 12 * trainable
        assert examples == pytest.approx(room / (estimate["saved_bytes_per_token"] * LENGTH), rel=1e-3)


def test_a_model_that_is_too_large_fits_nowhere() -> None:
    """6 x 12 x 30,011² weights of 16 bytes."""
    wide = ("model.dim=30011", "model.qkv_dim=30011", "model.heads=1", "model.mlp_dim=120044", "model.depth=6")
    estimate = memory(system_of("attention=simple", *wide), "fp32")
    assert set(estimate["micro_batch_that_fits"].values()) == {0}


def test_what_was_freed_is_not_kept() -> None:
    """Of two results one lives: 7 x 5 numbers; the weight is its own."""
    weight = torch.randn(5, requires_grad=True)
    with saved_tensors([weight]) as saved:
        first = torch.ones(7, 5) * weight
        second = torch.ones(11, 5) * weight
        assert saved() == 4 * (7 + 11) * 5
        del second
        assert saved() == 4 * 7 * 5
        del first
        assert saved() == 0


def test_the_page_has_what_is_counted() -> None:
    kept = json.loads((CHECKOUT / "results" / "attentions.json").read_text())["memory"]
    assert [*kept] == [*systems("system")]
    assert all(kept[system] == attentions_page.memory_of(system) for system in ("simple", "transformer"))
