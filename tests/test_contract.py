"""A mixer is checked where its class is defined: each fault is one line that says what is missing and how to add it."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support import composed, facts, mixer_of, model_of
from torch import Tensor

from lra.attention import Attention, Card, Mixer, Shape
from lra.attention.softmax import Softmax
from lra.config import configure
from lra.core.errors import UserError
from lra.model.architecture import Architecture
from lra.model.model import Model
from lra.ops import kernel_attention
from lra.ops.mixer import Follows, HasScores, HasWeights

CARD = Card(paper="none", formula="V", time="L D", linear=True, oracle="none")
SHAPE = Shape(
    dim=15,
    qkv_dim=15,
    heads=3,
    max_positions=13,
    bias=True,
    out_proj=True,
    dropout=0.0,
    dropout_over="values",
    causal=False,
    layer=0,
    layers=2,
)


def attend(self: Attention, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
    return v


def forward(self: Mixer, x: Tensor, key_mask: Tensor | None = None) -> Tensor:
    return x


def defined(base: type, **body: Any) -> type:
    return type("Mine", (base,), {"__module__": "theirs", **body})


NO_PARAMETERS = property(lambda self: 0)


@pytest.mark.parametrize(
    ("base", "body", "message"),
    [
        (Attention, {"attend": attend}, "theirs.Mine has no card"),
        (Attention, {"attend": attend, "card": {"paper": "none"}}, "theirs.Mine has no card"),
        (Softmax, {"maskable": "no"}, "theirs.Mine.maskable = 'no': expected True or False"),
    ],
)
def test_a_broken_class_is_refused_where_it_is_defined(base: type, body: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as error:
        defined(base, **body)
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    ("base", "body", "missing"),
    [
        (Attention, {}, "attend"),
        (Mixer, {"extra_parameters": NO_PARAMETERS}, "forward"),
        (Mixer, {"forward": forward}, "extra_parameters"),
        (kernel_attention.KernelAttention, {}, "features"),
    ],
)
def test_an_abstract_class_makes_no_mixer(base: type, body: dict[str, Any], missing: str) -> None:
    with pytest.raises(TypeError, match=rf"abstract class Mine with abstract method.* {missing}"):
        defined(base, card=CARD, **body)(SHAPE)


def test_a_complete_class_is_accepted() -> None:
    class Shared(Attention, abstract=True):
        pass

    class Whole(Shared):
        card = CARD
        attend = attend

    assert Whole(SHAPE)(torch.ones(2, 7, 15)).shape == (2, 7, 15)
    assert defined(Mixer, card=CARD, forward=forward, extra_parameters=NO_PARAMETERS)(SHAPE)
    assert defined(Softmax)(SHAPE, scale="head_dim").card.paper == Softmax.card.paper


@pytest.mark.parametrize(
    ("output", "shown"),
    [(lambda v: None, "NoneType"), (lambda v: v[:, :1], r"\[2, 1, 7, 5\]"), (lambda v: v.mT, r"\[2, 3, 5, 7\]")],
)
def test_what_attend_gives_has_the_shape_of_the_queries(output: Callable, shown: str) -> None:
    mixer = defined(Attention, card=CARD, attend=lambda self, q, k, v, key_mask: output(v))(SHAPE)
    with pytest.raises(
        UserError, match=rf"Mine.attend returns {shown}.*, expected \[2, 3, 7, 5\] \(documents, heads, "
    ):
        mixer(torch.ones(2, 7, 15))


def test_an_init_that_forgets_its_base_is_named() -> None:
    forgetful = defined(
        Mixer, card=CARD, forward=forward, extra_parameters=NO_PARAMETERS, __init__=lambda self, shape: None
    )
    architecture = Architecture(**configure.plain(composed())["model"])
    with pytest.raises(UserError, match=r"Mine: its __init__ does not call super\(\).__init__\(shape\)"):
        Model(forgetful, facts(), architecture)


@pytest.mark.parametrize("name", ["simple", "softmax", "performer", "luna", "fnet"])
def test_who_offers_what(name: str) -> None:
    mixer = mixer_of(name)
    offered = [isinstance(mixer, offer) for offer in (HasWeights, HasScores, Follows)]
    assert offered == [name in ("simple", "softmax")] * 2 + [name == "luna"]


def test_a_hook_on_a_layer_is_called() -> None:
    """And what the model gives is the same, whether layers are watched or not."""
    torch.manual_seed(1)
    sizes = ("model.dim=15", "model.heads=3", "model.depth=2", "model.mlp_dim=7", "model.dropout=0.1")
    model = model_of("system=simple_resl", "attention.form=textbook", *sizes, task=facts()).double().eval()
    tokens = torch.randint(1, 17, (2, 11))
    plain, seen = model(tokens), []
    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, torch.nn.Linear)}
    for name, layer in layers.items():
        layer.register_forward_hook(lambda _layer, _inputs, _output, name=name: seen.append(name))
    torch.testing.assert_close(model(tokens), plain)
    assert sorted(seen) == sorted(layers)


def test_features_are_drawn_when_it_is_time() -> None:
    """The one rule of all mixers: as often as the seed or step // redraw_every changes."""
    draws = []
    mixer = defined(Attention, card=CARD, attend=attend, draw=lambda self, rng: draws.append(rng.random()))(SHAPE)
    mixer.redraw(5, 0)
    assert not draws
    mixer.redraw_every = 3
    for step in (1, 2, 3, 5, 6):
        mixer.redraw(5, step)
    mixer.redraw(7, 6)
    assert len(draws) == len(set(draws)) == 4
    mixer.redraw(5, 4)
    assert draws[4] == draws[1]
