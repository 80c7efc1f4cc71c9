"""Define the base classes of sequence mixers and of attentions with queries, keys and values.

Legend: B batch, L positions (including the CLS), D model width, H heads, Dh width of a head (H Dh = qkv_dim).
A key mask [B, L] is True at real tokens; None means that all are real.
"""

import zlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from inspect import getattr_static
from types import MappingProxyType
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import linear

from lra.core import streams
from lra.core.errors import UserError
from lra.ops.device import at_least_float32, autocast_dtype
from lra.ops.dropout import Dropout, Over
from lra.ops.packing import Packed


@dataclass(frozen=True, kw_only=True)
class MixerConfig:
    """Sizes and settings that the model passes to its mixers."""

    dim: int  # D
    qkv_dim: int  # H Dh
    heads: int  # H
    max_positions: int  # length of the longest input: the task's `max_len`, plus one for a CLS
    bias: bool = True  # True: projections have biases
    out_proj: bool = True  # True: attentions have an output projection
    dropout: float = 0.0  # probability of dropping a value
    dropout_over: Over = "values"  # unit to drop in activations; attention weights are always dropped one by one
    causal: bool = False  # True: outputs must not depend on later positions
    layer: int = 0  # index of the layer, from 0

    def __post_init__(self) -> None:
        if self.qkv_dim % self.heads:
            raise UserError(f"model.heads={self.heads} does not divide model.qkv_dim={self.qkv_dim}")

    @property
    def head_dim(self) -> int:
        return self.qkv_dim // self.heads


@dataclass(frozen=True, kw_only=True)
class MixerInfo:
    """Description of a mechanism for tables and documentation.

    The formula of a class may have names in braces; the constructor of the class replaces them by values or texts.
    """

    paper: str  # authors, year and title
    formula: str  # formula of the output
    complexity: str  # time complexity without the O, such as L w D
    linear_memory: bool  # True: the memory for the backward pass grows at most linearly with the length
    reference: str  # independent implementation that tests compare the mixer with
    scale: float | None = None  # scale factor of q . k; None if it is not one number
    deviations: tuple[str, ...] = ()  # differences from the paper or the authors' code, except in settings
    name: str = ""  # name in tables for a user's class; empty: the class name


