"""MQAR, multi-query associative recall.

A sequence begins with pairs of a key and a value. Then each key occurs once more among random tokens, as a query; the
answer is the value of the key.

    k1 v1 k2 v2 . . k2 . . . k1 .  ->  v2 at the second k2, v1 at the second k1

Source:
    Zoology, Arora et al. 2023, arXiv:2312.04927.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field, PositiveFloat, PositiveInt

from lra.datasets.groups import Group, by_size, by_value
from lra.datasets.probes import Draws, Even, Examples, Probe, grid
from lra.datasets.splits import PositionLabels


@dataclass(kw_only=True)
class Mqar(Probe):
    """Builder of the probe; an example has key-value pairs, followed by queries among random tokens.

    The positions of the queries are drawn without replacement from every second position after the pairs; the g-th of
    these has a probability proportional to g^(power - 1).

    Args:
        length: number of tokens of a sequence.
        pairs: number of pairs, or a list of numbers that alternate between examples.
        vocabulary: number of different tokens, half of them keys and half values.
        power: 1 draws query positions uniformly; the smaller it is, the closer queries are to the pairs.
    """

    name = "mqar"
    published: ClassVar = {"vocabulary": 8_192, "power": 0.01, "sizes": (100_000, 3_000, 3_000)}

    length: Even  # keys and values come in pairs
    pairs: PositiveInt | Annotated[list[PositiveInt], Field(min_length=1)]
    vocabulary: Even
    power: PositiveFloat

    def __post_init__(self) -> None:
        self.turns = sorted(set(self.pairs)) if isinstance(self.pairs, list) else [self.pairs]
        # Equal settings, such as 4 and [4], become equal values, so that they have the same name and cached data.
        self.pairs = self.turns if len(self.turns) > 1 else self.turns[0]
        largest = self.turns[-1]
        self.at_least(f"pairs={largest}", length=4 * largest, vocabulary=2 * largest)

    def draw(self, draws: Draws, rows: int, *, train: bool) -> Examples:
        all_tokens = 1 + draws.below(self.vocabulary, rows, self.positions)  # [rows, L]
        all_answers = np.full(all_tokens.shape, -1)
        half = self.vocabulary // 2
        for turn, pairs in enumerate(self.turns):
            # Of k numbers of pairs, each is used in every k-th example (views [n, L]), so that every split has all.
            tokens, answers = (array[turn :: len(self.turns)] for array in (all_tokens, all_answers))
            keys = 1 + draws.subsets(half, len(tokens), pairs)  # [n, pairs]
            values = 1 + half + draws.subsets(half, len(tokens), pairs)
            tokens[:, 0 : 2 * pairs : 2], tokens[:, 1 : 2 * pairs : 2] = keys, values
            order = np.arange(1, (self.positions - 2 * pairs) // 2 + 1)  # number g of each query position
            weights = order ** (self.power - 1.0)
            # Draw for each position an exponentially distributed time whose rate is the weight; the positions with the
            # smallest times are a weighted sample without replacement.
            late = -np.log(draws.uniform(len(tokens), len(order))) / weights
            queries = 2 * pairs + 2 * late.argsort(axis=1, kind="stable")[:, :pairs]  # [n, pairs]
            np.put_along_axis(tokens, queries, keys, axis=1)
            np.put_along_axis(answers, queries, values, axis=1)
        return all_tokens, all_answers

    def extra_baselines(self, train: PositionLabels, test: PositionLabels) -> dict[str, float]:
        return {"a value of the context at random": 100 * float(np.mean(1 / _asked(test)[1]))}

    def groups(self, split: PositionLabels) -> dict[str, Group]:
        distances, pairs = _asked(split)
        return {"pairs": by_value(pairs), "distance": by_size(distances), **super().groups(split)}


def _asked(split: PositionLabels) -> tuple[np.ndarray, np.ndarray]:
    """Return the distances [m] of queries from their pairs, and the numbers of pairs [m] of the queries' examples."""
    tokens, examples = grid(split)
    queried = tokens[examples, split.positions]
    pairs = split.counts(examples)
    shown = (tokens[examples, ::2] == queried[:, None]).argmax(axis=1)  # the first match is in the pairs
    return split.positions - 2 * shown, pairs
