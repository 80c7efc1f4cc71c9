"""Base classes of tasks and of their splits.

The documents of a split are ragged and memory-mapped: the tokens of all documents in one array, and the offsets between
them. Padding is added per batch and never stored; token id 0 is padding in all tasks.

Legend: n examples, P documents per example (1; matching 2), m stored documents, L tokens.
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
"""Called with (rows done, rows in all)."""


def no_op_progress(done: int, total: int) -> None:
    """Ignore progress."""


@dataclass(frozen=True, kw_only=True)
class TaskSpec:
    """Properties of a task that a model depends on, and its name in results.

    Args:
        name: in results; differences from the published data are noted in parentheses.
        version: of the data.
        vocab_size: token ids, padding included.
        max_len: tokens of the longest document; the context of a language model.
        classes: of labels or answers; the vocabulary for `next_token`.
        documents: P.
        objective: `classify` predicts one of `classes` per example; `next_token` the following token at every position,
            measured by perplexity; `positions` one of `classes` at each scored position; `reconstruct` the same from
            the state at the last position alone; `tokens` and `values` the inputs of a classification task at scored
            positions, as classes or numbers (`lra.datasets.self_pretraining`).
        causal: predictions depend on no later position.
        pictures: examples are pictures of `max_len` pixels.
        fixed_length: every document has `max_len` tokens, so that there is no padding to mask.
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
        """Metric of tables: accuracy in percent, or perplexity."""
        return "perplexity" if self.objective in ("next_token", *OF_INPUTS) else "accuracy"


@dataclass(frozen=True, kw_only=True)
class Split:
    """n examples of P documents each.

    Args:
        tokens: stored tokens of all documents [total], uint8 or uint16; a token is the stored number + `shift`.
        offsets: between the m stored documents, each of which is stored once [m + 1] int64.
        index: stored document of each document of each example [n * P] int32.
        labels: [n].
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
        """P."""
        return len(self.index) // len(self.labels)

    def document(self, example: int, number: int = 0) -> np.ndarray:
        """Return the tokens of one document of an example [its length]."""
        row = self.index[example * self.documents + number]
        return self.tokens[self.offsets[row] : self.offsets[row + 1]]

    def stored(self, rows: Iterable[int]) -> Iterator[np.ndarray]:
        """Yield the tokens of these stored documents."""
        tokens, offsets = np.asarray(self.tokens), np.asarray(self.offsets)  # faster than items of a memmap
        return (tokens[offsets[row] : offsets[row + 1]] for row in rows)

    def lengths(self, examples: np.ndarray) -> np.ndarray:
        """Return the lengths [len(examples), P] of the documents of these examples."""
        rows = self._rows(examples)
        return (self.offsets[rows + 1] - self.offsets[rows]).reshape(len(examples), self.documents)

    def pad(self, examples: np.ndarray, length: int) -> np.ndarray:
        """Return tokens [len(examples) * P, length], an example's documents in a row, padded with 0 on the right."""
        rows = self._rows(examples)
        batch = np.full((len(rows), length), PADDING, dtype=self.tokens.dtype)
        for line, row in zip(batch, rows, strict=True):
            start, stop = self.offsets[row], self.offsets[row + 1]
            line[: stop - start] = self.tokens[start:stop]
        return batch

    def predictions(self, examples: np.ndarray) -> np.ndarray:
        """Return the indices of these examples' predictions among all predictions of the split: one per example."""
        return np.asarray(examples)

    def targets(self, examples: np.ndarray) -> np.ndarray:
        """Return the targets: labels [len(examples)]."""
        return self.labels[examples].astype(np.int64)

    def scored(self, examples: np.ndarray, length: int) -> np.ndarray | None:
        """Return the flat positions of the predictions in the padded batch; None if they are all positions, or none."""
        return None

    def of_step(self, step: int) -> Self:
        """Return the split for a training step: itself, unless steps draw noise."""
        return self

    def label_keys(self) -> list:
        """Return the targets of each stored example, for comparison between examples."""
        return self.labels.tolist()

    def _rows(self, examples: np.ndarray) -> np.ndarray:
        numbers = np.asarray(examples)[:, None] * self.documents + np.arange(self.documents)  # [n, P]
        return self.index[numbers.ravel()]


@dataclass(frozen=True, kw_only=True)
class Task(TaskSpec):
    """A prepared task: spec, splits, baselines that a model must beat, and origin.

    Args:
        train: training split; likewise val and test.
        baselines: test scores by name.
        digest: SHA-256 of the arrays.
        folder: in the cache.
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
        """The specification alone."""
        return TaskSpec(**{field.name: getattr(self, field.name) for field in fields(TaskSpec)})

    @property
    def validates_on_test(self) -> bool:
        """True if the protocol validates on the test split (as LRA and the papers do on text)."""
        return self.val is self.test

    @property
    def best_baseline(self) -> tuple[str, float] | None:
        """Name and test score of the best trivial baseline, None if there is none."""
        return best_baseline(self.baselines, self.metric)


def best_baseline(baselines: dict[str, float], metric: str) -> tuple[str, float] | None:
    """Return name and test score of the best of some baselines, None if there are none."""
    best = min if metric == "perplexity" else max
    return best(baselines.items(), key=lambda item: item[1], default=None)


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Folders of prepared and raw data, and settings of the preparation.

    Args:
        cache: folder of prepared data.
        data_dir: folder of raw data, or None.
        workers: processes.
        progress: called with (rows done, rows in all).
    """

    cache: Path
    data_dir: Path | None
    workers: int
    progress: Progress = no_op_progress

    @classmethod
    def of(cls, settings: Any, progress: Progress = no_op_progress) -> "DataConfig":
        """Construct from the settings `cache`, `data_dir` and `workers` of a command; no `workers` means all cores.

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
    """Return the published name of a task and, in parentheses, the notes that hold."""
    differences = [note for note, holds in notes.items() if holds]
    return f"{name} ({', '.join(differences)})" if differences else name


def default_workers() -> int:
    """Number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
