"""Noise in training: a pure function of (seed, step, layer, document, head, row, column) of a value.

A row is a position, or a query; a column is a channel, or a key. So the noise depends neither on how far a batch is
padded, nor on whether it is packed, nor on how it is cut: the gradient of a step does not depend on the cut, and a
resumed run needs no random state. A CPU compares 16-bit words of a generator with a threshold; an accelerator hashes
coordinates, which a compiler fuses with the operations around.

Legend: B documents, H heads, L positions, F channels, n queries, m keys, T rows of packed documents.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from lra.core import streams
from lra.ops.async_copy import to_device
from lra.ops.packing import Packed

LEVELS = 1 << 16  # a CPU's probabilities are exact to 1.5e-5
JUMP = 0x9E3779B97F4A7C15  # numbers of 4 words from row to row of weights; odd, so that all bits of the state differ
ROW, COLUMN, HEAD = -0x61C8864F, -0x7A143589, -0x3D4D51C3  # odd
MIX, FINISH = -0x7A143595, -0x3D4D51CB  # of MurmurHash3's 32-bit finaliser (Appleby)

Over = Literal["values", "channels"]


@dataclass(frozen=True, kw_only=True)
class NoiseKey:
    """Key of the noise of a layer in a batch; `rows`: the places of its documents in the step's batch."""

    seed: int
    step: int
    layer: int
    rows: Sequence[int]

    def words(self, row: int, shape: Sequence[int]) -> np.ndarray:
        """16-bit words of one document for values [F], [L, F] or, row by row, [H, ..., m]."""
        if len(shape) < 3:
            size = prod(shape)
            return self._bits(row, 0).random_raw(-(-size // 4)).view(np.uint16)[:size].reshape(shape)
        columns = -(-shape[-1] // 4)
        words = np.empty((shape[0], prod(shape[1:-1]), columns), np.uint64)
        for head, of_head in enumerate(words):
            bits = self._bits(row, head)
            for of_row in of_head:
                of_row[:] = bits.random_raw(columns)
                bits.advance(JUMP - columns)
        return words.view(np.uint16)[..., : shape[-1]].reshape(shape)

    def _bits(self, row: int, head: int) -> np.random.PCG64DXSM:
        return streams.pcg(self.seed, "dropout", self.step, self.layer, row, head)


class Keyed(nn.Module):
    """A layer that draws noise in training, by the key that `set_keys` gives it; `hashed`: also a CPU hashes."""

    def __init__(self) -> None:
        super().__init__()
        self.key: NoiseKey | None = None
        self.words: Tensor | None = None  # [B] int32: what a hash makes of the key
        self.hashed = False

    def hash(self, x: Tensor, packed: Packed | None = None, columns: Tensor | None = None) -> Tensor:
        """Uniform int32 numbers for the values of x [B, F], [B, L, F], [B, H, ..., m], or packed [T, F]."""
        self._check(len(x) if packed is None else len(packed.mask))
        words, device = self.words.to(x.device), x.device
        columns = torch.arange(x.shape[-1], dtype=torch.int32, device=device) if columns is None else columns.int()
        if packed is not None:
            words, rows = words[packed.document].unsqueeze(1), packed.position.unsqueeze(1)
        else:
            axes = x.shape[2:-1] if x.dim() > 3 else x.shape[1:-1]
            rows = torch.arange(prod(axes), dtype=torch.int32, device=device).view(*axes, 1)
            if x.dim() > 3:
                words = words.unsqueeze(1) + torch.arange(x.shape[1], dtype=torch.int32, device=device) * HEAD
            words = words.view(*words.shape, *[1] * (x.dim() - words.dim()))
        if getattr(self, "over", "values") == "channels":
            rows = torch.zeros_like(rows)
        mixed = rows * ROW + words + columns * COLUMN
        mixed = ((mixed ^ (mixed >> 16 & 0xFFFF)) * MIX) ^ words
        return (mixed ^ (mixed >> 13 & 0x7FFFF)) * FINISH

    def _check(self, documents: int) -> None:
        if self.words is None or len(self.words) != documents:
            raise RuntimeError("noise in training: call lra.ops.dropout.set_keys(model, ...) for this batch first")


class Dropout(Keyed):
    """Zeroes values of x with probability p in training, and scales the others by 1 / (1 - p).

    With `over="channels"` x [B, L, F] is zero in whole channels: at all positions of a document, or at none (Tompson et
    al. 2015).
    """

    def __init__(self, p: float, over: Over = "values") -> None:
        super().__init__()
        self.p, self.over = p, over

    def forward(
        self, x: Tensor, packed: Packed | None = None, columns: Tensor | None = None, *, scaled: bool = True
    ) -> Tensor:
        """Drop values of x, which is as for `hash`.

        Args:
            x: the values.
            packed: the layout of packed rows.
            columns: of the values, as far as they broadcast; None: 0, 1, 2 ...
            scaled: False where what follows has the scale.
        """
        if not self.drops:
            return x
        scale = self.scale if scaled else 1.0
        if columns is None and self.draws_places(x):
            return _Drop.apply(x, self.places(x, packed), scale)
        kept = self.hash(x, packed, columns) >= round(self.p * 2**32) - 2**31
        return torch.where(kept, x * scale, 0)

    @property
    def drops(self) -> bool:
        """True in training if p is positive."""
        return self.training and self.p > 0

    @property
    def scale(self) -> float:
        """Factor of the values that are kept."""
        return 1 / (1 - self.p)

    def draws_places(self, x: Tensor) -> bool:
        """True on a CPU, unless noise is hashed."""
        return self.drops and x.device.type == "cpu" and not self.hashed

    def places(self, x: Tensor, packed: Packed | None = None) -> Tensor:
        """Flat places [n] of the values to drop: they are few, so cheaper to keep and to set than a mask."""
        self._check(len(x) if packed is None else len(packed.mask))
        channels, level, start, dropped = self.over == "channels", round(self.p * LEVELS), 0, []
        shapes = [x.shape[1:]] * len(x) if packed is None else [(length, x.shape[1]) for length in packed.lengths]
        for row, shape in zip(self.key.rows, shapes, strict=True):
            words = self.key.words(row, shape[-1:] if channels else shape)
            places = np.flatnonzero(words < level)
            if channels:
                places = (np.arange(prod(shape[:-1]))[:, None] * shape[-1] + places).ravel()
            dropped.append(places + start)
            start += prod(shape)
        return torch.from_numpy(np.concatenate(dropped))

    def extra_repr(self) -> str:
        return f"p={self.p}, over={self.over}"


class Gumbel(Keyed):
    """Adds Gumbel noise, -log(-log u), to logits of pairs x [B, H, N, N] in training."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        uniform = (self.hash(x).double() + (2**31 + 0.5)) * 2.0**-32
        return x - (-uniform.log()).log().to(x.dtype)


def set_keys(model: nn.Module, *, seed: int, step: int, rows: Sequence[int]) -> None:
    """Set the noise of the next forward pass; `rows`: the places of its documents in the batch of the step."""
    layers = [module for module in model.modules() if isinstance(module, Keyed)]
    if not layers:
        return
    raw = streams.pcg(seed, "dropout", step).random_raw((max(rows, default=0) + 1) * len(layers))
    raw = (raw >> np.uint64(32)).astype(np.uint32).view(np.int32)
    words = torch.from_numpy(np.ascontiguousarray(raw.reshape(-1, len(layers))[list(rows)].T))
    parameter = next(model.parameters(), None)
    words = to_device(words, torch.device("cpu") if parameter is None else parameter.device)
    for layer, (module, of_layer) in enumerate(zip(layers, words, strict=True)):
        module.key, module.words = NoiseKey(seed=seed, step=step, layer=layer, rows=rows), of_layer


def zero_(x: Tensor, places: Tensor) -> Tensor:
    """Set flat places of a contiguous tensor to zero."""
    x.view(-1).index_fill_(0, places, 0)
    return x


class _Drop(torch.autograd.Function):
    """x scale, but zero at flat places."""

    @staticmethod
    def forward(ctx, x: Tensor, places: Tensor, scale: float) -> Tensor:
        ctx.save_for_backward(places)
        ctx.scale = scale
        return zero_(x.contiguous() * scale, places)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None, None]:
        return _Drop.apply(grad, *ctx.saved_tensors, ctx.scale), None, None
