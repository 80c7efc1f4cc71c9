"""The inputs of a task without their labels, for self-pretraining (Amos et al. 2024): each document predicts a part of
itself.

Legend: n documents, L tokens, V the task's vocabulary; V itself is the token that stands where one is hidden.
"""

from abc import abstractmethod
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import ClassVar, Literal, Self

import numpy as np

from lra.core import streams
from lra.core.errors import UserError
from lra.data import Split, Task, TaskSpec
from lra.data.sampling import held_out

SHORTEST = 2  # tokens of a document in which something can be predicted from something else


@dataclass(frozen=True, kw_only=True)
class Inputs(Split):
    """n documents, each an example. `vocab_size`: V; with `values` a token is the number (id - 1) / (V - 2), as a grey
    value is, and else a class. `shift`: of the documents' own task; where it is not 0 they have one length."""

    shift: int
    vocab_size: int
    values: bool
    documents = 1
    ahead: ClassVar[int]  # how far behind a scored position the token lies that it predicts

    def __len__(self) -> int:
        return len(self.index)

    @abstractmethod
    def places(self, row: int, length: int) -> np.ndarray:
        """The positions of the stored document `row` of this length that are scored, ascending."""

    def pad(self, examples: np.ndarray, length: int) -> np.ndarray:
        return super().pad(examples, length).astype(np.int32) + self.shift

    def predictions(self, examples: np.ndarray) -> np.ndarray:
        """The numbers of the predicted tokens among all stored ones."""
        return np.concatenate([start + places + self.ahead for start, places in self._scored(examples)])

    def targets(self, examples: np.ndarray) -> np.ndarray:
        """Classes [m], or with `values` numbers from 0 to 1 [m]."""
        ids = self.tokens[self.predictions(examples)].astype(np.int64) + self.shift
        return ((ids - 1) / (self.vocab_size - 2)).astype(np.float32) if self.values else ids

    def scored(self, examples: np.ndarray, length: int) -> np.ndarray:
        return np.concatenate([line * length + places for line, (_, places) in enumerate(self._scored(examples))])

    def _scored(self, examples: np.ndarray) -> list[tuple[int, np.ndarray]]:
        """Where each document starts among all stored tokens, and its scored positions."""
        bounds = [(row, self.offsets[row], self.offsets[row + 1]) for row in self._rows(examples).tolist()]
        return [(start, self.places(row, int(stop - start))) for row, start, stop in bounds]


@dataclass(frozen=True, kw_only=True)
class Masked(Inputs):
    """A `share` of the tokens is hidden, each by a draw of its own, and predicted where it stood; one at least.

    What is hidden is a function of (seed, draw, document): every training step has a draw of its own, an evaluation
    has always the same.
    """

    share: float
    seed: int
    draw: int = 0
    ahead = 0

    def of_step(self, step: int) -> Self:
        return replace(self, draw=1 + step)

    def places(self, row: int, length: int) -> np.ndarray:
        draws = streams.generator(self.seed, "mask", self.draw, row).random(length)
        hidden = np.flatnonzero(draws < self.share)
        return hidden if len(hidden) else draws.argmin(keepdims=True)

    def pad(self, examples: np.ndarray, length: int) -> np.ndarray:
        batch = super().pad(examples, length)
        batch.ravel()[self.scored(examples, length)] = self.vocab_size
        return batch


@dataclass(frozen=True, kw_only=True)
class Following(Inputs):
    """Every token but the first is predicted from those before it."""

    ahead = 1

    def places(self, row: int, length: int) -> np.ndarray:
        return np.arange(length - 1)


Objective = Literal["masked", "next"]


def facts_of(facts: TaskSpec, objective: Objective, *, values: bool) -> TaskSpec:
    """The facts of the task that a model for `facts` is pretrained with. Raises UserError where it does not
    classify."""
    if facts.objective != "classify":
        raise UserError(
            f"pretrain: {facts.name} predicts at positions; expected a task that classifies, or pretrain=none"
        )
    return TaskSpec(
        name=f"{facts.name}, its inputs",
        version=facts.version,
        vocab_size=facts.vocab_size + (objective == "masked"),
        max_len=facts.max_len,
        classes=1 if values else facts.vocab_size,
        objective="values" if values else "tokens",
        causal=objective == "next",
        fixed_length=facts.fixed_length,
    )


def inputs_of(
    train: Split,
    facts: TaskSpec,
    digest: str,
    objective: Objective,
    *,
    values: bool,
    share: float,
    holdout: float,
    seed: int,
) -> Task:
    """The task of predicting the documents of `train`, of a task with these facts; a seeded `holdout` of them is for
    validation. No other split is seen, and no label."""
    rows = np.flatnonzero(np.diff(train.offsets) >= SHORTEST)
    held = held_out(np.zeros(len(rows), dtype=int), holdout)
    if not held.any() or held.all():
        raise UserError(f"pretrain.holdout={holdout}: of {len(rows)} documents, expected some for each part")

    kind = partial(Masked, share=share, seed=seed) if objective == "masked" else Following

    def split(index: np.ndarray) -> Inputs:
        return kind(
            tokens=train.tokens,
            offsets=train.offsets,
            index=index,
            labels=np.empty(0, np.uint8),
            shift=train.shift,
            vocab_size=facts.vocab_size,
            values=values,
        )

    val = split(rows[held])
    return Task(
        **vars(facts_of(facts, objective, values=values)),
        train=split(rows[~held]),
        val=val,
        test=val,
        baselines={},
        digest=digest,
        folder=Path(),
        source="the training inputs",
    )
