"""Memorisation (MAD, Poli et al. 2024, arXiv:2403.17844): a table of keys and values that never stands in the input.

    k7 ? k2 ? k7 ?  ->  v7, v2 and v7 at the signs ?

Every key has one value, the same in all examples of all splits; only training shows it. The answers do not stand in the
input, so a model that looks ahead sees none of them.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from pydantic import PositiveInt

from lra.core.errors import UserError
from lra.data.probes import TABLE, Draws, Examples, Probe


@dataclass(kw_only=True)
class Memorise(Probe):
    """Half of `length` tokens are keys. Of the `vocabulary` the last token is the sign, of the rest half are keys."""

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
        """How many there are."""
        return (self.vocabulary - 1) // 2

    def values(self) -> np.ndarray:
        """That of each key, which are all different [keys]."""
        return 1 + self.keys + Draws(self.seed, TABLE).subsets(self.vocabulary - 1 - self.keys, 1, self.keys)[0]

    def draw(self, draws: Draws, rows: int, *, train: bool) -> Examples:
        keys = draws.below(self.keys, rows, self.positions // 2)
        tokens = np.full((rows, self.positions), self.vocabulary)
        tokens[:, ::2] = 1 + keys
        answers = np.full(tokens.shape, -1)
        answers[:, 1::2] = self.values()[keys]
        return tokens, answers
