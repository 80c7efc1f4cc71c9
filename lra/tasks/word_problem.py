"""Word problem of a group: multiply a sequence of elements.

    x1 x2 x3  ->  x1, x1 x2, x1 x2 x3

A constant number of layers computes it in solvable groups alone, unless a layer is a true recurrence; A5 and S5 are not
solvable. p q means first p, then q.

Source:
    Merrill, Petty and Sabharwal 2024, arXiv:2404.08819.
"""

import re
from dataclasses import dataclass
from itertools import permutations
from typing import ClassVar, Literal

import numpy as np
from pydantic import PositiveInt

from lra.core.errors import UserError
from lra.datasets.probes import Draws, Examples, Probe, grid
from lra.datasets.splits import PositionLabels
from lra.tasks import Task

MOST = 120  # elements of a group


@dataclass(kw_only=True)
class WordProblem(Probe):
    """Random elements of a group.

    Args:
        group: a3 to a5 or s3 to s5, permutations, or z2 to z120, cyclic.
        length: elements.
        scored: `all` for the product of each prefix, as in the paper, or `last` for that of all elements.
    """

    name = "word_problem"
    published: ClassVar = {}  # they vary everything

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
        """Number of elements; an answer is the number of an element, from 0."""
        return len(self.table)

    def draw(self, draws: Draws, rows: int, *, train: bool) -> Examples:
        elements = draws.below(len(self.table), rows, self.positions)
        answers = elements.copy()
        for position in range(1, self.positions):
            answers[:, position] = self.table[answers[:, position - 1], elements[:, position]]
        if self.scored == "last":
            answers[:, :-1] = -1
        return 1 + elements, answers

    def extra_baselines(self, train: PositionLabels, test: PositionLabels) -> dict[str, float]:
        return {"the element itself": 100 * np.mean(self._own(test) == np.asarray(test.labels))}

    def baseline_predictions(self, task: Task) -> np.ndarray:
        """Return the element itself, which is correct at the first position."""
        return self._own(task.test)  # type: ignore[arg-type]

    def _own(self, split: PositionLabels) -> np.ndarray:
        """Element at each scored position [m]."""
        tokens, examples = grid(split)
        return tokens[examples, np.asarray(split.positions)].astype(np.int64) - 1


def products(group: str) -> np.ndarray:
    """Return the number of p q for every two elements [order, order]; permutations are in lexicographic order."""
    kind, size = group[:1], int(group[1:]) if re.fullmatch(r"[asz]\d{1,3}", group) else 0
    if not (2 <= size <= MOST if kind == "z" else 3 <= size <= 5 and kind in "as"):
        raise UserError(f"task.group={group}: expected a3 to a5, s3 to s5, or z2 to z{MOST}")
    if kind == "z":
        return np.add.outer(np.arange(size), np.arange(size)) % size
    elements = np.array([p for p in permutations(range(size)) if kind == "s" or _even(p)])
    both = elements[:, elements].swapaxes(0, 1)  # [q, p, :] -> q of p
    digits = size ** np.arange(size)[::-1]
    return np.searchsorted(elements @ digits, both @ digits)


def _even(permutation: tuple[int, ...]) -> bool:
    """True for a permutation with an even number of inversions."""
    size = len(permutation)
    return sum(permutation[i] > permutation[j] for i in range(size) for j in range(i + 1, size)) % 2 == 0