class Mixer(nn.Module, ABC):
    """Base class of sequence mixers: forward(x [B, L, D], key_mask) -> [B, L, D], L at most `config.max_positions`.

    The residual connection and the norm around a mixer belong to the block. Inputs and outputs at padded positions are
    finite; if `maskable`, outputs at real positions do not depend on inputs at padded ones. A class defines `info` and
    `forward`; a base class without `info` is declared with `abstract=True`. A class may define two other methods.
    follow(earlier) is called once with the mixer of the previous layer, whose state it may read. If the attention
    weights are a function of the products q_i . k_j, score_scale(length, key_mask) returns the scale factor of these
    products, a number or a tensor [B, 1, 1, 1].

    Attributes:
        maskable: True if the mixer uses a key mask.
        can_be_causal: True if it has a form without dependence on later positions, used if `config.causal`.
        commutes: True if the mixer, when not causal, commutes with permutations of the positions.
        projects_out: True if it has an output projection, which `config.out_proj` switches.
        few_outputs: True if it can compute the outputs of only the first positions, at lower cost.
        full_pattern: True for a sparse or low-rank attention whose settings make it full up to `max_positions`.
        one_graph: True if one or a few compiled graphs serve all lengths; else each length needs a separate graph.
        parameter_groups: dict from a group for `train.groups` to the names of its parameters or modules, as in
            `named_parameters` and `named_modules`. No parameter is in two groups. A name may exist only under some
            settings.
    """

    info: MixerInfo
    maskable: ClassVar[bool] = True
    can_be_causal: bool = False
    commutes: bool = False
    projects_out: ClassVar[bool] = False
    few_outputs: ClassVar[bool] = False
    full_pattern: bool = False
    one_graph: ClassVar[bool] = True
    parameter_groups: ClassVar[Mapping[str, tuple[str, ...]]] = MappingProxyType({})

    def __init_subclass__(cls, *, abstract: bool = False, **options: object) -> None:
        super().__init_subclass__(**options)
        if not abstract and not isinstance(getattr_static(cls, "info", None), MixerInfo):
            name = f"{cls.__module__}.{cls.__name__}"
            raise UserError(
                f"{name} has no info: add info = MixerInfo(...) to the class, with MixerInfo from lra.mixers"
            )

    def __init__(self, config: MixerConfig) -> None:
        super().__init__()
        self.config = config
        self.redraw_every: int | None = None
        self._drawn: tuple[int, int] | None = None  # seed and number of the last draw
        self._drawn_values: dict[str, int] = {}  # checksums of the projections that `Attention` drew, by name

    @abstractmethod
    def forward(self, x: Tensor, key_mask: Tensor | None = None) -> Tensor:
        """Return the outputs [B, L, D].

        With `few_outputs` the method also takes `num_outputs`. If this is not None, the outputs are those of the first
        positions, [B, num_outputs, D].
        """

    def mix(self, x: Tensor, key_mask: Tensor | None, num_outputs: int | None, packed: Packed | None = None) -> Tensor:
        """Call `forward`, check its output and return it.

        Args:
            x: [B, L, D], or the rows [R, D] of a packed batch.
            key_mask: [B, L], True at real positions; None if all are real, and with a packed batch.
            num_outputs: number of first positions to return outputs for, or None for all; if packed, 1 or None.
            packed: layout of a packed batch, which is converted to a padded batch for `forward`.

        Returns:
            [B, L or num_outputs, D]; with a packed batch the rows [R, D], or [B, 1, D] if `num_outputs` is 1.

        Raises:
            UserError: `forward` returned another shape or type.
        """
        if packed is not None:
            mixed = self.mix(packed.pad(x), packed.mask, num_outputs)
            return packed.unpad(mixed) if num_outputs is None else mixed
        few = num_outputs is not None and self.few_outputs
        others = (key_mask, num_outputs) if few else (key_mask,)
        if self._is_half(x):  # convert weights to fp32 and use autocast, so that sums are in fp32
            weights = (*self.named_parameters(), *self.named_buffers())
            in_fp32 = {name: at_least_float32(value) for name, value in weights}
            with torch.autocast(x.device.type, self._real_dtype(x)):
                mixed = functional_call(self, in_fp32, (at_least_float32(x), *others)).to(x.dtype)
        else:
            mixed = self(x, *others)
        expected = x[:, :num_outputs].shape if few else x.shape
        name, dtypes = type(self).__name__, (x.dtype, autocast_dtype(x))
        check_output(name, mixed, expected, dtypes, "documents, positions, model.dim")
        return mixed if few else mixed[:, :num_outputs]

    def _is_half(self, x: Tensor) -> bool:
        """Return True if the real-valued weights, or x if there are none, are in bf16 or fp16."""
        return self._real_dtype(x) in (torch.bfloat16, torch.float16)

    def _real_dtype(self, x: Tensor) -> torch.dtype:
        return next((weight.dtype for weight in self.parameters() if weight.is_floating_point()), x.dtype)

    def own_values(self) -> set[nn.Parameter]:
        """Return the parameters that keep the values of the constructor under any `model.weight_init`.

        The set is empty for mixers of lra. For a user's mixer it has all parameters except projections that are
        unchanged since `Attention` drew them.
        """
        if type(self).__module__.split(".")[0] == "lra":
            return set()
        return {value for name, value in self.named_parameters() if self._drawn_values.get(name) != checksum(value)}

    @property
    def causal(self) -> bool:
        """True if no output depends on a later position."""
        return self.config.causal

    def redraw(self, seed: int, step: int) -> None:
        """Draw new random features every `redraw_every` training steps.

        The draw is a function of (seed, step // redraw_every, layer).
        """
        if self.redraw_every is None:
            return
        number = step // self.redraw_every
        if self._drawn != (seed, number):
            self.draw(streams.generator(seed, "features", number, self.config.layer))
            self._drawn = seed, number

    def draw(self, rng: np.random.Generator) -> None:
        """Replace the random features by new ones; mixers that set `redraw_every` define this method."""
        raise NotImplementedError(f"{type(self).__name__} sets redraw_every, but has no draw(self, rng)")


