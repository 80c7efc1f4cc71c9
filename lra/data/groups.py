"""Groups of examples: what is known of each besides its tokens, so that accuracy can be read group by group.

Legend: n examples; a group sorts them by the values of one property, {value: examples [k]}, each in exactly one.
"""

from collections.abc import Callable

import numpy as np

Group = dict[str, np.ndarray]

PARTS = 5


def by_value(values: np.ndarray, name: Callable[[int], str] = str) -> Group:
    """One value for each different number of `values` [n], ascending."""
    return {name(int(value)): np.flatnonzero(values == value) for value in np.unique(values)}


def by_size(sizes: np.ndarray) -> Group:
    """Ranges `least-most` of the whole numbers `sizes` [n], ascending: fifths, where equal sizes allow it."""
    ranks = np.arange(1, PARTS) * len(sizes) // PARTS
    parts = np.searchsorted(np.unique(np.sort(sizes)[ranks]), sizes, side="right")

    def name(part: int) -> str:
        members = sizes[parts == part]
        return f"{members.min()}-{members.max()}" if members.min() < members.max() else str(members.min())

    return by_value(parts, name)
