"""Word problem of a group: multiply the elements of a sequence.

    x1 x2 x3  ->  x1, x1 x2, x1 x2 x3

For groups that are not solvable, such as A5 and S5, this problem is complete for NC1. Transformers and diagonal
state-space models with a constant number of layers are in TC0, so they cannot solve it for all lengths unless TC0 =
NC1; a nonlinear RNN can. The product p q of permutations applies p first, then q.

Source:
    Merrill, Petty and Sabharwal 2024, arXiv:2404.08819.
"""

import re
from dataclasses import dataclass
from itertools import combinations, permutations
from typing import ClassVar, Literal

import numpy as np
from pydantic import PositiveInt

from lra.core.errors import UserError
from lra.datasets.probes import Draws, Examples, Probe, grid
from lra.datasets.splits import PositionLabels
from lra.tasks import Task

MOST = 120  # maximum number of elements of a group


@dataclass(kw_only=True)
class WordProblem(Probe):
    """Builder of the probe; an example is a sequence of random group elements, the answers are products of prefixes.

    Args:
        group: a permutation group, a3 to a5 or s3 to s5, or a cyclic group, z2 to z120.
        length: number of elements of a sequence.
        scored: `all` scores the product of each prefix, as in the paper; `last` only the product of all elements.
    """

    name = "word_problem"
    published: ClassVar = {}  # the paper varies all options

    group: str
    length: PositiveInt
    scored: Literal["all", "last"]

    def __post_init__(self) -> None:
        self.table = products(self.group)

    @property
    def vocabulary(self) -> int:
        return len(self.table)

    @property
    def classes(self) -> int:
        """Number of elements of the group; an answer is the index of an element, from 0."""
        return len(self.table)

    def draw(self, draws: Draws, rows: int, *, train: bool) -> Examples:
        elements = draws.below(len(self.table), rows, self.positions)
        answers = elements.copy()
        for position in range(1, self.positions):
            # One position at a time, because each product needs the one before.
            answers[:, position] = self.table[answers[:, position - 1], elements[:, position]]
        if self.scored == "last":
            answers[:, :-1] = -1
        return 1 + elements, answers

    def extra_baselines(self, train: PositionLabels, test: PositionLabels) -> dict[str, float]:
        return {"the element itself": 100 * np.mean(self._own(test) == test.labels)}

    def baseline_predictions(self, task: Task) -> np.ndarray:
        """Return the input element at each scored position [m] as the prediction; at position 0 it is correct."""
        return self._own(task.test)  # type: ignore[arg-type]

    def _own(self, split: PositionLabels) -> np.ndarray:
        """Return the index of the input element at each scored position [m]."""
        tokens, examples = grid(split)
        return tokens[examples, split.positions].astype(np.int64) - 1


def products(group: str) -> np.ndarray:
    """Return the multiplication table of a group: entry [p, q] is the index of the product p q.

    Permutations are numbered in lexicographic order.
    """
    kind, size = group[:1], int(group[1:]) if re.fullmatch(r"[asz]\d{1,3}", group) else 0
    if not (2 <= size <= MOST if kind == "z" else 3 <= size <= 5 and kind in "as"):
        raise UserError(f"task.group={group}: expected a3 to a5, s3 to s5, or z2 to z{MOST}")
    if kind == "z":
        return np.add.outer(np.arange(size), np.arange(size)) % size
    # `permutations` yields lexicographic order. An even permutation has an even number of inversions.
    elements = np.array(
        [p for p in permutations(range(size)) if kind == "s" or sum(a > b for a, b in combinations(p, 2)) % 2 == 0]
    )
    both = elements[:, elements].swapaxes(0, 1)  # [n, n, size] for n elements: both[p, q, i] = q[p[i]]
    digits = size ** np.arange(size)[::-1]  # weights that encode permutations as numbers in lexicographic order
    return np.searchsorted(elements @ digits, both @ digits)
