"""Faults of a mixer class are found early: each is one line that names what is missing and how to add it."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from support import settings, shape, spec
from torch import Tensor

from lra.core.errors import UserError
from lra.mixers import Attention, Mixer, MixerInfo
from lra.network.architecture import Architecture
from lra.network.model import Model

INFO = MixerInfo(paper="none", formula="V", complexity="L D", linear_memory=True, reference="none")
SHAPE = shape()


def attend(self: Attention, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
    return v


def forward(self: Mixer, x: Tensor, key_mask: Tensor | None = None) -> Tensor:
    return x


def defined(base: type, **body: Any) -> type:
    return type("Mine", (base,), {"__module__": "theirs", **body})


@pytest.mark.parametrize("info", [{}, {"info": {"paper": "none"}}])
def test_a_class_without_info_is_refused_where_it_is_defined(info: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=r"^theirs\.Mine has no info"):
        defined(Attention, attend=attend, **info)


@pytest.mark.parametrize(
    ("output", "shown"),
    [(lambda v: None, "NoneType"), (lambda v: v[:, :1], r"\[2, 1, 7, 5\]"), (lambda v: v.mT, r"\[2, 3, 5, 7\]")],
)
def test_an_attend_of_another_shape_is_refused(output: Callable, shown: str) -> None:
    mixer = defined(Attention, info=INFO, attend=lambda self, q, k, v, key_mask: output(v))(SHAPE)
    with pytest.raises(
        UserError, match=rf"Mine.attend returns {shown}.*, expected \[2, 3, 7, 5\] \(documents, heads, "
    ):
        mixer(torch.ones(2, 7, 15))


def test_an_init_without_super_is_refused() -> None:
    forgetful = defined(Mixer, info=INFO, forward=forward, __init__=lambda self, config: None)
    architecture = Architecture(**settings()["model"])
    with pytest.raises(UserError, match=r"Mine: its __init__ does not call super\(\).__init__\(config\)"):
        Model(forgetful, spec(), architecture)


def test_features_are_drawn_anew_every_few_steps() -> None:
    """They depend on the seed, on step // redraw_every, and on the layer."""
    draws = []
    drawing = defined(Attention, info=INFO, attend=attend, draw=lambda self, rng: draws.append(rng.random()))
    mixer = drawing(SHAPE)
    mixer.redraw(5, 0)
    assert not draws
    mixer.redraw_every = 3
    for step in (1, 2, 3, 5, 6):
        mixer.redraw(5, step)
    mixer.redraw(7, 6)
    assert len(draws) == len(set(draws)) == 4
    mixer.redraw(5, 4)
    assert draws[4] == draws[1]
    other = drawing(shape(layer=1))
    other.redraw_every = 3
    other.redraw(5, 4)
    assert draws[5] not in draws[:5]