class Attention(Mixer, abstract=True):
    """Base class of multi-head attentions: input projections, `attend` and an output projection.

    Without `config.out_proj` the outputs are the joined heads.
    """

    projects_out = True
    packs: ClassVar[bool] = False  # True: the class defines `attend_packed`
    packs_unpadded: ClassVar[bool] = False  # True: `attend_packed` is faster than `attend` even without padding

    def __init__(self, config: MixerConfig) -> None:
        super().__init__(config)
        self.query = project_in(config)
        self.key = project_in(config)
        self.value = project_in(config)
        self.out = project_out(config)
        self.dropout = Dropout(config.dropout)
        self._drawn_values = {name: checksum(value) for name, value in self.named_parameters()}

    @abstractmethod
    def attend(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
        """Return outputs [B, H, n, Dh] for q [B, H, n, d], k [B, H, L, d], v [B, H, L, Dh].

        n < L only with `few_outputs`; d = Dh unless the class replaces the projections of q and k.
        """

    def forward(self, x: Tensor, key_mask: Tensor | None = None, num_outputs: int | None = None) -> Tensor:
        q, k, v = self.project(x, num_outputs)
        mixed = self.attend(q, k, v, key_mask)  # [B, H, L or num_outputs, Dh]
        expected = torch.Size((*q.shape[:-1], v.shape[-1]))
        check_output(f"{type(self).__name__}.attend", mixed, expected, (), "documents, heads, positions, head width")
        return self.out(merge_heads(mixed))  # [B, L or num_outputs, H Dh] -> [B, L or num_outputs, D]

    def mix(self, x: Tensor, key_mask: Tensor | None, num_outputs: int | None, packed: Packed | None = None) -> Tensor:
        x_in = x.to(autocast_dtype(x))
        if packed is None or self._is_half(x) or not self.can_pack(x_in.dtype, x.device):
            return super().mix(x, key_mask, num_outputs, packed)
        if num_outputs is None:
            q, k, v = self._project_rows(x_in, self.query, self.key, self.value)
        else:
            (q,) = self._project_rows(packed.firsts(x_in), self.query)
            k, v = self._project_rows(x_in, self.key, self.value)
        mixed = self.out(self.attend_packed(q, k, v, packed).flatten(1))  # [R, D], or [B, D] for the first positions
        return mixed if num_outputs is None else mixed.unsqueeze(1)

    def can_pack(self, dtype: torch.dtype, device: torch.device) -> bool:
        """Return True if `attend_packed` works on this device for products in this dtype."""
        return self.packs and not self.causal

    def _project_rows(self, x: Tensor, *projections: nn.Linear) -> tuple[Tensor, ...]:
        """Return one tensor [R, H, Dh] per projection of the rows x [R, D].

        One matrix product computes all of them, so that x and, in the backward pass, the gradient are read only once.
        """
        weight = torch.cat([projection.weight.to(x.dtype) for projection in projections])
        bias = torch.cat([projection.bias.to(x.dtype) for projection in projections]) if self.config.bias else None
        # [R, projections H Dh] -> [R, projections, H, Dh] -> [R, H, Dh] each.
        return linear(x, weight, bias).view(len(x), len(projections), self.config.heads, -1).unbind(1)

    def attend_packed(self, q: Tensor, k: Tensor, v: Tensor, packed: Packed) -> Tensor:
        """Return the outputs of `attend` for a packed batch, shaped like q.

        Only classes with `packs` define this method.

        q: rows [R, H, Dh], or only the first position of each document [B, H, Dh]; k, v: rows [R, H, Dh], which are
        finite at padding.
        """
        raise NotImplementedError

    def project(self, x: Tensor, num_outputs: int | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Project x [B, L, D] to q [B, H, n, d], k [B, H, L, d] and v [B, H, L, Dh], with n and d as in `attend`."""
        x = x.to(autocast_dtype(x))  # one conversion for all three projections
        inputs = ((self.query, x[:, :num_outputs]), (self.key, x), (self.value, x))
        q, k, v = (split_heads(projection(part), self.config.heads) for projection, part in inputs)
        return q, k, v


def checksum(value: Tensor) -> int:
    """Return a CRC-32 checksum of the bytes of a tensor; 0 for a tensor on the meta device."""
    plain = value.detach().contiguous().flatten()
    # View the bytes as integers, because NumPy has no bf16.
    return 0 if value.is_meta else zlib.crc32(plain.view(torch.uint8).cpu().numpy())  # type: ignore[arg-type]


def project_in(config: MixerConfig) -> nn.Linear:
    """Create the projection D -> H Dh of queries, keys or values."""
    return nn.Linear(config.dim, config.qkv_dim, bias=config.bias)


def project_out(config: MixerConfig) -> nn.Module:
    """Create the output projection H Dh -> D, or the identity if `config.out_proj` is False."""
    return nn.Linear(config.qkv_dim, config.dim, bias=config.bias) if config.out_proj else nn.Identity()


def without_padding(x: Tensor, key_mask: Tensor | None) -> Tensor:
    """Return x [B, L, C] or [B, H, L, C] with zeros at padded positions."""
    if key_mask is None:
        return x
    real = key_mask.unsqueeze(-1)  # [B, L, 1]
    return x.masked_fill(~(real if x.dim() == 3 else real.unsqueeze(1)), 0)


def split_heads(x: Tensor, heads: int) -> Tensor:
    """Split the width into heads: [B, L, H Dh] -> [B, H, L, Dh]."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def merge_heads(x: Tensor) -> Tensor:
    """Join the heads: [B, H, L, Dh] -> [B, L, H Dh]."""
    return x.transpose(1, 2).flatten(2)


def check_output(source: str, output: object, shape: torch.Size, dtypes: tuple[torch.dtype, ...], axes: str) -> None:
    """Raise UserError if the output is not a tensor of this shape in one of `dtypes`; an empty tuple allows any dtype.

    `axes` names the axes of the shape in the message.
    """
    if isinstance(output, Tensor) and output.shape == shape and (not dtypes or output.dtype in dtypes):
        return
    found = f"{list(output.shape)}, {output.dtype}" if isinstance(output, Tensor) else type(output).__name__
    expected = f"{list(shape)} ({axes})" + (f" in {dtypes[0]}" if dtypes else "")
    raise UserError(f"{source} returns {found}, expected {expected}")
