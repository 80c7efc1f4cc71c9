"""Memorisation: a table of keys and values that is never part of the input.

    k7 ? k2 ? k7 ?  ->  v7, v2 and v7 at the signs ?

Every key has one value, the same in all examples of all splits, which only training reveals. The answers are not in the
input, so looking ahead does not help.

Source:
    MAD, Poli et al. 2024, arXiv:2403.17844.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from pydantic import PositiveInt

from lra.core.errors import UserError
from lra.data.probes import TABLE, Draws, Examples, Probe


@dataclass(kw_only=True)
class Memorise(Probe):
    """Random keys, each followed by a sign.

    Args:
        length: tokens, half of them keys.
        vocabulary: tokens; the last is the sign, half of the rest are keys.
    """

    name = "memorise"
    published: ClassVar = {"length": 32, "vocabulary": 256, "sizes": (256, 1_280, 1_280)}

    length: PositiveInt
    vocabulary: PositiveInt

    def __post_init__(self) -> None:
        if self.length % 2:
            raise UserError(f"task.length={self.length}: expected an even number, a sign follows every key")
        self.at_least(vocabulary=5)

    @property
    def keys(self) -> int:
        """Number of keys."""
        return (self.vocabulary - 1) // 2

    def values(self) -> np.ndarray:
        """Return the value of each key, all different [keys]."""
        return 1 + self.keys + Draws(self.seed, TABLE).subsets(self.vocabulary - 1 - self.keys, 1, self.keys)[0]

    def draw(self, draws: Draws, rows: int, *, train: bool) -> Examples:
        keys = draws.below(self.keys, rows, self.positions // 2)
        tokens = np.full((rows, self.positions), self.vocabulary)
        tokens[:, ::2] = 1 + keys
        answers = np.full(tokens.shape, -1)
        answers[:, 1::2] = self.values()[keys]
        return tokens, answers
