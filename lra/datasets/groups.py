"""Group examples by a property, and choose random examples.

A `Group` maps each value (or range of values) of one property to the indices [k] of its examples. Each of n examples
has exactly one value. Choices use a fixed seed instead of the seed of a run, so that all runs see the same examples.
"""

import heapq
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import numpy as np

from lra.core import streams

Group = dict[str, np.ndarray]
Row = TypeVar("Row")

PARTS = 5  # maximum number of ranges of `by_size`
SEED = 0  # seed of all choices
HOLD_OUT, LIMIT, SHUFFLE, HOLD_OUT_TEST = 0, 1, 2, 3  # index of each kind of choice in the random stream "data"


def by_value(values: np.ndarray, name: Callable[[int], str] = str) -> Group:
    """Return {name(value): indices [k] of the examples with this value} for `values` [n], sorted by value."""
    return {name(int(value)): np.flatnonzero(values == value) for value in np.unique(values)}


def by_size(sizes: np.ndarray) -> Group:
    """Return {"min-max": indices [k] of the examples with a size in this range} for `sizes` [n], sorted by size.

    Each range has about a fifth of the examples. If many sizes are equal, there are fewer ranges, with unequal numbers
    of examples.
    """
    ranks = np.arange(1, PARTS) * len(sizes) // PARTS  # [PARTS - 1]: ranks of the sizes that are bounds
    # Remove duplicate bounds: if more than a fifth of the examples have one size, it may bound several ranges.
    parts = np.searchsorted(np.unique(np.sort(sizes)[ranks]), sizes, side="right")

    def name(part: int) -> str:
        members = sizes[parts == part]
        return f"{members.min()}-{members.max()}" if members.min() < members.max() else str(members.min())

    return by_value(parts, name)


def held_out(labels: np.ndarray, fraction: float = 0.1, split: str = "val") -> np.ndarray:
    """Return a mask [n] of examples held out for `split`: a random fraction of each class in `labels` [n]."""
    index = HOLD_OUT_TEST if split == "test" else HOLD_OUT
    chosen = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels).tolist():
        # Each class has its own stream, so that the choice in one class does not depend on the others.
        rows = streams.generator(SEED, "data", index, label).permutation(np.flatnonzero(labels == label))
        chosen[rows[: int(fraction * len(rows))]] = True
    return chosen


def limited(count: int, limit: int | None, split: str) -> np.ndarray:
    """Return the ascending indices of `limit` random examples out of `count`.

    If `limit` is None or at least `count`, return the indices of all examples.
    """
    if limit is None or limit >= count:
        return np.arange(count)
    # The name of the split is in the index, so that splits of one size get different examples.
    draw = streams.generator(SEED, "data", LIMIT, *split.encode())
    return np.sort(draw.choice(count, size=limit, replace=False))


def sampled(rows: Iterable[Row], limit: int | None, split: str) -> Iterator[Row]:
    """Yield `limit` random rows of a stream, or all if it has fewer or `limit` is None, in the order of the stream.

    The length of the stream need not be known, and only `limit` rows are held in memory.
    """
    if limit is None:
        return iter(rows)
    draw = streams.generator(SEED, "data", LIMIT, *split.encode())
    # Each row gets an independent random key; the rows with the `limit` smallest keys are a uniform sample. `number`
    # breaks ties between keys and restores the order.
    kept = heapq.nsmallest(limit, ((draw.random(), number, row) for number, row in enumerate(rows)))
    return (row for _, _, row in sorted(kept, key=lambda item: item[1]))


def shuffled(count: int) -> np.ndarray:
    """Return the indices 0 to count - 1 in random order."""
    return streams.generator(SEED, "data", SHUFFLE).permutation(count)
