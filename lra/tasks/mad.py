"""Generate the probes of MAD: memorisation, compression, fuzzy and noisy recall.

    memorise:  k7 ? k2 ? k7 ?                       ->  v7, v2 and v7 at the signs ?
    compress:  a c b b END                          ->  a c b b, each token from its own position and the state at END
    recall:    k1 v1 k4 v4 k1 [v1] k2 v2 k4 [v4]    ->  the values in brackets, each from the tokens before it

These probes differ from MAD in three respects: the loss is computed only at scored positions, END is not scored, and
the first pair is never noise. MAD's selective copy is in `selective_copy.py`.

Source:
    MAD, Poli et al. 2024, arXiv:2403.17844.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, ClassVar

import numpy as np
from pydantic import Field, PositiveInt

from lra.core.errors import UserError
from lra.datasets.probes import TABLE, Draws, Even, Examples, Probe, grid
from lra.datasets.splits import PositionLabels


@dataclass(kw_only=True)
class Memorise(Probe):
    """Probe of memorisation: random keys, each followed by a sign, at which the value of the key is the answer.

    The table from keys to values is the same in all examples and never part of the input.

    Args:
        length: number of tokens of a sequence, half of them keys.
        vocabulary: number of different tokens; the last is the sign, half of the others are keys.
    """

    name = "memorise"
    published: ClassVar = {"length": 32, "vocabulary": 256, "sizes": (256, 1_280, 1_280)}

    length: Even  # a sign follows every key
    vocabulary: Annotated[int, Field(ge=5)]  # at least two keys, two values and the sign

    @property
    def keys(self) -> int:
        """Number of different keys."""
        return (self.vocabulary - 1) // 2

    def values(self) -> np.ndarray:
        """Return an array [keys]: the token id of each key's value; all values are different."""
        return 1 + self.keys + Draws(self.seed, TABLE).subsets(self.vocabulary - 1 - self.keys, 1, self.keys)[0]

    def draw(self, draws: Draws, rows: int, *, train: bool) -> Examples:
        keys = draws.below(self.keys, rows, self.positions // 2)
        tokens = np.full((rows, self.positions), self.vocabulary)
        tokens[:, ::2] = 1 + keys
        answers = np.full(tokens.shape, -1)
        answers[:, 1::2] = self.values()[keys]
        return tokens, answers


@dataclass(kw_only=True)
class Compress(Probe):
    """Probe of compression: sequences of uniformly drawn tokens with END as the last token.

    Args:
        length: number of tokens of a sequence, END included.
        vocabulary: number of different tokens, END included.
    """

    name = "compress"
    objective = "reconstruct"
    published: ClassVar = {"length": 32, "vocabulary": 16, "sizes": (12_800, 1_280, 1_280)}

    length: Annotated[int, Field(ge=2)]
    vocabulary: Annotated[int, Field(ge=3)]

    def draw(self, draws: Draws, rows: int, *, train: bool) -> Examples:
        tokens = 1 + draws.below(self.vocabulary - 1, rows, self.positions)
        tokens[:, -1] = self.vocabulary
        return tokens, np.where(np.arange(self.positions) < self.positions - 1, tokens, -1)


@dataclass(kw_only=True)
class Recall(Probe):
    """Base class of recall probes: sequences of key-value pairs; the value of a repeated key is the answer.

    A key has 1 to `key_size` different tokens, a value 1 to `value_size`; in validation and test all keys have
    `key_size` tokens. An answer is also the next token of the input, so models must be causal. A fraction `noise` of
    the pairs is replaced by tokens drawn from `noise_vocabulary` noise tokens. If sizes vary, sequences are padded on
    the left with the last token of the vocabulary.
    """

    causal: bool = field(default=True, init=False)

    if TYPE_CHECKING:  # not fields here, for the reason given in `Probe`
        key_size: int
        value_size: int
        noise: float
        noise_vocabulary: int

    def __post_init__(self) -> None:
        self.pair_size = self.key_size + self.value_size  # maximum number of tokens of a pair
        # Number of tokens for keys and values; one token is for padding if sizes vary.
        symbols = self.vocabulary - self.noise_vocabulary - (self.pair_size > 2)
        self.keys, self.values = symbols // 2, symbols - symbols // 2
        if self.keys < self.key_size or self.values < self.value_size:
            raise UserError(
                f"task.vocabulary={self.vocabulary}: it leaves {self.keys} tokens for keys and {self.values} for "
                f"values, expected at least {self.key_size} and {self.value_size}"
            )
        if self.pair_size == 2 and self.length % 2:
            raise UserError(f"task.length={self.length}: expected an even number, since a pair has two tokens")
        self.at_least(length=3 * self.pair_size)

    @property
    def positions(self) -> int:
        return self.length - 1  # the last token of a sequence is only an answer

    def draw(self, draws: Draws, rows: int, *, train: bool) -> Examples:
        length, min_size = self.length, 1 if train else self.key_size
        last_start = length - 2 * self.pair_size
        turns = last_start // (min_size + 1) + 1  # maximum number of pairs before the final query
        pairs = np.zeros((rows, turns + 1, self.pair_size), dtype=np.int64)  # 0 at tokens that are not used
        scored = np.zeros((rows, turns + 1, 1), dtype=bool)  # True for pairs whose values are answers
        ends = np.zeros(rows, dtype=np.int64)  # number of tokens so far
        keys = np.full((rows, turns, self.key_size), -1)  # keys shown so far; -1 equals no key
        values = np.zeros((rows, turns, self.value_size), dtype=np.int64)
        fresh = np.zeros((rows, turns), dtype=bool)  # True for pairs that show their key for the first time
        for turn in range(turns):
            active = ends <= last_start  # True for sequences with room for this pair and the final query
            key = self._motifs(draws, rows, self.keys, min_size, self.key_size)  # [rows, key_size]
            value = self._motifs(draws, rows, self.values, 1, self.value_size)  # [rows, value_size]
            # The first pair is never noise, so that there is a key to query.
            noisy = (draws.uniform(rows) < self.noise) & (turn > 0)
            same = (keys[:, :turn] == key[:, None]).all(axis=2)  # [rows, turn]: True where an earlier key is equal
            repeated = same.any(axis=1) & ~noisy
            if turn:  # a repeated key keeps its value
                value = np.where(repeated[:, None], values[np.arange(rows), same.argmax(axis=1)], value)
            pair = self._pair(key, value)  # [rows, pair_size]
            if self.noise:
                others = 1 + self.keys + self.values + draws.below(self.noise_vocabulary, rows, self.pair_size)
                pair = np.where(noisy[:, None] & (pair > 0), others, pair)
            pairs[active, turn], scored[:, turn, 0] = pair[active], repeated
            ends += np.count_nonzero(pairs[:, turn], axis=1)
            keys[:, turn] = np.where((active & ~noisy)[:, None], key, -1)
            values[:, turn], fresh[:, turn] = value, active & ~noisy & ~repeated
        # The last pair repeats one of the keys shown so far, drawn uniformly.
        chosen = (fresh * draws.uniform(*fresh.shape)).argmax(axis=1)
        row = np.arange(rows)
        pairs[:, -1], scored[:, -1] = self._pair(keys[row, chosen], values[row, chosen]), True
        answers = pairs * (scored & (np.arange(self.pair_size) >= self.key_size))
        # [rows, width]: all pairs, after `length` unused tokens, so that short sequences have enough padding.
        tokens, answers = (np.pad(array.reshape(rows, -1), [(0, 0), (length, 0)]) for array in (pairs, answers))
        # [rows, length]: sequences aligned to the right; the stable sort moves unused tokens before all others.
        order = np.argsort(tokens > 0, axis=1, kind="stable")[:, -length:]
        tokens, answers = (np.take_along_axis(array, order, axis=1) for array in (tokens, answers))
        tokens[tokens == 0] = self.vocabulary
        # An answer is the next token if that token is scored, else -1.
        return tokens[:, :-1], np.where(answers > 0, answers, -1)[:, 1:]

    def _pair(self, key: np.ndarray, value: np.ndarray) -> np.ndarray:
        """Return the tokens [rows, pair_size] of keys and their values; tokens that are not used are 0."""
        return np.concatenate([key, np.where(value > 0, value + self.keys, 0)], axis=1)

    @staticmethod
    def _motifs(draws: Draws, rows: int, kinds: int, min_size: int, max_size: int) -> np.ndarray:
        """Return random keys or values [rows, max_size].

        A row has `min_size` to `max_size` different numbers from 1 to `kinds`, then zeros.
        """
        sizes = min_size + draws.below(max_size - min_size + 1, rows)
        return (1 + draws.subsets(kinds, rows, max_size)) * (np.arange(max_size) < sizes[:, None])

    def extra_baselines(self, train: PositionLabels, test: PositionLabels) -> dict[str, float]:
        """Return the test accuracy (percent) of guessing at random one of the value tokens up to a scored position."""
        tokens, examples = grid(test)
        positions, labels = test.positions, test.labels
        first, stop = 1 + self.keys, 1 + self.keys + self.values
        all_values = np.cumsum((tokens >= first) & (tokens < stop), axis=1)[examples, positions]
        hits = np.zeros(len(labels))
        for value in range(first, stop):
            rows = labels == value
            hits[rows] = np.cumsum(tokens == value, axis=1)[examples[rows], positions[rows]]
        return {"a value of the context at random": 100 * np.mean(hits / all_values)}


@dataclass(kw_only=True)
class FuzzyRecall(Recall):
    """Probe of fuzzy recall: keys and values have several tokens.

    Args:
        length: number of tokens of a sequence.
        vocabulary: number of different tokens.
        key_size: maximum number of tokens of a key.
        value_size: maximum number of tokens of a value.
    """

    name = "fuzzy_recall"
    published: ClassVar = {
        "length": 128, "vocabulary": 16, "key_size": 3, "value_size": 3, "sizes": (12_800, 1_280, 1_280),
    }  # fmt: skip

    noise, noise_vocabulary = 0.0, 0

    length: PositiveInt
    vocabulary: PositiveInt
    key_size: PositiveInt
    value_size: PositiveInt


@dataclass(kw_only=True)
class NoisyRecall(Recall):
    """Probe of noisy recall: keys and values have one token, and some pairs are replaced by noise tokens.

    Args:
        length: number of tokens of a sequence.
        vocabulary: number of different tokens, noise included.
        noise: fraction of the pairs that are noise.
        noise_vocabulary: number of different noise tokens.
    """

    name = "noisy_recall"
    published: ClassVar = {
        "length": 128, "vocabulary": 32, "noise": 0.2, "noise_vocabulary": 16, "sizes": (12_800, 1_280, 1_280),
    }  # fmt: skip

    key_size = value_size = 1

    length: PositiveInt
    vocabulary: PositiveInt
    noise: Annotated[float, Field(gt=0, lt=1)]
    noise_vocabulary: PositiveInt
