"""Noise in training: the noise of a value is a pure function of (seed, step, layer, example, head, number).

The number of a value stands for its coordinates (`numbering`). So, however a batch is cut into micro-batches, and
however far it is padded, every example meets the same noise: the gradient of a step does not depend on the cut, and a
resumed run needs no random state.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from math import ceil, log, prod
from types import ModuleType
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from lra.core import streams
from lra.core.console import say
from lra.ops.async_copy import to_device
from lra.ops.noise import BatchWords, Noise, StepWords, rule_of
from lra.ops.numbering import Numbers, count_of, numbers_of, places_of

LEVELS = 1 << 16  # probabilities are compared with 16-bit integers, so they are exact to 1.5e-5
Dropped = Tensor | Noise
Over = Literal["values", "channels"]


@dataclass(frozen=True, kw_only=True)
class NoiseKey:
    """Which noise: `words` from (seed, "dropout"), and the step, the layer and the rows of the batch."""

    words: np.ndarray
    step: int
    layer: int
    rows: Sequence[int]

    def bits(self, row: int, part: int) -> np.random.Philox:
        """The raw bits of one row of the batch; a row may have several parts, such as heads."""
        return np.random.Philox(
            key=self.words, counter=np.array([0, row | part << 32, self.layer, self.step], np.uint64)
        )


@dataclass
class NoiseState:
    """What a module that draws is told: `layer`, which of those in the model it is; `parts`, how many a row had the
    last time. It stands apart, since a module takes a hundred times as long to set an attribute of its own."""

    keys: "StepKeys | None" = None
    layer: int = 0
    parts: int = 1


class Keyed(nn.Module):
    """Whatever draws in training; `set_keys` says what."""

    def __init__(self) -> None:
        super().__init__()
        self.noise_state = NoiseState()

    def key(self, rows: int) -> NoiseKey:
        """The key of this batch of so many rows."""
        keys = self.noise_state.keys
        if keys is None or len(keys.rows) != rows:
            raise RuntimeError("noise in training: call lra.ops.dropout.set_keys(model, ...) for this batch first")
        return NoiseKey(words=keys.words, step=keys.step, layer=self.noise_state.layer, rows=keys.rows)


class Dropout(Keyed):
    """Zeroes a value of x [B, ...] with probability p in training, and scales the others by 1 / (1 - p).

    From four axes on the second is that of heads, each of which has a stream of noise by itself. With `over="channels"`
    x [B, L, D] is zero in whole channels: at all positions of an example, or at none (Tompson et al. 2015).
    """

    def __init__(self, p: float, over: Over = "values") -> None:
        super().__init__()
        self.p = p
        self.numbers: Numbers = "channels" if over == "channels" else "order"
        self.as_mask = False  # where torch.compile takes what `draw` returns

    def forward(self, x: Tensor, numbers: Numbers | None = None) -> Tensor:
        dropped = self.draw(x.shape, x.device, numbers)
        return x if dropped is None else _Drop.apply(x, dropped, self.scale)

    def draw(self, shape: Sequence[int], device: torch.device, numbers: Numbers | None = None) -> Dropped | None:
        """What `zero_` shall drop of x; None where nothing is."""
        return self.drawn(shape, device, self.numbers if numbers is None else numbers) if self.drops else None

    def drawn(self, shape: Sequence[int], device: torch.device, numbers: Numbers) -> Dropped:
        """What `draw` gives, by the key of this batch."""
        key = self.key(shape[0])
        if self.by_rule(device):
            parts, inner = _heads(shape)
            self.noise_state.parts = parts
            return rule_of(self.noise_state.keys.batch.on(device, key.layer, parts), inner, _level(self.p), numbers)
        if device.type == "cpu":
            return torch.from_numpy(_dropped(key, shape, self.p, numbers))
        return _kept(key, shape, self.p, device, numbers)

    def by_rule(self, device: torch.device) -> bool:
        """Whether what `draw` returns there is a rule, for a kernel."""
        return not self.as_mask and has_kernel(device)

    @property
    def drops(self) -> bool:
        """Whether any value is dropped."""
        return self.training and self.p > 0

    @property
    def scale(self) -> float:
        """What the values that stay are multiplied by."""
        return 1 / (1 - self.p) if self.training else 1.0

    def extra_repr(self) -> str:
        return f"p={self.p}, numbers={self.numbers}"


class Gumbel(Keyed):
    """Adds Gumbel noise, -log(-log u), to logits of pairs x [B, H, N, N] in training."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        return x + self.drawn(x.shape, x.device).to(x.dtype)

    def drawn(self, shape: Sequence[int], device: torch.device) -> Tensor:
        """The noise of this batch, in float64."""
        key, (heads, *pairs) = self.key(shape[0]), shape[1:]
        words = np.stack([key.bits(row, head).random_raw(prod(pairs)) for row in key.rows for head in range(heads)])
        uniform = (words >> np.uint64(11)) * 2.0**-53 + 2.0**-54
        noise = torch.from_numpy(-np.log(-np.log(uniform)))[:, numbers_of(pairs, "pairs", torch.device("cpu"))]
        return to_device(noise.view(shape), device)


