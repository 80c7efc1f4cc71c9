"""The shape every task has.

A task is ragged, flat and memory-mapped: the tokens of all documents in one array and the offsets between
them. Padding is made per batch and never stored; token id 0 is padding everywhere.

Legend: n examples, P documents per example (1; matching 2), m stored documents, L tokens.
"""

import mmap
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np

from lra.core.errors import UserError
from lra.data.groups import Group, by_size, by_value

PADDING = 0
READ_BEFORE_RELEASE = 256  # documents
OF_INPUTS = ("tokens", "values")  # the objectives of self-pretraining

Progress = Callable[[int, int], None]
"""Called with (rows done, rows in all)."""


def no_op_progress(done: int, total: int) -> None:
    """The progress that nobody hears."""


@dataclass(frozen=True, kw_only=True)
class TaskSpec:
    """What a model has to know of a task, and the name under which its results stand.

    `classify`: one of `classes` for each example. `next_token`: the following token at every position, so that
    `classes` is the vocabulary and `max_len` the context; such tasks are measured by perplexity. `positions`: one of
    `classes` at each position that is scored; `reconstruct`: the same, from what the last position holds alone.
    `tokens` and `values`: what the inputs of a task that classifies hold at the positions that are scored, one of
    `classes` or a number (`lra.data.self_pretraining`). `causal`: a prediction may depend on no later position.
    `pictures`: examples are pictures of `max_len` pixels. `fixed_length`: every document has `max_len` tokens, so that
    there is no padding to mask. `documents`: P.
    """

    name: str
    version: int
    vocab_size: int
    max_len: int
    classes: int
    documents: int = 1
    objective: Literal["classify", "next_token", "positions", "reconstruct", "tokens", "values"] = "classify"
    causal: bool = False
    pictures: bool = False
    fixed_length: bool = False

    @property
    def metric(self) -> str:
        """What a table shows: accuracy in percent, or perplexity."""
        return "perplexity" if self.objective in ("next_token", *OF_INPUTS) else "accuracy"


