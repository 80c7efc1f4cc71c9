"""Splits with other predictions than one per example: next tokens of windows, answers at marked positions.

Legend: n examples, m predictions.
"""

from dataclasses import dataclass

import numpy as np

from lra.data import Split


@dataclass(frozen=True, kw_only=True)
class LMWindows(Split):
    """The documents as one stream, cut into windows of `context` tokens that start every `stride` tokens.

    An example is a window; its targets are the tokens that follow each of its tokens.
    """

    context: int
    stride: int
    documents = 1

    def __len__(self) -> int:
        return max(0, (len(self.tokens) - 1 - self.context) // self.stride + 1)

    def lengths(self, examples: np.ndarray) -> np.ndarray:
        return np.full((len(examples), 1), self.context)

    def predictions(self, examples: np.ndarray) -> np.ndarray:
        """Return one index for every token of every window."""
        return (np.asarray(examples)[:, None] * self.context + np.arange(self.context)).ravel()

    def pad(self, examples: np.ndarray, length: int) -> np.ndarray:
        """Return tokens [len(examples), context]; `length` must be the context."""
        return self.tokens[self._places(examples)]

    def targets(self, examples: np.ndarray) -> np.ndarray:
        """Return the next tokens [len(examples), context]."""
        return self.tokens[self._places(examples) + 1].astype(np.int64)

    def _places(self, examples: np.ndarray) -> np.ndarray:
        return np.asarray(examples)[:, None] * self.stride + np.arange(self.context)


@dataclass(frozen=True, kw_only=True)
class PositionLabels(Split):
    """Examples of one document each, with answers at some of its positions, which alone are scored.

    Args:
        ends: boundaries between the predictions of the examples [n + 1] int64.
        places: positions of the predictions in their documents [m], ascending.
        labels: answers [m].
    """

    ends: np.ndarray
    places: np.ndarray
    documents = 1

    def __len__(self) -> int:
        return len(self.ends) - 1

    def predictions(self, examples: np.ndarray) -> np.ndarray:
        counts = self.counts(examples)
        before = np.cumsum(counts) - counts
        return np.repeat(self.ends[np.asarray(examples)] - before, counts) + np.arange(counts.sum())

    def counts(self, examples: np.ndarray) -> np.ndarray:
        """Return the number of predictions of each of these examples [len(examples)]."""
        examples = np.asarray(examples)
        return self.ends[examples + 1] - self.ends[examples]

    def targets(self, examples: np.ndarray) -> np.ndarray:
        """Return the answers of these examples, one example after the other."""
        return self.labels[self.predictions(examples)].astype(np.int64)

    def scored(self, examples: np.ndarray, length: int) -> np.ndarray:
        rows = np.repeat(np.arange(len(examples)), self.counts(examples))
        return rows * length + self.places[self.predictions(examples)]

    def verdicts(self) -> list[bytes]:
        places, labels = np.asarray(self.places), np.asarray(self.labels)
        cuts = zip(self.ends[:-1].tolist(), self.ends[1:].tolist(), strict=True)
        return [places[start:stop].tobytes() + labels[start:stop].tobytes() for start, stop in cuts]