def has_kernel(device: torch.device) -> bool:
    """Whether a kernel can drop values there."""
    return device.type == "cuda" and kernel() is not None


@cache
def kernel() -> ModuleType | None:
    """The module `noise_kernel`; None, and it is said once, where Triton is missing."""
    try:
        from lra.ops import noise_kernel
    except ImportError:
        say("dropout: Triton is not installed, so its noise takes several passes over memory; pip install triton")
        return None
    return noise_kernel


class StepKeys:
    """Names the noise of a step for the `layers` of a model that draw; `rows` are the places of its documents in the
    batch."""

    def __init__(self, layers: Sequence[Keyed], *, seed: int, step: int, rows: Sequence[int]) -> None:
        self.words, self.step = _key_words(seed), step
        self._of_step = StepWords(self.words, step, rows, [module.noise_state.parts for module in layers])
        self._places = {row: place for place, row in enumerate(rows)}
        self.set(rows)
        for layer, module in enumerate(layers):
            module.noise_state.keys, module.noise_state.layer = self, layer

    def set(self, rows: Sequence[int]) -> None:
        """The next forward pass is of these rows of the step; before, it is of all."""
        self.rows, self.batch = rows, BatchWords(self._of_step, [self._places[row] for row in rows])


@lru_cache(maxsize=1)
def _key_words(seed: int) -> np.ndarray:
    """The same for all steps."""
    return streams.key(seed, "dropout")


def keyed(model: nn.Module) -> list[Keyed]:
    """The layers of a model that draw."""
    return [module for module in model.modules() if isinstance(module, Keyed)]


def set_keys(model: nn.Module, *, seed: int, step: int, rows: Sequence[int]) -> None:
    """Name the noise of the next forward pass, which has all rows of a step."""
    StepKeys(keyed(model), seed=seed, step=step, rows=rows)


class _Drop(torch.autograd.Function):
    """x scale, but zero where dropped."""

    @staticmethod
    def forward(ctx, x: Tensor, dropped: Dropped, scale: float) -> Tensor:
        places, ctx.rule = apart(dropped)
        ctx.save_for_backward(places)
        ctx.scale = scale
        return scaled(x, dropped, scale)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None, None]:
        (places,) = ctx.saved_tensors
        return _Drop.apply(grad, ctx.rule or places, ctx.scale), None, None


def apart(dropped: Dropped | None) -> tuple[Tensor | None, Noise | None]:
    """What autograd keeps: a tensor, which it frees after use, or a rule, which is small."""
    return (None, dropped) if isinstance(dropped, Noise) else (dropped, None)


def scaled(x: Tensor, dropped: Dropped, scale: float) -> Tensor:
    """x scale, but zero where dropped."""
    if isinstance(dropped, Noise):
        return kernel().drop(x, dropped, scale)
    return zero_(x * scale, dropped)


