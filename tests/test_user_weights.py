"""A user's mixer may have tied, strided, empty and complex weights, and keeps the values that its class sets."""

import numpy as np
import pytest
import torch
from support import settings, shape, small_recipe, spec, stub_task, train_state, train_step
from torch import Tensor, nn

from lra.mixers import Attention, Mixer, MixerInfo
from lra.mixers.base import MixerConfig
from lra.network.architecture import Architecture
from lra.network.model import Model
from lra.records import tensors
from lra.runs.build import without_memory
from lra.training.optimizer import Diverged, Update
from lra.training.trainer import Trainer

INFO = MixerInfo(paper="none", formula="V", complexity="L D", linear_memory=True, reference="none")


class Tied(Attention):
    """Queries are keys, as in shared-QK models."""

    info = INFO

    def __init__(self, config: MixerConfig) -> None:
        super().__init__(config)
        self.key = self.query
        self.value.bias.data.fill_(3)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
        scores = q @ k.mT
        return (scores if key_mask is None else scores.masked_fill(~key_mask[:, None, None], -1e9)).softmax(-1) @ v


class Strided(Mixer):
    """A transposed weight, an empty one, and an expanded buffer."""

    info = INFO

    def __init__(self, config: MixerConfig) -> None:
        super().__init__(config)
        self.rotation = nn.Parameter(torch.linalg.qr(torch.randn(config.dim, config.dim))[0].T)
        self.nothing = nn.Parameter(torch.empty(0, 3))
        self.register_buffer("window", torch.full((1, config.dim), 0.5).expand(7, config.dim))

    def forward(self, x: Tensor, key_mask: Tensor | None = None) -> Tensor:
        return x @ self.rotation * self.window[0] + self.nothing.sum()


class Complex(Mixer):
    """Complex weights, as in S4D and LRU, and a gate that begins open; the constructor reads numbers."""

    info = INFO

    def __init__(self, config: MixerConfig) -> None:
        super().__init__(config)
        self.poles = nn.Parameter(torch.randn(config.dim, dtype=torch.cfloat))
        self.gate = nn.Linear(config.dim, config.dim)
        nn.init.zeros_(self.gate.weight)
        nn.init.constant_(self.gate.bias, 4)
        if self.poles.detach().abs().max().item() > 100:
            raise ValueError("unstable")

    def forward(self, x: Tensor, key_mask: Tensor | None = None) -> Tensor:
        return (x * self.poles).real.to(x.dtype) * torch.sigmoid(self.gate(x))


KINDS = (Tied, Strided, Complex)


def made(kind: type[Mixer], protocol: str) -> Model:
    torch.manual_seed(3)
    model = settings("attention=softmax", "variant=transformer", f"protocol={protocol}")["model"]
    sizes = {"dim": 12, "qkv_dim": 12, "heads": 3, "mlp_dim": 7, "depth": 2, "attention_bias": True}
    return Model(kind, spec(), Architecture(**model | sizes))


def trainer_of(kind: type[Mixer]) -> Trainer:
    return Trainer(made(kind, "strict"), stub_task(), small_recipe(weight_decay=0.1), seed=2, precision="fp32")


def take_step(trainer: Trainer, step: int) -> Update:
    """Update with the first eight examples."""
    examples = (trainer.task.train, np.arange(8), trainer.recipe)
    return train_step(trainer.model, trainer.optimizer, *examples, seed=2, step=step, precision="fp32")


@pytest.mark.parametrize("kind", KINDS)
def test_users_weights_train_and_resume_to_the_last_bit(kind: type[Mixer]) -> None:
    first, second = (trainer_of(kind) for _ in range(2))
    before = train_state(first.model)
    for step in range(6):
        take_step(first, step).read()
        if step == 2:
            values, state = first.state_dict()
            second.load_state_dict(tensors.decode(tensors.encode(values))[0], state)
        if step > 2:
            take_step(second, step).read()
    ended = train_state(first.model)
    assert all(torch.equal(value, ended[name]) for name, value in train_state(second.model).items())
    moved = {name for name, value in ended.items() if value.numel() and not torch.equal(value, before[name])}
    assert {name for name, value in first.model.named_parameters() if ".mixer." in name and value.numel()} <= moved


def test_a_step_that_is_not_finite_leaves_complex_weights() -> None:
    training = trainer_of(Complex)
    before = train_state(training.model)
    list(training.model.parameters())[-1].register_hook(lambda gradient: gradient + torch.inf)
    for step in range(2):
        with pytest.raises(Diverged):
            take_step(training, step).read()
    assert all(torch.equal(value, before[name]) for name, value in train_state(training.model).items())


@pytest.mark.parametrize("protocol", ["lra", "strict"])
def test_initial_values_of_a_users_class_are_kept(protocol: str) -> None:
    """Under `lra` Xavier is for the projections that a class left as drawn; there biases are then zero."""
    gate, tied = (made(kind, protocol).blocks[1].mixer for kind in (Complex, Tied))
    assert (gate.gate.weight.abs().max(), gate.gate.bias.min()) == (0, 4)
    assert tied.key is tied.query
    assert tied.value.bias.tolist() == [3.0] * 12
    assert bool(tied.query.bias.any()) == bool(tied.out.bias.any()) == (protocol != "lra")


def test_a_constructor_that_reads_values_is_built_on_the_cpu() -> None:
    before = torch.random.get_rng_state()
    assert next(without_memory(lambda: Complex(shape())).parameters()).device.type == "cpu"
    assert next(without_memory(lambda: Tied(shape())).parameters()).is_meta
    assert torch.equal(torch.random.get_rng_state(), before)
