"""Groups of examples by a property, for accuracy by group.

A group maps values of one property to the examples [k] that have it; each of n examples is in exactly one value.
"""

from collections.abc import Callable

import numpy as np

Group = dict[str, np.ndarray]

PARTS = 5


def by_value(values: np.ndarray, name: Callable[[int], str] = str) -> Group:
    """Group by each distinct number of `values` [n], ascending."""
    return {name(int(value)): np.flatnonzero(values == value) for value in np.unique(values)}


def by_size(sizes: np.ndarray) -> Group:
    """Group whole numbers `sizes` [n] into ranges `min-max`, ascending: fifths, up to ties."""
    ranks = np.arange(1, PARTS) * len(sizes) // PARTS
    parts = np.searchsorted(np.unique(np.sort(sizes)[ranks]), sizes, side="right")

    def name(part: int) -> str:
        members = sizes[parts == part]
        return f"{members.min()}-{members.max()}" if members.min() < members.max() else str(members.min())

    return by_value(parts, name)