def zero_(x: Tensor, dropped: Dropped | None) -> Tensor:
    """x, zero in place where dropped, which is given by its flat places, by a mask of x's size, True where kept, or by
    rule."""
    if dropped is None:
        return x
    x = x.contiguous()
    if isinstance(dropped, Noise):
        return kernel().drop(x, dropped, 1.0, out=x)
    if dropped.dtype == torch.bool:
        return x.mul_(dropped.view(x.shape))
    x.view(-1).index_fill_(0, dropped, 0)
    return x


def _dropped(key: NoiseKey, shape: Sequence[int], p: float, numbers: Numbers = "order") -> np.ndarray:
    """Flat places [n] int64 of the values of `shape` [B, ...] that are dropped: on a CPU cheaper to draw, keep and set
    than a mask, since they are few."""
    heads, inner = _heads(shape)
    size, count = prod(inner), count_of(inner, numbers)
    dropped = []
    for place, row in enumerate(key.rows):
        for head in range(heads):
            in_head = places_of(_thin(key.bits(row, head), count, p), inner, numbers)
            dropped.append(in_head + (place * heads + head) * size)
    return np.concatenate(dropped)


def _heads(shape: Sequence[int]) -> tuple[int, Sequence[int]]:
    """How many heads x of `shape` [B, ...] has, and the axes within one."""
    return (shape[1], shape[2:]) if len(shape) > 3 else (1, shape[1:])


def _thin(bits: np.random.Philox, size: int, p: float) -> np.ndarray:
    """The places below `size` of independent drops with probability p, ascending: the sums of geometric gaps."""
    gaps, drops, mean = _gaps(p)
    drawn, end = [], -1
    while end < size - 1:
        expected = (size - 1 - end) / mean
        words = bits.random_raw(ceil((expected + 4 * expected**0.5 + 4) / 4)).view(np.uint16)
        places = np.cumsum(gaps[words], dtype=np.int64)
        places += end
        end = int(places[-1])
        inside = places[: np.searchsorted(places, size)]
        drawn.append(inside[words[: len(inside)] < drops])
    return np.concatenate(drawn)


@cache
def _gaps(p: float) -> tuple[np.ndarray, int, float]:
    """How far each 16-bit word advances to the next drop [LEVELS], from which word on it is no drop, and the mean
    advance.

    Gaps are geometric. Those beyond the last in the table (one in sixteen, unless p is tiny) advance to there without
    a drop and draw again, which changes nothing, since they have no memory; so no gap in the table is rare.
    """
    last = min(max(1, ceil(log(1 / 16) / log(1 - p))), LEVELS // 16)
    bounds = np.rint(LEVELS * (1 - (1 - p) ** np.arange(last + 1))).astype(np.int64)  # words below: gap <= index
    gaps = np.full(LEVELS, last, dtype=np.min_scalar_type(last))  # small, so that a cache holds the table
    gaps[: bounds[-1]] = np.repeat(np.arange(1, last + 1), np.diff(bounds))
    return gaps, int(bounds[-1]), float(gaps.mean())


def _kept(key: NoiseKey, shape: Sequence[int], p: float, device: torch.device, numbers: Numbers = "order") -> Tensor:
    """True where a value of `shape` [B, ...] is kept: a hash of its number and its row's word, so that an accelerator
    needs no generator and no copy."""
    heads, inner = _heads(shape)
    words = np.array([key.bits(row, head).random_raw() >> 1 for row in key.rows for head in range(heads)], np.int64)
    mixed = _mix(_mix(numbers_of(inner, numbers, device)) ^ to_device(torch.from_numpy(words), device)[:, None])
    return ((mixed & (LEVELS - 1)) >= _level(p)).view(shape)


def _level(p: float) -> int:
    """Below which of the levels a value is dropped."""
    return round(p * LEVELS)


def _mix(x: Tensor) -> Tensor:
    """A bijection of 64-bit integers that spreads every bit (the finaliser of SplitMix64)."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = (x ^ (x >> shift & (1 << 64 - shift) - 1)) * (factor - (1 << 64))
    return x ^ (x >> 31 & (1 << 33) - 1)
