"""Define the Python classes of prepared tasks, of their specs, of their splits, and of folders (`DataConfig`).

The documents of a split differ in length and are memory-mapped: one array holds the tokens of all documents, another
the offsets at which they start. Padding is added per batch and never stored; token id 0 is padding in all tasks.

Legend: n examples, P documents per example (2 for pairs, else 1), m stored documents, L tokens.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np

from lra.core.errors import UserError
from lra.core.paths import expanded

PADDING = 0
OF_INPUTS = ("tokens", "values")  # the objectives of self-pretraining

Objective = Literal["classify", "next_token", "positions", "reconstruct", "tokens", "values"]

Progress = Callable[[int, int], None]
"""Callback with the arguments (examples done, total number of examples)."""


def no_op_progress(done: int, total: int) -> None:
    """Ignore the progress; default of `DataConfig.progress`."""


@dataclass(frozen=True, kw_only=True)
class TaskSpec:
    """Properties of a task that a model depends on, and its name in results.

    Args:
        name: name in results, with differences from the published data in parentheses.
        version: version of the data.
        vocab_size: number of token ids, padding included.
        max_len: maximum number of tokens of a document; for `next_token`, number of tokens of a window.
        classes: number of different labels or answers; for `next_token`, size of the vocabulary; for `values`, 1.
        documents: number P of documents per example.
        objective: prediction target. `classify`: one of `classes` per example; `next_token`: the next token at every
            position, measured by perplexity; `positions`: one of `classes` at each scored position; `reconstruct`: like
            `positions`, but predicted only from the state at the last position; `tokens` and `values`: tokens of a
            classification task's inputs, as token ids or as numbers (`lra.datasets.self_pretraining`).
        causal: True if predictions may not depend on later positions.
        pictures: True if examples are pictures of `max_len` pixels.
        fixed_length: True if every document has `max_len` tokens, so that there is no padding to mask.
    """

    pad_id: ClassVar[int] = PADDING
    name: str
    version: int
    vocab_size: int
    max_len: int
    classes: int
    documents: int = 1
    objective: Objective = "classify"
    causal: bool = False
    pictures: bool = False
    fixed_length: bool = False

    @property
    def metric(self) -> str:
        """Name of the metric in results: `accuracy`, which is in percent, or `perplexity`."""
        return "perplexity" if self.objective in ("next_token", *OF_INPUTS) else "accuracy"


@dataclass(frozen=True, kw_only=True)
class Split:
    """Split of n examples with P documents each.

    Args:
        tokens: stored numbers [total] of all documents, uint8 or uint16; a token is the stored number + `shift`.
        offsets: bounds [m + 1] int64 of the stored documents; document i is tokens[offsets[i] : offsets[i + 1]].
        index: array [n * P] int32 with the index of the stored document for each document of each example; several
            examples may use the same stored document.
        labels: class of each example [n].
    """

    shift: ClassVar[int] = 0
    tokens: np.ndarray
    offsets: np.ndarray
    index: np.ndarray
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def documents(self) -> int:
        """Number P of documents per example."""
        return len(self.index) // len(self.labels)

    def document(self, example: int, number: int = 0) -> np.ndarray:
        """Return the tokens [L] of document `number` of an example."""
        row = self.index[example * self.documents + number]
        return self.tokens[self.offsets[row] : self.offsets[row + 1]]

    def stored(self, rows: Iterable[int]) -> Iterator[np.ndarray]:
        """Yield the stored numbers [L], without `shift`, of each of the stored documents with the indices `rows`."""
        return (self.tokens[self.offsets[row] : self.offsets[row + 1]] for row in rows)

    def lengths(self, examples: np.ndarray) -> np.ndarray:
        """Return the lengths [len(examples), P] of the documents of these examples."""
        rows = self._rows(examples)  # [len(examples) * P]
        return (self.offsets[rows + 1] - self.offsets[rows]).reshape(len(examples), self.documents)

    def pad(self, examples: np.ndarray, length: int) -> np.ndarray:
        """Return tokens [len(examples) * P, length], padded with 0 on the right; rows of one example are adjacent."""
        rows = self._rows(examples)
        batch = np.full((len(rows), length), PADDING, dtype=self.tokens.dtype)
        for line, row in zip(batch, rows, strict=True):
            start, stop = self.offsets[row], self.offsets[row + 1]
            line[: stop - start] = self.tokens[start:stop]
        return batch

    def predictions(self, examples: np.ndarray) -> np.ndarray:
        """Return the indices of the examples' predictions among all predictions of the split.

        By default each example has one prediction.
        """
        return np.asarray(examples)

    def targets(self, examples: np.ndarray) -> np.ndarray:
        """Return the targets: labels [len(examples)]."""
        return self.labels[examples].astype(np.int64)  # the type of class indices in PyTorch's losses

    def scored(self, examples: np.ndarray, length: int) -> np.ndarray | None:
        """Return flat indices of the scored positions in the padded batch [len(examples), length].

        None means that all positions (next-token prediction) or no positions (classification) are scored.
        """
        return None

    def of_step(self, step: int) -> Self:
        """Return the split for a training step; it is the same for all steps unless the split draws random masks."""
        return self

    def label_keys(self) -> list:
        """Return one hashable value per example; the values of examples with equal targets are equal."""
        return self.labels.tolist()

    def _rows(self, examples: np.ndarray) -> np.ndarray:
        numbers = np.asarray(examples)[:, None] * self.documents + np.arange(self.documents)  # [n, P]
        return self.index[numbers.ravel()]


@dataclass(frozen=True, kw_only=True)
class Task(TaskSpec):
    """A prepared task: its spec, splits, trivial baselines, and the origin of the data.

    Args:
        train: training split.
        val: validation split; the same object as `test` if the task validates on test.
        test: test split.
        baselines: test scores of trivial baselines by name.
        digest: SHA-256 of the arrays.
        folder: folder of the prepared data in the cache.
        source: origin of the raw data, for the record.
    """

    train: Split
    val: Split
    test: Split
    baselines: dict[str, float]
    digest: str
    folder: Path
    source: Any

    @property
    def spec(self) -> TaskSpec:
        """Spec of the task, without splits and data."""
        return TaskSpec(**{field.name: getattr(self, field.name) for field in fields(TaskSpec)})

    @property
    def validates_on_test(self) -> bool:
        """True if `val` is the test split, as in the protocol of Long Range Arena for `text`."""
        return self.val is self.test

    @property
    def best_baseline(self) -> tuple[str, float] | None:
        """Name and test score of the best trivial baseline; None if the task has no baseline."""
        return best_baseline(self.baselines, self.metric)


def best_baseline(baselines: dict[str, float], metric: str) -> tuple[str, float] | None:
    """Return name and test score of the best baseline; None if `baselines` is empty."""
    best = min if metric == "perplexity" else max
    return best(baselines.items(), key=lambda item: item[1], default=None)


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Folders of prepared and raw data, and settings of the preparation.

    Args:
        cache: folder of prepared data.
        data_dir: folder of raw data, or None.
        workers: number of processes that prepare data.
        progress: callback with the arguments (examples done, total number of examples).
    """

    cache: Path
    data_dir: Path | None
    workers: int
    progress: Progress = no_op_progress

    @classmethod
    def of(cls, settings: Any, progress: Progress = no_op_progress) -> "DataConfig":
        """Return the configuration for the settings `cache`, `data_dir` and `workers` of a command.

        If `workers` is not set, all CPU cores are used.

        Raises:
            UserError: `data_dir` is not a folder.
        """
        data_dir = None if settings.data_dir is None else expanded(settings.data_dir, "data_dir")
        if data_dir is not None and not (settings.data_dir and data_dir.is_dir()):
            raise UserError(
                f"data_dir={settings.data_dir}: no such folder; set data_dir=... or LRA_DATA=... to the folder of raw "
                "data, or data_dir=null to use cached data and what can be fetched"
            )
        return cls(
            cache=expanded(settings.cache, "cache"),
            data_dir=data_dir,
            workers=settings.workers or default_workers(),
            progress=progress,
        )


def titled(name: str, notes: dict[str, bool]) -> str:
    """Return the published name of a task and, in parentheses, the notes whose value is True."""
    differences = [note for note, holds in notes.items() if holds]
    return f"{name} ({', '.join(differences)})" if differences else name


def default_workers() -> int:
    """Return the number of CPU cores that this process may use."""
    # `cpu_count` ignores limits such as those of SLURM; macOS does not have `sched_getaffinity`.
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
