"""Compression (MAD, Poli et al. 2024, arXiv:2403.17844): put a sequence of tokens into one vector.

    a c b b END  ->  a c b b, each decoded from what the model has at END and the number of the position

A model may look ahead or not; the last position sees everything in either case. MAD scores the END, too.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from pydantic import PositiveInt

from lra.data.probes import Draws, Examples, Probe


@dataclass(kw_only=True)
class Compress(Probe):
    """`length` - 1 tokens of `vocabulary` - 1 kinds, any with equal probability, and the END."""

    name = "compress"
    objective = "reconstruct"
    published: ClassVar = {"length": 32, "vocabulary": 16, "sizes": (12_800, 1_280, 1_280)}

    length: PositiveInt
    vocabulary: PositiveInt

    def __post_init__(self) -> None:
        self.at_least(length=2, vocabulary=3)

    def draw(self, draws: Draws, rows: int, *, train: bool) -> Examples:
        tokens = 1 + draws.below(self.vocabulary - 1, rows, self.positions)
        tokens[:, -1] = self.vocabulary
        return tokens, np.where(np.arange(self.positions) < self.positions - 1, tokens, -1)
