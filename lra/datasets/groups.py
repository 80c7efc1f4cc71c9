"""Groups of examples by a property, and seeded random choices of examples.

A `Group` maps each value of one property to the indices [k] of the examples with this value; each of n examples has
exactly one value. Choices use a fixed seed, not the seed of a run: all runs see the same examples.
"""

import heapq
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import numpy as np

from lra.core import streams

Group = dict[str, np.ndarray]
Row = TypeVar("Row")

PARTS = 5  # ranges of `by_size`
SEED = 0
HOLD_OUT, LIMIT, SHUFFLE, HOLD_OUT_TEST = 0, 1, 2, 3  # indices in the random stream "data"


def by_value(values: np.ndarray, name: Callable[[int], str] = str) -> Group:
    """Return a group for each distinct number in `values` [n], in ascending order."""
    return {name(int(value)): np.flatnonzero(values == value) for value in np.unique(values)}


def by_size(sizes: np.ndarray) -> Group:
    """Return groups of whole numbers `sizes` [n] by ranges `min-max`, ascending; each range has a fifth, up to ties."""
    ranks = np.arange(1, PARTS) * len(sizes) // PARTS
    # `unique`: a size that fills several ranges ends one range only.
    parts = np.searchsorted(np.unique(np.sort(sizes)[ranks]), sizes, side="right")

    def name(part: int) -> str:
        members = sizes[parts == part]
        return f"{members.min()}-{members.max()}" if members.min() < members.max() else str(members.min())

    return by_value(parts, name)


def held_out(labels: np.ndarray, fraction: float = 0.1, split: str = "val") -> np.ndarray:
    """Return a mask [n] of a random fraction of each class of `labels` [n], held out for `split`."""
    index = HOLD_OUT_TEST if split == "test" else HOLD_OUT
    chosen = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels).tolist():
        rows = streams.generator(SEED, "data", index, label).permutation(np.flatnonzero(labels == label))
        chosen[rows[: int(fraction * len(rows))]] = True
    return chosen


def limited(count: int, limit: int | None, split: str) -> np.ndarray:
    """Return ascending indices of `limit` random examples out of `count`; all if `limit` is None or not smaller."""
    if limit is None or limit >= count:
        return np.arange(count)
    draw = streams.generator(SEED, "data", LIMIT, *split.encode())
    return np.sort(draw.choice(count, size=limit, replace=False))


def sampled(rows: Iterable[Row], limit: int | None, split: str) -> Iterator[Row]:
    """Yield at most `limit` random rows of a stream of unknown length, in order; memory holds only `limit` rows."""
    if limit is None:
        return iter(rows)
    draw = streams.generator(SEED, "data", LIMIT, *split.encode())
    # The `limit` smallest of independent random keys are a uniform sample; `number` breaks ties and restores the order.
    kept = heapq.nsmallest(limit, ((draw.random(), number, row) for number, row in enumerate(rows)))
    return (row for _, _, row in sorted(kept, key=lambda item: item[1]))


def shuffled(count: int) -> np.ndarray:
    """Return the indices of `count` examples in random order."""
    return streams.generator(SEED, "data", SHUFFLE).permutation(count)
