"""The contract of a sequence mixer, and the shell that q/k/v mechanisms share.

Legend: B batch, L positions (the CLS counts), D model width, H heads, Dh width of a head (H Dh = qkv_dim).
A key mask [B, L] is True at real tokens; None means that all are real.
"""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import ClassVar, Self

import numpy as np
import torch
from torch import Tensor, nn

from lra.core import streams
from lra.core.errors import UserError
from lra.ops.contract import check_definition, check_output
from lra.ops.dropout import Dropout, Over
from lra.ops.precision import autocast_dtype


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What the model tells its mixers; a mixer's own options come from `conf/attention/`.

    `max_positions`: of the longest input, so the task's `max_len` tokens, and one more where there is a CLS.
    `dropout_over`: where vectors of positions are dropped; weights between positions are dropped one by one.
    `layer`: from 0, of `layers`.
    """

    dim: int
    qkv_dim: int
    heads: int
    max_positions: int
    bias: bool
    out_proj: bool
    dropout: float
    dropout_over: Over
    causal: bool
    layer: int
    layers: int

    def __post_init__(self) -> None:
        if self.qkv_dim % self.heads:
            raise UserError(f"model.heads={self.heads} does not divide model.qkv_dim={self.qkv_dim}")

    @property
    def head_dim(self) -> int:
        return self.qkv_dim // self.heads

    @property
    def projections(self) -> int:
        """Parameters of the query, key, value and, where there is one, output projection."""
        inner = 3 * (self.dim + self.bias) * self.qkv_dim
        return inner + (self.qkv_dim + self.bias) * self.dim * self.out_proj


@dataclass(frozen=True, kw_only=True)
class Card:
    """Description of a mechanism: the class's card of all its settings, with names in braces for
    what depends on them, an instance's of what it runs.

    `linear`: what it keeps for the backward pass grows no faster than the length. `oracle`: the independent
    implementation that the tests compare it with. `scale`: what the formula multiplies q . k with, where it is one
    number. `deviations`: in what it differs from its paper or from the authors' code, beyond what the settings say.
    `name`: in tables, beside O(time), for a class that is not ours; the name of the class where it is empty.
    """

    paper: str
    formula: str
    time: str
    linear: bool
    oracle: str
    scale: float | None = None
    deviations: tuple[str, ...] = ()
    name: str = ""

    def without(self, deviation: str) -> Self:
        """The card of an instance that does not deviate in this."""
        return replace(self, deviations=tuple(text for text in self.deviations if text != deviation))


class Mixer(nn.Module):
    """Mixes positions: forward(x [B, L, D], key_mask) -> [B, L, D], for any L up to the shape's `max_positions`; no
    residual, no norm.

    Outputs at real positions do not depend on what finite numbers stand at padded ones, and outputs there are finite;
    the model puts zeros there before the first mixer.
    A class has a `card`, and says by flags what it can:

    `maskable`: it can use a mask. `can_be_causal`: it has a form in which an output depends on no later position, and
    takes it when the shape says so. `commutes`: with a permutation of the positions. `projects_out`: it has the output
    projection that the variants switch. `reads_few`: outputs at the first positions alone come cheaper.
    `full_pattern`: a mechanism that is meant to leave pairs of positions out leaves out none of them at
    `max_positions`, where it is softmax attention. `keeps_weights`: its linear layers begin as it drew them, whatever
    `model.weight_init` says. `one_graph`: compiled, a graph or a few serve all lengths; else each length takes its own.
    `parameter_groups`: by names that `train.groups` can give a learning rate and a weight decay of their own, some of
    its parameters, or of its modules with all of theirs, as `named_parameters` and `named_modules` call them. No
    parameter is in two groups; what only some settings have may stand there.

    A class is checked where it is defined; one whose subclasses add what is missing says `abstract=True` there. What a
    mixer may offer besides stands in `lra.ops.protocols`.
    """

    card: Card
    maskable: ClassVar[bool] = True
    can_be_causal: ClassVar[bool] = False
    commutes: ClassVar[bool] = False
    projects_out: ClassVar[bool] = False
    reads_few: ClassVar[bool] = False
    full_pattern: bool = False
    keeps_weights: bool = False
    one_graph: ClassVar[bool] = True
    parameter_groups: ClassVar[Mapping[str, tuple[str, ...]]] = MappingProxyType({})
    abstract: ClassVar[bool] = True

    def __init_subclass__(cls, *, abstract: bool = False, **options: object) -> None:
        super().__init_subclass__(**options)
        cls.abstract = abstract
        if not abstract:
            check_definition(cls, Card)

    def __init__(self, shape: Shape) -> None:
        if self.abstract:
            raise UserError(f"{type(self).__name__} is what several attentions share: choose one of them")
        super().__init__()
        self.shape = shape
        self.redraw_every: int | None = None
        self._drawn: tuple[int, int] | None = None

    @abstractmethod
    def forward(self, x: Tensor, key_mask: Tensor | None = None) -> Tensor:
        """Classes with `reads_few` take `reads`, too: how many outputs, from the first on, are wanted."""

    def mix(self, x: Tensor, key_mask: Tensor | None, reads: int | None) -> Tensor:
        """`forward`, cut to the first `reads` outputs if that is a number; raises UserError where what it gives is
        not like x."""
        few = reads is not None and self.reads_few
        mixed = self(x, key_mask, reads) if few else self(x, key_mask)
        expected = x[:, :reads].shape if few else x.shape
        name, dtypes = type(self).__name__, (x.dtype, autocast_dtype(x))
        check_output(name, mixed, expected, dtypes, "documents, positions, model.dim")
        return mixed if few else mixed[:, :reads]

    @property
    def causal(self) -> bool:
        """Whether no output depends on a later position."""
        return self.shape.causal

    @property
    @abstractmethod
    def extra_parameters(self) -> int:
        """Parameters beyond the four projections of the shape, by formula; negative where some are missing."""

    def redraw(self, seed: int, step: int) -> None:
        """Called before every training step: draws random features anew, as a function of (seed, step, layer), every
        `redraw_every` steps. Evaluation uses the last draw."""
        if self.redraw_every is None:
            return
        number = step // self.redraw_every
        if self._drawn != (seed, number):
            self.draw(streams.generator(seed, "features", number, self.shape.layer))
            self._drawn = seed, number

    def draw(self, rng: np.random.Generator) -> None:
        """New random features, in place: what a mixer that sets `redraw_every` defines."""
        raise NotImplementedError(f"{type(self).__name__} sets redraw_every, but has no draw(self, rng)")


class Attention(Mixer, abstract=True):
    """Multi-head shell: projections around `attend`; `out_proj=False` sends the heads straight on (SimpleTRON)."""

    projects_out = True

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.query = project_in(shape)
        self.key = project_in(shape)
        self.value = project_in(shape)
        self.out = project_out(shape)
        self.dropout = Dropout(shape.dropout)

    @abstractmethod
    def attend(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
        """q, k, v [B, H, L, Dh] -> [B, H, L, Dh]; with `reads_few`, q may hold the first positions only."""

    def forward(self, x: Tensor, key_mask: Tensor | None = None, reads: int | None = None) -> Tensor:
        q, k, v = self.project(x, reads)
        mixed = self.attend(q, k, v, key_mask)
        expected = torch.Size((*q.shape[:-1], v.shape[-1]))
        check_output(f"{type(self).__name__}.attend", mixed, expected, (), "documents, heads, positions, head width")
        return self.out(merge_heads(mixed))

    def project(self, x: Tensor, reads: int | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """q [B, H, L or reads, Dh] and k, v [B, H, L, Dh] of x [B, L, D]."""
        inputs = ((self.query, x[:, :reads]), (self.key, x), (self.value, x))
        q, k, v = (split_heads(projection(part), self.shape.heads) for projection, part in inputs)
        return q, k, v

    @property
    def extra_parameters(self) -> int:
        return 0


def project_in(shape: Shape) -> nn.Linear:
    """D -> H Dh."""
    return nn.Linear(shape.dim, shape.qkv_dim, bias=shape.bias)


def project_out(shape: Shape) -> nn.Module:
    """H Dh -> D, or nothing where the variant has no output projection."""
    return nn.Linear(shape.qkv_dim, shape.dim, bias=shape.bias) if shape.out_proj else nn.Identity()


def without_padding(x: Tensor, key_mask: Tensor | None) -> Tensor:
    """x [B, L, C] or [B, H, L, C] with zeros at padded positions."""
    if key_mask is None:
        return x
    real = key_mask.unsqueeze(-1)
    return x.masked_fill(~(real if x.dim() == 3 else real.unsqueeze(1)), 0)


def split_heads(x: Tensor, heads: int) -> Tensor:
    """[B, L, H Dh] -> [B, H, L, Dh]."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def merge_heads(x: Tensor) -> Tensor:
    """[B, H, L, Dh] -> [B, L, H Dh]."""
    return x.transpose(1, 2).flatten(2)
