"""Compression: encode a sequence of tokens in one vector.

    a c b b END  ->  a c b b, each decoded from the state at END and the number of the position

The last position sees all others with or without causality. MAD scores the END, too.

Source:
    MAD, Poli et al. 2024, arXiv:2403.17844.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from pydantic import PositiveInt

from lra.data.probes import Draws, Examples, Probe


@dataclass(kw_only=True)
class Compress(Probe):
    """Uniform random tokens and the END.

    Args:
        length: tokens, END included.
        vocabulary: kinds of tokens, END included.
    """

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
