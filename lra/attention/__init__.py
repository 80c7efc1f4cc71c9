"""The contract of a sequence mixer, and the shell that q/k/v mechanisms share.

Legend: B batch, L positions (the CLS counts), D model width, H heads, Dh width of a head (H Dh = qkv_dim).
A key mask [B, L] is True at real tokens; None means that all are real.
"""

from abc import abstractmethod
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from lra.dropout import Dropout
from lra.errors import UserError


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What the model tells its mixers; a mixer's own options come from `conf/attention/`."""

    dim: int
    qkv_dim: int
    heads: int
    max_len: int
    bias: bool
    out_proj: bool
    dropout: float
    causal: bool
    layer: int

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
    """What `results/attentions.md` says of a mechanism: the class's card of all its settings, with names in braces for
    what depends on them, an instance's of what it runs.

    `linear`: what it keeps for the backward pass grows no faster than the length. `oracle`: the independent
    implementation that the tests compare it with. `scale`: what the formula multiplies q . k with, where it is one
    number. `deviations`: in what it differs from its paper or from the authors' code, beyond what the settings say.
    """

    paper: str
    formula: str
    time: str
    linear: bool
    oracle: str
    scale: float | None = None
    deviations: tuple[str, ...] = ()


class Mixer(nn.Module):
    """Mixes positions: forward(x [B, L, D], key_mask) -> [B, L, D], for any L up to max_len; no residual, no norm.

    Outputs at real positions do not depend on what finite numbers stand at padded ones, and outputs there are finite;
    the model puts zeros there before the first mixer.
    A class says whether it can use a mask (`maskable`), whether it has a form in which an output depends on no later
    position (`can_be_causal`), which it takes when the shape says so, whether it commutes with a permutation of
    the positions (`commutes`), whether it has the output projection that the variants switch (`projects_out`), and
    whether outputs at the first positions alone come cheaper (`reads_few`). A mechanism that is meant to leave pairs of
    positions out says whether it leaves out none of them at `max_len`, where it is softmax attention (`full_pattern`).
    """

    card: Card
    maskable: ClassVar[bool] = True
    can_be_causal: ClassVar[bool] = False
    commutes: ClassVar[bool] = False
    projects_out: ClassVar[bool] = False
    reads_few: ClassVar[bool] = False
    full_pattern: bool = False

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape

    @abstractmethod
    def forward(self, x: Tensor, key_mask: Tensor | None = None) -> Tensor:
        """Classes with `reads_few` take `reads`, too: how many outputs, from the first on, are wanted."""

    def mix(
        self, x: Tensor, key_mask: Tensor | None, memory: Tensor | None, reads: int | None
    ) -> tuple[Tensor, Tensor | None]:
        """`forward`, cut to the first `reads` outputs if that is a number, for mechanisms that hand a memory
        [B, M, D] from layer to layer; the others pass it on."""
        if reads is not None and self.reads_few:
            return self(x, key_mask, reads), memory
        return self(x, key_mask)[:, :reads], memory

    @property
    def causal(self) -> bool:
        """Whether no output depends on a later position."""
        return self.shape.causal

    @property
    @abstractmethod
    def extra_parameters(self) -> int:
        """Parameters beyond the four projections of the shape, by formula; negative where some are missing."""

    def redraw(self, seed: int, step: int) -> None:
        """Called before every training step: mechanisms with random features draw them anew when it is time, as a
        function of (seed, step, layer). Evaluation uses the last draw."""


class Attention(Mixer):
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
        inputs = ((self.query, x[:, :reads]), (self.key, x), (self.value, x))
        q, k, v = (split_heads(project(x), self.shape.heads) for project, x in inputs)
        return self.out(merge_heads(self.attend(q, k, v, key_mask)))

    def weights(self, q: Tensor, k: Tensor, key_mask: Tensor | None) -> Tensor:
        """q [B, H, n, Dh], k [B, H, L, Dh] -> [B, H, n, L], whose product with v is `attend` without causality, where
        each token's value has a weight. Raises UserError elsewhere."""
        raise UserError(f"{type(self).__name__} has no weights between tokens: explain a run of simple or softmax")

    def score_scale(self, length: int, key_mask: Tensor | None) -> Tensor | float | None:
        """What q_i . k_j is multiplied by, a number or [B, 1, 1, 1], where the weight of token j for token i is a
        function of that product; None elsewhere."""
        return None

    @property
    def extra_parameters(self) -> int:
        return 0


def project_in(shape: Shape) -> nn.Linear:
    """D -> H Dh."""
    return nn.Linear(shape.dim, shape.qkv_dim, bias=shape.bias)


def project_out(shape: Shape) -> nn.Module:
    """H Dh -> D, or nothing where the variant has no output projection."""
    return nn.Linear(shape.qkv_dim, shape.dim, bias=shape.bias) if shape.out_proj else nn.Identity()


def split_heads(x: Tensor, heads: int) -> Tensor:
    """[B, L, H Dh] -> [B, H, L, Dh]."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def merge_heads(x: Tensor) -> Tensor:
    """[B, H, L, Dh] -> [B, L, H Dh]."""
    return x.transpose(1, 2).flatten(2)


def full_precision(device: torch.device) -> AbstractContextManager:
    """No autocast inside: for sums, exponentials and transforms that bf16 would spoil."""
    if not torch.amp.is_autocast_available(device.type):
        return nullcontext()
    return torch.autocast(device.type, enabled=False)


def autocast_dtype(x: Tensor) -> torch.dtype:
    """What products of x are computed in."""
    if x.is_meta or x.dtype == torch.float64:
        return x.dtype
    if torch.is_autocast_enabled(x.device.type):
        return torch.get_autocast_dtype(x.device.type)
    return x.dtype


def at_least_float32(x: Tensor) -> Tensor:
    """Half precision to fp32; fp32 and fp64 as they are."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
