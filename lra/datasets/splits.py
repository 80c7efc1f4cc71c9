"""Define splits for windows, for answers at positions and for pictures, and count contradictory examples.

Legend: n examples, m predictions.
"""

import hashlib
from collections import defaultdict
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from lra.datasets.task import Split


@dataclass(frozen=True, kw_only=True)
class LMWindows(Split):
    """Split of windows of `context` tokens from the stream of all documents; a window starts every `stride` tokens.
    An example is a window; its targets are the tokens of the window that starts one token later.
    """

    context: int
    stride: int
    documents = 1

    def __len__(self) -> int:
        # - 1: the last token of the stream is only a target.
        return max(0, (len(self.tokens) - 1 - self.context) // self.stride + 1)

    def lengths(self, examples: np.ndarray) -> np.ndarray:
        return np.full((len(examples), 1), self.context)

    def predictions(self, examples: np.ndarray) -> np.ndarray:
        """Return the indices [len(examples) * context] of the predictions, one for each token of each window."""
        return (np.asarray(examples)[:, None] * self.context + np.arange(self.context)).ravel()

    def pad(self, examples: np.ndarray, length: int) -> np.ndarray:
        """Return tokens [len(examples), context]; `length` must be the context."""
        return self.tokens[self._positions(examples)]

    def targets(self, examples: np.ndarray) -> np.ndarray:
        """Return the next tokens [len(examples), context]."""
        return self.tokens[self._positions(examples) + 1].astype(np.int64)

    def _positions(self, examples: np.ndarray) -> np.ndarray:
        return np.asarray(examples)[:, None] * self.stride + np.arange(self.context)  # [n, context]


@dataclass(frozen=True, kw_only=True)
class PositionLabels(Split):
    """Split of examples with one document each and answers at some positions; only these positions are scored.

    Args:
        ends: bounds [n + 1] int64 of the examples' predictions; example i has the predictions ends[i] to
            ends[i + 1] - 1.
        positions: positions [m] of the predictions in their documents, ascending within a document.
        labels: answers [m] of the predictions.
    """

    ends: np.ndarray
    positions: np.ndarray
    documents = 1

    def __len__(self) -> int:
        return len(self.ends) - 1

    def predictions(self, examples: np.ndarray) -> np.ndarray:
        counts = self.counts(examples)
        before = np.cumsum(counts) - counts  # number of predictions of earlier examples of the batch
        return np.repeat(self.ends[np.asarray(examples)] - before, counts) + np.arange(counts.sum())

    def counts(self, examples: np.ndarray) -> np.ndarray:
        """Return the number of predictions for each of these examples [len(examples)]."""
        examples = np.asarray(examples)
        return self.ends[examples + 1] - self.ends[examples]

    def targets(self, examples: np.ndarray) -> np.ndarray:
        """Return the concatenated answers [sum of `counts`] of these examples."""
        return self.labels[self.predictions(examples)].astype(np.int64)

    def scored(self, examples: np.ndarray, length: int) -> np.ndarray:
        rows = np.repeat(np.arange(len(examples)), self.counts(examples))  # [m]: row of each prediction in the batch
        return rows * length + self.positions[self.predictions(examples)]

    def label_keys(self) -> list[bytes]:
        cuts = zip(self.ends[:-1].tolist(), self.ends[1:].tolist(), strict=True)
        return [self.positions[start:stop].tobytes() + self.labels[start:stop].tobytes() for start, stop in cuts]


@dataclass(frozen=True, kw_only=True)
class Pictures(Split):
    """Split of pictures, stored as grey values [n * pixels] uint8; a token is value + 1, so that no pixel is padding.

    Args:
        attributes: array [n * p] int32 with p attributes of each picture if the pictures were generated, else None.
    """

    shift: ClassVar[int] = 1
    attributes: np.ndarray | None = None

    def document(self, example: int, number: int = 0) -> np.ndarray:
        return self.pad(np.array([example]), 0)[0]  # `pad` does not use the length

    def pad(self, examples: np.ndarray, length: int) -> np.ndarray:
        """Return tokens [len(examples), pixels] uint16; `length` is not used, since all pictures have one size."""
        return self.grey(examples).astype(np.uint16) + self.shift  # uint16, because 255 + 1 does not fit into a byte

    def grey(self, examples: np.ndarray) -> np.ndarray:
        """Return grey values [len(examples), pixels] uint8."""
        return self.tokens.reshape(len(self.offsets) - 1, -1)[self._rows(examples)]


def contradictions(splits: dict[str, Split]) -> dict[str, int]:
    """Return the number of doubtful examples by kind.

    The kinds are distinct examples in several splits, distinct examples with several labels, and pairs of a document
    and itself.
    """
    names: dict[bytes, set[str]] = defaultdict(set)
    labels: dict[bytes, set[int]] = defaultdict(set)
    for name, split in splits.items():
        for example, label in zip(_examples(split), split.label_keys(), strict=True):
            names[example].add(name)
            labels[example].add(label)
    pairs = [split.index.reshape(-1, split.documents) for split in splits.values() if split.documents > 1]
    return {
        "examples in more than one split": sum(len(found) > 1 for found in names.values()),
        "examples with more than one label": sum(len(found) > 1 for found in labels.values()),
        "pairs of a document and itself": sum(int((np.ptp(rows, axis=1) == 0).sum()) for rows in pairs),
    }


def seen(train: Split, test: Split) -> float:
    """Return the percentage of test examples that are also examples of train; labels are not compared."""
    of_train, of_test = set(_examples(train)), _examples(test)
    return 100 * sum(example in of_train for example in of_test) / len(of_test)


def _examples(split: Split) -> list[bytes]:
    """Return a digest of the documents of each example."""
    documents = split.stored(range(len(split.offsets) - 1))
    stored = [hashlib.blake2b(document.tobytes(), digest_size=16).digest() for document in documents]
    rows = split.index.reshape(-1, split.documents).tolist()
    return [b"".join(stored[row] for row in line) for line in rows]
