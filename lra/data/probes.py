"""Probes: generated sequences with answers at some of their positions, each of which asks one thing of a mixer.

Examples are made in blocks. A block is a function of (seed, split, block) alone, drawn from raw Philox bits: a seed
gives the same bytes on every machine, and more examples leave the earlier ones as they are. Accuracy is that of scored
positions, all examples together, and the loss is the mean over those of a batch.
"""

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from lra.core import streams
from lra.core.errors import UserError
from lra.data import Place, TaskSpec, titled
from lra.data.baselines import majority
from lra.data.cache import SPLITS, Splits
from lra.data.from_source import Content, Source
from lra.data.generated import Generated
from lra.data.groups import Group, by_size
from lra.data.splits import PositionLabels
from lra.data.writer import Writer

VERSION = 1
BLOCK = 1_024  # examples
TABLE = len(SPLITS)  # the index, in the stream "data", of what all splits share

Examples = tuple[np.ndarray, np.ndarray]
"""Tokens [n, L] and answers [n, L]; an answer below 0 is not asked for."""


class Draws:
    """Numbers at random from the stream "data" of a seed at `index`."""

    def __init__(self, seed: int, *index: int) -> None:
        self._bits = streams.philox(seed, "data", *index)

    def below(self, bound: int | np.ndarray, *shape: int) -> np.ndarray:
        """Whole numbers from 0 to bound - 1 (bias below bound / 2^32); bounds may differ along the last axes."""
        high = self._bits.random_raw(int(np.prod(shape))) >> np.uint64(32)
        return ((high.reshape(shape) * np.asarray(bound, dtype=np.uint64)) >> np.uint64(32)).astype(np.int64)

    def shares(self, *shape: int) -> np.ndarray:
        """Numbers between 0 and 1, both exclusive."""
        words = self._bits.random_raw(int(np.prod(shape))) >> np.uint64(12)
        return (words.astype(np.float64) + 0.5).reshape(shape) * 2.0**-52

    def subsets(self, bound: int, rows: int, count: int) -> np.ndarray:
        """Draw for each row `count` different numbers from 0 to bound - 1, in an order at random [rows, count]."""
        table = np.tile(np.arange(bound, dtype=np.min_scalar_type(bound)), (rows, 1))
        row = np.arange(rows)
        for place in range(count):
            other = place + self.below(bound - place, rows)
            table[row, other], table[:, place] = table[:, place].copy(), table[row, other]
        return table[:, :count].astype(np.int64)


@dataclass(kw_only=True)
class Probe(Generated):
    """A generated task with answers at positions.

    The options that decide an example stand in the name of the task where they are not those of `published`. A probe
    has a `length` and a `vocabulary`, which is how many tokens there are; they are numbered from 1, since 0 is padding.
    `causal`: a model may not look ahead.
    """

    published: ClassVar[dict[str, Any]]
    objective: ClassVar[str] = "positions"

    causal: bool

    @abstractmethod
    def draw(self, draws: Draws, rows: int, *, train: bool) -> Examples:
        """`rows` examples, of the training split or of another."""

    def at_least(self, because: str = "", **least: int) -> None:
        """Raises UserError for the first option that is less than this, `because` of another one, if named."""
        for key, number in least.items():
            value = getattr(self, key)
            if value < number:
                raise UserError(f"task.{key}={value}: expected at least {number}{because and f' for task.{because}'}")

    @property
    def positions(self) -> int:
        """How many positions of an example a model reads."""
        return self.length

    @property
    def classes(self) -> int:
        """How many answers there are; they are tokens where nothing else is said."""
        return self.vocabulary + 1

    def facts_of(self, content: Content) -> TaskSpec:
        notes = {
            f"{key.replace('_', ' ')} {_said(value)}": self.published.get(key, ...) != value
            for key, value in self.options.items()
        }
        sizes = tuple(self.sizes.values())
        notes[f"{'/'.join(map(str, sizes))} examples"] = self.published.get("sizes", ...) != sizes
        notes["two-sided"] = not self.causal and self.published.get("causal", True)
        return TaskSpec(
            name=titled(self.name, notes),
            version=VERSION,
            vocab_size=self.vocabulary + 1,
            max_len=self.positions,
            classes=self.classes,
            objective=self.objective,
            causal=self.causal,
        )

    def generated(self, place: Place) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
        """Blocks of examples: the split, tokens and answers."""
        done, total = 0, sum(self.sizes.values())
        for number, (split, size) in enumerate(self.sizes.items()):
            for start in range(0, size, BLOCK):
                tokens, answers = self.draw(Draws(self.seed, number, start // BLOCK), BLOCK, train=split == "train")
                rows = min(BLOCK, size - start)
                yield split, tokens[:rows], answers[:rows]
                done += rows
                place.progress(done, total)

    def fill(self, place: Place, source: Source, writers: dict[str, Writer], staging: Path) -> dict[str, Any]:
        for split, tokens, answers in source.read():
            writers[split].mark(tokens, answers)
        return {
            "scored": "positions with an answer, all examples together",
            "splits": "each from a stream of its own; examples that are equal are counted below",
        }

    def baselines(self, splits: Splits) -> dict[str, float]:
        """Test accuracy (percent); also of what `tricks` does."""
        train, test = splits["train"], splits["test"]
        tricks = self.tricks(train, test)
        return {"most frequent answer": majority(train, test), **{name: float(value) for name, value in tricks.items()}}

    def tricks(self, train: PositionLabels, test: PositionLabels) -> dict[str, float]:
        """Test accuracy (percent) of answers that need little reading."""
        return {}

    def groups(self, split: PositionLabels) -> dict[str, Group]:
        """The groups of predictions, by the position that is scored."""
        return {"position": by_size(np.asarray(split.places))}


def grid(split: PositionLabels) -> tuple[np.ndarray, np.ndarray]:
    """All tokens [n, L] of a split whose documents are of one length, and the example of each prediction [m]."""
    tokens = np.asarray(split.tokens).reshape(len(split), -1)
    return tokens, np.repeat(np.arange(len(split)), split.counts(np.arange(len(split))))


def _said(value: Any) -> str:
    return "-".join(map(str, value)) if isinstance(value, list) else str(value)
