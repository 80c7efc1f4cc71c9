"""Seeded choices among the examples of a task: held-out parts and samples for quick checks.

The seed is part of the task's version, not of a run's: all runs see the same examples.
"""

import heapq
from collections.abc import Iterable, Iterator
from typing import TypeVar

import numpy as np

from lra.core import streams

Row = TypeVar("Row")

SEED = 0
HOLD_OUT, LIMIT, SHUFFLE, HOLD_OUT_TEST = 0, 1, 2, 3  # indices in the stream "data"


def held_out(labels: np.ndarray, share: float = 0.1, split: str = "val") -> np.ndarray:
    """Return a mask [n] of a random share of each class of `labels` [n], held out for `split`."""
    index = HOLD_OUT_TEST if split == "test" else HOLD_OUT
    chosen = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels).tolist():
        rows = streams.generator(SEED, "data", index, label).permutation(np.flatnonzero(labels == label))
        chosen[rows[: int(share * len(rows))]] = True
    return chosen


def limited(count: int, limit: int | None, split: str) -> np.ndarray:
    """Return the indices of at most `limit` of `count` examples, at random, ascending; all without a limit."""
    if limit is None or limit >= count:
        return np.arange(count)
    draw = streams.generator(SEED, "data", LIMIT, *split.encode())
    return np.sort(draw.choice(count, size=limit, replace=False))


def sampled(rows: Iterable[Row], limit: int | None, split: str) -> Iterator[Row]:
    """Choose at most `limit` rows of a stream of unknown length, keeping no more in memory."""
    if limit is None:
        return iter(rows)
    draw = streams.generator(SEED, "data", LIMIT, *split.encode())
    kept = heapq.nsmallest(limit, ((draw.random(), number, row) for number, row in enumerate(rows)))
    return (row for _, _, row in sorted(kept, key=lambda item: item[1]))


def shuffled(count: int) -> np.ndarray:
    """Return the indices of `count` examples in random order."""
    return streams.generator(SEED, "data", SHUFFLE).permutation(count)
