"""Build self-pretraining tasks: predict tokens of the training documents of a classification task, without labels.

Legend: n documents, m predictions, L tokens, V size of the task's vocabulary; the id V is the mask token.

Source:
    Amos et al. 2024.
"""

from abc import abstractmethod
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import ClassVar, Literal, Self

import numpy as np

from lra.core import streams
from lra.core.errors import UserError
from lra.datasets.groups import held_out
from lra.datasets.task import Split, Task, TaskSpec

SHORTEST = 2  # minimum number of tokens of a document; next-token prediction has no target in a shorter one


@dataclass(frozen=True, kw_only=True)
class TokenPrediction(Split):
    """Base class of splits for self-pretraining: n documents, each of which is one example.

    Args:
        shift: number added to stored values to get token ids, as in the classification task's split. If it is not 0,
            all documents must have the same length, because `pad` would add it to padding, too.
        vocab_size: V.
        values: True if targets are the numbers (id - 1) / (V - 2), such as grey values, instead of token ids.
    """

    shift: int  # type: ignore[misc]
    vocab_size: int
    values: bool
    documents = 1
    ahead: ClassVar[int]  # number of positions from a scored position to the token that is predicted there

    def __len__(self) -> int:
        return len(self.index)

    @abstractmethod
    def positions(self, row: int, length: int) -> np.ndarray:
        """Return the scored positions of the stored document `row` of `length` tokens, in ascending order."""

    def pad(self, examples: np.ndarray, length: int) -> np.ndarray:
        # int32, because the mask token V may not fit into the stored type.
        return super().pad(examples, length).astype(np.int32) + self.shift

    def predictions(self, examples: np.ndarray) -> np.ndarray:
        """Return the indices [m] in `self.tokens` of the tokens to predict."""
        return np.concatenate([start + positions + self.ahead for start, positions in self._scored(examples)])

    def targets(self, examples: np.ndarray) -> np.ndarray:
        """Return the targets [m]: token ids in int64 or, if `values` is True, numbers from 0 to 1 in float32."""
        ids = self.tokens[self.predictions(examples)].astype(np.int64) + self.shift
        return ((ids - 1) / (self.vocab_size - 2)).astype(np.float32) if self.values else ids

    def scored(self, examples: np.ndarray, length: int) -> np.ndarray:
        return np.concatenate([line * length + positions for line, (_, positions) in enumerate(self._scored(examples))])

    def _scored(self, examples: np.ndarray) -> list[tuple[int, np.ndarray]]:
        """Return, for each document, the index of its first token in `self.tokens`, and its scored positions."""
        bounds = [(row, self.offsets[row], self.offsets[row + 1]) for row in self._rows(examples).tolist()]
        return [(start, self.positions(row, int(stop - start))) for row, start, stop in bounds]


@dataclass(frozen=True, kw_only=True)
class MaskedTokens(TokenPrediction):
    """Split for masked prediction: random tokens of each document, at least one, are masked and predicted.

    The masked positions depend only on `share`, `seed`, `draw` and the document. Each training step has another value
    of `draw`; all evaluations have 0.

    Args:
        share: probability of masking a token.
        seed: seed of the masks.
        draw: 0 in evaluation, else 1 + the step.
    """

    share: float
    seed: int
    draw: int = 0
    ahead = 0

    def of_step(self, step: int) -> Self:
        return replace(self, draw=1 + step)

    def positions(self, row: int, length: int) -> np.ndarray:
        draws = streams.generator(self.seed, "mask", self.draw, row).random(length)
        hidden = np.flatnonzero(draws < self.share)
        # Mask at least one token, because a document without a target has no loss.
        return hidden if len(hidden) else np.array([draws.argmin()])

    def pad(self, examples: np.ndarray, length: int) -> np.ndarray:
        batch = super().pad(examples, length)
        batch.ravel()[self.scored(examples, length)] = self.vocab_size
        return batch


@dataclass(frozen=True, kw_only=True)
class NextToken(TokenPrediction):
    """Split for next-token prediction: each token except the first is predicted from the tokens before it."""

    ahead = 1

    def positions(self, row: int, length: int) -> np.ndarray:
        return np.arange(length - 1)


Objective = Literal["masked", "next"]


def spec_of(spec: TaskSpec, objective: Objective, *, values: bool) -> TaskSpec:
    """Return the spec of the pretraining task for a classification task with the spec `spec`.

    Raises:
        UserError: the task does not classify.
    """
    if spec.objective != "classify":
        raise UserError(
            f"pretrain: {spec.name} predicts at positions; expected a task that classifies, or pretrain=none"
        )
    return TaskSpec(
        name=f"{spec.name}, its inputs",
        version=spec.version,
        vocab_size=spec.vocab_size + (objective == "masked"),
        max_len=spec.max_len,
        classes=1 if values else spec.vocab_size,
        objective="values" if values else "tokens",
        causal=objective == "next",
        fixed_length=spec.fixed_length,
    )


def inputs_of(task: Task, objective: Objective, *, values: bool, share: float, holdout: float, seed: int) -> Task:
    """Return the pretraining task; its data are the training documents of a classification task, without labels.

    Args:
        task: classification task; its test and validation splits are not used.
        objective: `masked` or `next`.
        values: True to predict numbers, False to predict token ids.
        share: probability of masking a token.
        holdout: fraction of the documents for validation; they are chosen with a fixed seed.
        seed: seed of the masks.
    """
    train = task.train
    # [n]: indices of stored documents instead of examples, so that a document in several pairs is used once.
    rows = np.flatnonzero(np.diff(train.offsets) >= SHORTEST)
    held = held_out(np.zeros(len(rows), dtype=int), holdout)  # one class, since labels must not be used
    if not held.any() or held.all():
        raise UserError(f"pretrain.holdout={holdout}: leaves none of {len(rows)} documents for training or validation")

    kind = partial(MaskedTokens, share=share, seed=seed) if objective == "masked" else NextToken
    split = kind(
        tokens=train.tokens,
        offsets=train.offsets,
        index=rows[~held],
        labels=np.empty(0, np.uint8),  # the targets are tokens
        shift=train.shift,
        vocab_size=task.vocab_size,
        values=values,
    )
    val = replace(split, index=rows[held])
    return Task(
        **vars(spec_of(task.spec, objective, values=values)),
        train=split,
        val=val,
        test=val,  # pretraining has no test of its own
        baselines={},
        digest=task.digest,
        folder=Path(),
        source="the training inputs",
    )
