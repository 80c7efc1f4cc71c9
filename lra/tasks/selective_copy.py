"""Selective copy: repeat the tokens that are separated by blanks.

    a . . b . c COPY . . .  ->  a b c at the last three positions

Source:
    MAD, Poli et al. 2024, arXiv:2403.17844.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field, PositiveInt

from lra.datasets.groups import Group, by_size
from lra.datasets.probes import Draws, Examples, Probe, grid
from lra.datasets.splits import PositionLabels


@dataclass(kw_only=True)
class SelectiveCopy(Probe):
    """Builder of the probe; an example has tokens among blanks, a copy sign, and one blank for each answer.

    Each blank among the tokens precedes a uniformly drawn token, so that the copy sign directly follows the last token.

    Args:
        length: number of positions of a sequence.
        tokens: number of tokens to copy.
        vocabulary: number of different tokens; the last two are the blank and the copy sign.
    """

    name = "selective_copy"
    published: ClassVar = {"length": 256, "tokens": 16, "vocabulary": 16, "sizes": (12_800, 1_280, 1_280)}

    length: PositiveInt
    tokens: PositiveInt
    vocabulary: Annotated[int, Field(ge=4)]  # at least two tokens to copy, the blank and the sign

    def __post_init__(self) -> None:
        self.at_least(f"tokens={self.tokens}", length=2 * self.tokens + 2)

    def draw(self, draws: Draws, rows: int, *, train: bool) -> Examples:
        count, blank = self.tokens, self.vocabulary - 1
        chosen = 1 + draws.below(self.vocabulary - 2, rows, count)
        blanks = draws.below(count, rows, self.positions - 2 * count - 1)  # index of the token after each blank
        # [rows, count]: number of blanks before each token
        before = (blanks[:, :, None] <= np.arange(count)).sum(axis=1)
        tokens = np.full((rows, self.positions), blank)
        np.put_along_axis(tokens, before + np.arange(count), chosen, axis=1)
        tokens[:, -count - 1] = blank + 1
        answers = np.full(tokens.shape, -1)
        answers[:, -count:] = chosen
        return tokens, answers

    def extra_baselines(self, train: PositionLabels, test: PositionLabels) -> dict[str, float]:
        """Return the test accuracy (percent) of guessing at random one of the tokens to copy."""
        tokens, examples = grid(test)
        shown = tokens[tokens <= self.vocabulary - 2].reshape(len(tokens), -1)
        hits = (shown[examples] == test.labels[:, None]).mean(axis=1)
        return {"a token of the context at random": 100 * hits.mean()}

    def groups(self, split: PositionLabels) -> dict[str, Group]:
        tokens, examples = grid(split)
        order = split.positions - (self.positions - self.tokens)  # [m]: index among the tokens to copy
        before = tokens[:, : -self.tokens - 1]  # tokens before the copy sign
        # Positions of the tokens to copy [n, tokens]: the stable sort moves them before all blanks.
        shown = np.argsort(before > self.vocabulary - 2, axis=1, kind="stable")[:, : self.tokens]
        # [m]: number of positions from a token to its copy
        distances = split.positions - shown[examples, order]
        return {"order": by_size(order + 1), "distance": by_size(distances)}
