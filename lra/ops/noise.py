"""Noise on an accelerator: its words, made once for a step and copied once for a batch, and what a kernel is told.

The plain form there (`dropout._kept`) makes a mask from int64 tensors as large as the data, and moves more than
200 bytes a value (tests/test_noise_kernel.py counts them). The kernel of `noise_kernel` hashes in registers while it
reads and writes the data, forward and backward. It moves nothing besides but a word of 8 bytes for each row and head,
and where numbers go by runs three small tables, which a cache holds.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from lra.ops.async_copy import to_device
from lra.ops.numbering import Numbers

MASK = np.uint64(0xFFFFFFFF)
HALF = np.uint64(32)
FACTORS = np.array([0xD2E7470EE14C6C93, 0xCA5A826395121157], np.uint64)
AT_ONCE = 1 << 13  # words of so few steps are made together: of less, numpy's calls take longer than its arithmetic
ADDED = np.array([0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B], np.uint64)


@dataclass(frozen=True, kw_only=True)
class Noise:
    """Which values of x [B, ...] are dropped, by rule: a value whose hash is below `drops`."""

    words: Tensor  # [B heads]
    inner: Sequence[int]  # the axes of a head
    drops: int
    numbering: Literal["order", "pairs", "channels", "columns", "runs"]
    most: int  # numbers in a column where numbers go by columns, and in a row where they go by runs
    columns: Tensor | None = None  # [m] runs only: the number of a column in its row, less what `first` says
    runs: Tensor | None = None  # [m] runs only: which run a column belongs to
    first: Tensor | None = None  # [runs, n] runs only: see ColumnRun


def rule_of(words: Tensor, inner: Sequence[int], drops: int, numbers: Numbers) -> Noise:
    """The rule for values that `numbers` numbers, in heads with the axes `inner`."""
    if isinstance(numbers, int):
        return Noise(words=words, inner=inner, drops=drops, numbering="columns", most=numbers)
    if isinstance(numbers, str):
        return Noise(words=words, inner=inner, drops=drops, numbering=numbers, most=0)
    columns, run_of, before, device = [], [], 0, words.device
    for number, run in enumerate(numbers):
        columns.append(torch.arange(before, before + run.width, device=device))
        run_of.append(torch.full((run.width,), number, device=device))
        before += run.most
    tables = {
        "columns": torch.cat(columns),
        "runs": torch.cat(run_of),
        "first": torch.stack([r.first for r in numbers]),
    }
    return Noise(words=words, inner=inner, drops=drops, numbering="runs", most=before, **tables)


class StepWords:
    """The words of all layers of a step for `parts` of each row in a layer, which are made when one is first asked
    for."""

    def __init__(self, key: np.ndarray, step: int, rows: Sequence[int], parts: Sequence[int]) -> None:
        self._key, self._step, self._rows, self.parts = key, step, tuple(rows), parts
        self._made: np.ndarray | None = None

    def of(self, places: Sequence[int]) -> np.ndarray:
        """The words of the rows at these places, one layer after the other."""
        most = max(self.parts)
        if self._made is None:
            many = max(1, AT_ONCE // (len(self.parts) * len(self._rows) * most))
            first = self._step - self._step % many
            steps, layers = range(first, first + many), range(len(self.parts))
            self._made = words_of_steps(tuple(self._key), steps, layers, self._rows, most)[self._step - first]
        words = self._made[:, places]
        if min(self.parts) == most:
            return words.ravel()
        there = np.arange(most) < np.array(self.parts)[:, None, None]
        return words[np.broadcast_to(there, words.shape)]

    def of_layer(self, places: Sequence[int], layer: int, parts: int) -> np.ndarray:
        """The words of one layer alone, for so many parts."""
        return _words(self._key, [self._step], [layer], [self._rows[place] for place in places], parts).ravel()


def _words(
    key: Sequence[int], steps: Sequence[int], layers: Sequence[int], rows: Sequence[int], parts: int
) -> np.ndarray:
    """[steps, layers, rows, parts]."""
    counters = np.zeros((4, len(steps), len(layers), len(rows), parts), np.uint64)
    counters[1] = np.array(rows, np.uint64)[:, None] | np.arange(parts, dtype=np.uint64) << HALF
    counters[2] = np.array(layers, np.uint64)[:, None, None]
    counters[3] = np.array(steps, np.uint64)[:, None, None, None]
    words = first_raw(np.array(key, np.uint64), counters.reshape(4, -1)) >> np.uint64(1)
    return words.astype(np.int64).reshape(counters.shape[1:])


words_of_steps = lru_cache(maxsize=1)(_words)


class BatchWords:
    """The words of a step for the rows at these places, which are copied to the accelerator at once."""

    def __init__(self, step: StepWords, places: Sequence[int]) -> None:
        self._step, self._places = step, places
        self._copied: Sequence[Tensor] = ()

    def on(self, device: torch.device, layer: int, parts: int) -> Tensor:
        """The words [rows parts] of one layer."""
        counts = self._step.parts
        if parts != counts[layer]:  # in the first step alone it is not known how many heads a layer has
            return to_device(torch.from_numpy(self._step.of_layer(self._places, layer, parts)), device)
        if not self._copied:
            copied = to_device(torch.from_numpy(self._step.of(self._places)), device)
            self._copied = copied.split([len(self._places) * count for count in counts])
        return self._copied[layer]


def first_raw(key: np.ndarray, counters: np.ndarray) -> np.ndarray:
    """What np.random.Philox(key=key, counter=counters[:, i]).random_raw() gives for every i, counters [4, n].

    Ten rounds of Philox 4x64 (Salmon et al. 2011), all at once, since an object for each costs microseconds.
    """
    products, others = counters[[0, 2]], counters[[1, 3]]
    products[0] += np.uint64(1)  # numpy counts before it draws
    for turn in range(10):
        high, low = _product(products, FACTORS[:, None])
        products, others = high[::-1] ^ others ^ (key + ADDED * np.uint64(turn))[:, None], low[::-1]
    return products[0]


def _product(x: np.ndarray, factor: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The upper and the lower 64 bits of a product of 128."""
    low, high = x & MASK, x >> HALF
    factor_low, factor_high = factor & MASK, factor >> HALF
    middle = high * factor_low + (low * factor_low >> HALF)
    upper = high * factor_high + (middle >> HALF) + (((middle & MASK) + low * factor_high) >> HALF)
    return upper, x * factor