@dataclass(frozen=True, kw_only=True)
class Split:
    """n examples of P documents each.

    tokens [total] uint8 | uint16 and offsets [m + 1] int64 hold the m stored documents, each once;
    index [n * P] int32 says which document stands at each place, labels [n] what the examples are. A token is what is
    stored + `shift`.
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

    def document(self, example: int, place: int = 0) -> np.ndarray:
        """The tokens of one document [its length]."""
        row = self.index[example * self.documents + place]
        return self.tokens[self.offsets[row] : self.offsets[row + 1]]

    def stored(self, rows: Iterable[int]) -> Iterator[np.ndarray]:
        """The tokens of these stored documents, one by one, without keeping in memory what was read of a map."""
        tokens, offsets = np.asarray(self.tokens), np.asarray(self.offsets)  # whose items are had faster
        for number, row in enumerate(rows):
            yield tokens[offsets[row] : offsets[row + 1]]
            if number % READ_BEFORE_RELEASE == 0:
                self.release()

    def release(self) -> None:
        """Give back the memory of mapped tokens; they are read again when they are needed."""
        if isinstance(self.tokens, np.memmap):
            self.tokens._mmap.madvise(mmap.MADV_DONTNEED)

    def lengths(self, examples: np.ndarray) -> np.ndarray:
        """Lengths [len(examples), P] of the documents of these examples."""
        rows = self._rows(examples)
        return (self.offsets[rows + 1] - self.offsets[rows]).reshape(len(examples), self.documents)

    def pad(self, examples: np.ndarray, length: int) -> np.ndarray:
        """Tokens [len(examples) * P, length], the documents of one example side by side, padded with 0 on the right."""
        rows = self._rows(examples)
        batch = np.full((len(rows), length), PADDING, dtype=self.tokens.dtype)
        for line, row in zip(batch, rows, strict=True):
            start, stop = self.offsets[row], self.offsets[row + 1]
            line[: stop - start] = self.tokens[start:stop]
        return batch

    def predictions(self, examples: np.ndarray) -> np.ndarray:
        """Which of all predictions of the split are those of these examples: one for each."""
        return np.asarray(examples)

    def targets(self, examples: np.ndarray) -> np.ndarray:
        """What is to be predicted: labels [len(examples)]."""
        return self.labels[examples].astype(np.int64)

    def scored(self, examples: np.ndarray, length: int) -> np.ndarray | None:
        """The places of the predictions in the padded batch, row after row; None where all of them are, or none is."""
        return None

    def of_step(self, step: int) -> Self:
        """What a training step reads: the split itself, where steps draw nothing of their own."""
        return self

    def verdicts(self) -> list:
        """What is to be predicted of each stored example, to be compared with that of others."""
        return self.labels.tolist()

    def _rows(self, examples: np.ndarray) -> np.ndarray:
        places = np.asarray(examples)[:, None] * self.documents + np.arange(self.documents)
        return self.index[places.ravel()]


@dataclass(frozen=True, kw_only=True)
class Task(TaskSpec):
    """A prepared task: its facts, its splits, what a model must beat, and where it came from and lies."""

    train: Split
    val: Split
    test: Split
    baselines: dict[str, float]
    digest: str
    folder: Path
    source: Any

    @property
    def validates_on_test(self) -> bool:
        """True where the protocol validates on the test split (LRA's and the papers' way on text)."""
        return self.val is self.test


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where prepared data are kept, where raw data may lie, and who hears how far the preparation is.

    `verify`: raw data are read whatever is remembered of them.
    """

    cache: Path
    data_dir: Path | None
    workers: int
    progress: Progress
    verify: bool = False

    @classmethod
    def of(cls, settings: Any, progress: Progress = no_op_progress) -> "Place":
        """From the settings `cache`, `data_dir` and `workers` of a command; no `workers` means all cores.

        Raises UserError where `data_dir` is named, but is no folder.
        """
        data_dir = None if settings.data_dir is None else Path(settings.data_dir).expanduser()
        if data_dir is not None and not (settings.data_dir and data_dir.is_dir()):
            raise UserError(
                f"data_dir={settings.data_dir}: no such folder; name the one where the raw data lie (data_dir=... or "
                "LRA_DATA=...), or take data_dir=null for what is cached and what can be fetched"
            )
        return cls(
            cache=Path(settings.cache).expanduser(),
            data_dir=data_dir,
            workers=settings.workers or default_workers(),
            progress=progress,
        )


class TaskBuilder(ABC):
    """Makes one task. Its constructor's keywords are the task's options in `conf/task/`."""

    place: Place | None = None

    def at(self, place: Place) -> Self:
        """A copy whose facts are those of the task that `build` makes of the data of this place."""
        builder = copy(self)
        builder.place = place
        return builder

    @property
    @abstractmethod
    def facts(self) -> TaskSpec:
        """The facts of the data at `place`; without a place those of the published data. No data are parsed."""

    @abstractmethod
    def build(self, place: Place) -> Task:
        """Open the prepared task, preparing it first where it is not there yet."""

    def groups(self, split: Split) -> dict[str, Group]:
        """What is known of the examples of a split, for tasks that classify."""
        return {"length": by_size(split.lengths(np.arange(len(split))).sum(axis=1)), "class": by_value(split.labels)}

    def guesses(self, task: Task) -> np.ndarray | None:
        """A trivial baseline's answers on test [n], for tasks where one is worth comparing group by group."""
        return None

    def export(self, task: Task, folder: Path) -> list[Path]:
        """Write the task's official files, for tasks that have such a layout."""
        raise UserError(f"export={folder}: {task.name} has no official layout to write")

    def show(self, task: Task, number: int) -> bytes:
        """A PNG of so many examples of train, for tasks of pictures."""
        raise UserError(f"show={number}: {task.name} has no pictures; the card says what it holds")


def titled(name: str, notes: dict[str, bool]) -> str:
    """The published name of a task and, in parentheses, the notes that hold: how it differs from what was published."""
    differences = [note for note, holds in notes.items() if holds]
    return f"{name} ({', '.join(differences)})" if differences else name


def default_workers() -> int:
    """The processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
