"""Noise in training whose values for one example are a pure function of (seed, step, layer, example).

However a batch is cut into micro-batches, every example meets the same noise, so the gradient of a step does
not depend on the cut; and a resumed run needs no random state.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from lra import streams

LEVELS = 1 << 16  # masks are drawn from 16-bit integers, so p is exact to 1.5e-5


@dataclass(frozen=True, kw_only=True)
class Key:
    """Which masks: `words` from (seed, "dropout"), and the step, the layer and the rows of the batch."""

    words: np.ndarray
    step: int
    layer: int
    rows: Sequence[int]


class Keyed(nn.Module):
    """Whatever draws in training; `set_keys` says what."""

    def __init__(self) -> None:
        super().__init__()
        self._key: Key | None = None

    def key(self, rows: int) -> Key:
        """The key of this batch of so many rows."""
        if self._key is None or len(self._key.rows) != rows:
            raise RuntimeError("noise in training: call lra.dropout.set_keys(model, ...) for this batch first")
        return self._key


class Dropout(Keyed):
    """Zeroes a value of x [B, ...] with probability p in training, and scales the others by 1 / (1 - p)."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        threshold = round(self.p * LEVELS)
        keep = _masks(self.key(len(x)), x.shape[1:], threshold, x.device)
        return (x * keep).mul_(LEVELS / (LEVELS - threshold))

    def extra_repr(self) -> str:
        return f"p={self.p}"


class Gumbel(Keyed):
    """Adds Gumbel noise, -log(-log u), to x [B, ...] in training."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        key = self.key(len(x))
        uniform = np.empty((len(x), x[0].numel()))
        for line, row in zip(uniform, key.rows, strict=True):
            line[:] = (_bits(key, row).random_raw(line.size) >> np.uint64(11)) * 2.0**-53 + 2.0**-54
        noise = torch.from_numpy(-np.log(-np.log(uniform))).reshape(x.shape)
        return x + noise.to(x.device, x.dtype)


def set_keys(model: nn.Module, *, seed: int, step: int, rows: Sequence[int]) -> None:
    """Name the noise of the next forward pass; `rows` are the places of its documents in the step's batch."""
    words = streams.key(seed, "dropout")
    layers = [module for module in model.modules() if isinstance(module, Keyed)]
    for layer, module in enumerate(layers):
        module._key = Key(words=words, step=step, layer=layer, rows=rows)


def _masks(key: Key, shape: torch.Size, threshold: int, device: torch.device) -> Tensor:
    """True where a value is kept, [B, *shape] bool."""
    if device.type == "cpu":
        return torch.from_numpy(_philox_masks(key, shape, threshold))
    masks = torch.empty((len(key.rows), *shape), dtype=torch.bool, device=device)
    generator = torch.Generator(device)
    for mask, row in zip(masks, key.rows, strict=True):
        word = np.random.SeedSequence([*key.words.tolist(), key.step, key.layer, row]).generate_state(1, np.uint64)
        generator.manual_seed(int(word[0]) >> 1)
        mask.bernoulli_(1 - threshold / LEVELS, generator=generator)
    return masks


def _bits(key: Key, row: int) -> np.random.Philox:
    """The raw bits of one row of the batch."""
    return np.random.Philox(key=key.words, counter=np.array([0, row, key.layer, key.step], dtype=np.uint64))


def _philox_masks(key: Key, shape: torch.Size, threshold: int) -> np.ndarray:
    size = int(np.prod(shape))
    masks = np.empty((len(key.rows), size), dtype=bool)
    for mask, row in zip(masks, key.rows, strict=True):
        words = _bits(key, row).random_raw(-(-size // 4))
        np.greater_equal(words.view(np.uint16)[:size], threshold, out=mask)
    return masks.reshape(len(key.rows), *shape)
