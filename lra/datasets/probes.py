"""Define the base class of probes. A probe is a generated task that tests one ability of a mixer.

An example is a sequence with answers at some positions; only these positions are scored. Examples are generated in
blocks. A block depends only on `example_options`, the seed, the split and its own index, and is drawn from raw Philox
bits. So a seed gives the same bytes on every machine, and a larger split begins with the examples of a smaller one.
Accuracy is computed over the scored positions of all examples together; the loss is the mean over the scored positions
of a batch.
"""

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import numpy as np
from pydantic import Field

from lra.core import streams
from lra.core.errors import UserError
from lra.datasets.baselines import majority
from lra.datasets.builder import GENERATED, Generated
from lra.datasets.cache import SPLITS, Splits, Writer
from lra.datasets.groups import Group, by_size
from lra.datasets.splits import PositionLabels
from lra.datasets.task import Objective, TaskSpec, titled

VERSION = 1
BLOCK = 1_024  # number of examples in a block; another number would give other examples
TABLE = len(SPLITS)  # index, in the random stream "data", of draws that all splits share; the splits use 0, 1 and 2

Even = Annotated[int, Field(gt=0, multiple_of=2)]
Examples = tuple[np.ndarray, np.ndarray]
"""Tokens [n, L] and answers [n, L]; positions with the answer -1 are not scored."""


class Draws:
    """Generator of random numbers from the stream "data" of a seed at `index`."""

    def __init__(self, seed: int, *index: int) -> None:
        self._bits = streams.philox(seed, "data", *index)

    def below(self, bound: int | np.ndarray, *shape: int) -> np.ndarray:
        """Draw integers [*shape] from 0 to bound - 1 (bias below bound / 2^32); `bound` is broadcast to `shape`."""
        # Multiply the upper 32 bits by the bound, and shift: unlike rejection, this uses one draw per number.
        high = self._bits.random_raw(int(np.prod(shape))) >> np.uint64(32)
        return ((high.reshape(shape) * np.asarray(bound, dtype=np.uint64)) >> np.uint64(32)).astype(np.int64)

    def uniform(self, *shape: int) -> np.ndarray:
        """Draw numbers [*shape] between 0 and 1, both exclusive."""
        words = self._bits.random_raw(int(np.prod(shape))) >> np.uint64(12)  # 52 bits: + 0.5 is exact in float64
        return (words.astype(np.float64) + 0.5).reshape(shape) * 2.0**-52

    def subsets(self, bound: int, rows: int, count: int) -> np.ndarray:
        """Draw `count` different integers from 0 to bound - 1 per row, in random order; return them [rows, count]."""
        table = np.tile(np.arange(bound, dtype=np.min_scalar_type(bound)), (rows, 1))
        row = np.arange(rows)
        for column in range(count):  # the first steps of a Fisher-Yates shuffle of each row
            other = column + self.below(bound - column, rows)
            table[row, other], table[:, column] = table[:, column].copy(), table[row, other]
        return table[:, :count].astype(np.int64)


@dataclass(kw_only=True)
class Probe(Generated):
    """Base class of generated tasks with answers at some positions.

    The task's name lists each option whose value differs from `published`, the options of the paper. Every probe
    defines `length`, in tokens, and `vocabulary`, the number of different tokens; token ids start at 1, since 0 is
    padding.

    Args:
        causal: True if predictions may not depend on later positions.
    """

    published: ClassVar[dict[str, Any]]
    objective: ClassVar[Objective] = "positions"

    causal: bool

    # Declared for type checkers only: dataclass fields here would precede the fields of every probe, and so fix the
    # order of the options in task names.
    if TYPE_CHECKING:

        @property
        def length(self) -> int: ...

        @property
        def vocabulary(self) -> int: ...

    @abstractmethod
    def draw(self, draws: Draws, rows: int, *, train: bool) -> Examples:
        """Return `rows` generated examples; `train` is True for the training split."""

    def at_least(self, because: str = "", **minimum: int) -> None:
        """Raise UserError for an option below its minimum; `because` is the `key=value` that requires the minimum."""
        for key, number in minimum.items():
            value = getattr(self, key)
            if value < number:
                raise UserError(f"task.{key}={value}: expected at least {number}{because and f' for task.{because}'}")

    @property
    def positions(self) -> int:
        """Number L of tokens of an example that a model reads."""
        return self.length

    @property
    def classes(self) -> int:
        """Number of different answers; by default answers are token ids."""
        return self.vocabulary + 1

    @property
    def spec(self) -> TaskSpec:
        notes = self.differences(self.published, self.example_options)
        notes["two-sided"] = not self.causal and self.published.get("causal", True)
        return TaskSpec(
            name=titled(self.name, notes),
            version=VERSION,
            vocab_size=self.vocabulary + 1,  # + 1 for padding
            max_len=self.positions,
            classes=self.classes,
            objective=self.objective,
            causal=self.causal,
        )

    def blocks(self) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
        """Yield (name of the split, tokens, answers) for each block of examples of all splits."""
        for number, (split, size) in enumerate(self.sizes.items()):
            for start in range(0, size, BLOCK):
                # Draw the last block completely, too, since its examples must not depend on the size of the split.
                tokens, answers = self.draw(Draws(self.seed, number, start // BLOCK), BLOCK, train=split == "train")
                rows = min(BLOCK, size - start)
                yield split, tokens[:rows], answers[:rows]

    def write(self, writers: dict[str, Writer], folder: Path) -> dict[str, Any]:
        for split, tokens, answers in self.blocks():
            writers[split].mark(tokens, answers)
        return {"from": GENERATED, "scored": "positions with an answer, all examples together"}

    def baselines(self, splits: Splits) -> dict[str, float]:
        """Return test accuracies (percent) of the most frequent answer and of `extra_baselines`."""
        train, test = splits["train"], splits["test"]
        extra = {name: float(value) for name, value in self.extra_baselines(train, test).items()}
        return {"most frequent answer": majority(train, test), **extra}

    def extra_baselines(self, train: PositionLabels, test: PositionLabels) -> dict[str, float]:
        """Return test accuracies (percent) of further trivial baselines, by name."""
        return {}

    def groups(self, split: PositionLabels) -> dict[str, Group]:
        return {"position": by_size(split.positions)}


def grid(split: PositionLabels) -> tuple[np.ndarray, np.ndarray]:
    """Return all tokens [n, L] of a split, and an array [m] with the index of each prediction's example.

    All examples must have the same length.
    """
    tokens = split.tokens.reshape(len(split), -1)  # [n, L]
    return tokens, np.repeat(np.arange(len(split)), split.counts(np.arange(len(split))))
