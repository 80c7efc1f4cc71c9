"""Define the base classes of task builders, which prepare the data of a task from files, the hub or a generator."""

import inspect
import json
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from copy import copy
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from pydantic import NonNegativeInt, PositiveInt

from lra.core.errors import UserError
from lra.core.files import digest
from lra.core.paths import expanded
from lra.datasets import cache, hub
from lra.datasets.cache import SPLITS, Identity, Splits, Writer
from lra.datasets.groups import Group, by_size, by_value
from lra.datasets.task import DataConfig, Task, TaskSpec
from lra.datasets.tokenise import load

GENERATED = "generated"  # origin of the data, in the record of a generated task
LISTED = 10  # maximum number of raw files whose SHA-256 a record lists; for more files it has one digest of all


class TaskBuilder(ABC):
    """Base class of builders, each of which prepares and opens the data of one task.

    The keyword arguments of the constructor are the task's options in `conf/task/`. Each is stored as an attribute of
    the same name. A subclass defines `spec` and `write`.

    Attributes:
        name: name of the task's folder in the cache.
        validates_on_test: True if the task has no split `val` and validates on the test split.
        data_config: folders of raw and prepared data; None until `at` sets it.
    """

    name: str = ""
    validates_on_test = False
    data_config: DataConfig | None = None

    def at(self, data_config: DataConfig) -> Self:
        """Return a copy that reads and caches data in these folders."""
        builder = copy(self)
        builder.data_config = data_config
        return builder

    @property
    @abstractmethod
    def spec(self) -> TaskSpec:
        """Spec of the prepared data; increase its version when the code writes other data for the same options."""

    @abstractmethod
    def write(self, writers: dict[str, Writer], folder: Path) -> Any:
        """Write all examples, and return the origin of the data for the record.

        Args:
            writers: writer of each split, by the name of the split.
            folder: folder for other files of the task, such as a tokenizer.
        """

    def files(self) -> list[Path]:
        """Return the raw files that `write` reads; if one changes, the data are prepared again."""
        return []

    def baselines(self, splits: Splits) -> dict[str, float]:
        """Return the test scores of baselines by name: accuracies in percent, or perplexities."""
        return {}

    @property
    def options(self) -> dict[str, Any]:
        """Options of the task by name: the attributes that are named like the constructor's parameters."""
        try:
            options = {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}
            json.dumps(options)
        except (AttributeError, TypeError) as error:
            raise UserError(
                f"{type(self).__name__}: {error}; expected each option, a number, a text or a list, as an "
                "attribute of the same name; for other options define `identity`"
            ) from None
        return options

    def identity(self) -> Identity:
        """Return JSON values that, together with the code and the content of `files`, determine the data."""
        return {"task": self.name or type(self).__name__.lower(), "version": self.spec.version, **self.options}

    @property
    def config(self) -> DataConfig:
        """The `data_config` that `at` has set; `at` must have been called."""
        assert self.data_config is not None, "call `at` first"
        return self.data_config

    def locate(self, data_config: DataConfig) -> str:
        """Return a digest of everything that determines the data.

        Raises:
            UserError: the data are neither prepared, nor on this machine, nor on a hub that answers.
        """
        return digest(cache.identity_of(self.at(data_config)))

    def build(self, data_config: DataConfig) -> Task:
        """Return the prepared task; prepare it first if it is not in the cache."""
        return cache.prepared(self.at(data_config))

    def groups(self, split: Any) -> dict[str, Group]:
        """Return the indices of a split's examples grouped by length and, separately, by class.

        This default is for tasks that classify. Probes group predictions instead of examples.
        """
        return {"length": by_size(split.lengths(np.arange(len(split))).sum(axis=1)), "class": by_value(split.labels)}

    def baseline_predictions(self, task: Task) -> np.ndarray | None:
        """Return the predictions [n] of a trivial baseline on test; None if the task has no such baseline.

        Reports score these predictions by group.
        """
        return None

    def class_names(self) -> list[str]:
        """Return the names of the classes, in the order of their labels; for tasks that classify."""
        return [str(number) for number in range(self.spec.classes)]

    def encode(self, text: str, tokenizer: Path) -> np.ndarray:
        """Return the token ids of a text, truncated as in training.

        Args:
            text: a document.
            tokenizer: path of the tokenizer that the prepared task saved; unused by tasks without one.
        """
        raise UserError(f"{text!r:.80}: {type(self).__name__} has no `encode` for texts; give token ids")

    def decode(self, ids: np.ndarray, tokenizer: Path) -> str | np.ndarray:
        """Decode ids to text or, for pictures, to grey values [side, side].

        By default, decode with the tokenizer of the prepared task; if it has none, join the ids with spaces.
        """
        return load(tokenizer).decode(ids.tolist()) if tokenizer.exists() else " ".join(map(str, ids.tolist()))

    def export(self, task: Task, folder: Path) -> None:
        """Write a prepared task to `folder`, as Parquet unless a subclass writes the files of Long Range Arena."""
        from lra.datasets.rows import write_parquet

        write_parquet(task, self.class_names(), folder)

    def stored_ids(self, ids: np.ndarray) -> np.ndarray:
        """Return the ids that a prepared task stores for token ids of the raw data; by default, the same ids."""
        return ids


@dataclass(frozen=True, kw_only=True)
class Source:
    """Raw data of a task: files, or a data set of the hub.

    Args:
        name: origin of the data, for the record.
        read: function that returns all data in the form that the task's `fill` expects; it raises UserError if the hub
            does not provide them.
        files: paths of the raw files; empty if the data are on the hub.
    """

    name: str
    read: Callable[[], Any]
    files: list[Path] = field(default_factory=list)


def of_splits(name: str, files: dict[str, Path], read: Callable[[Path], Any]) -> Source:
    """Return a source with one file per split.

    Args:
        name: origin of the data, for the record.
        files: path of the file of each split.
        read: function that reads the file of one split; `Source.read` returns its results by split.
    """
    every = [*files.values()]
    return Source(name=name, files=every, read=lambda: {split: read(path) for split, path in files.items()})


class FromSource(TaskBuilder):
    """Base class of builders with raw data; a subclass defines `spec`, `find`, `fill` and `baselines`."""

    @abstractmethod
    def find(self) -> Source:
        """Return the source of the raw data without reading the data; raise UserError if there is no source."""

    @abstractmethod
    def fill(self, source: Source, writers: dict[str, Writer], folder: Path) -> dict[str, Any]:
        """Write all examples of the source, and return entries for the record, other than `from` and `sha256`."""

    def files(self) -> list[Path]:
        return self.find().files

    def write(self, writers: dict[str, Writer], folder: Path) -> dict[str, Any]:
        source, raw = self.find(), cache.raw_sha256(self)
        more = self.fill(source, writers, folder)
        listed = raw if len(raw) <= LISTED else {f"{len(raw):,} files": digest(raw)}
        return {"from": source.name, **({"sha256": listed} if raw else {}), **more}

    def locate(self, data_config: DataConfig) -> str:
        builder = self.at(data_config)
        source = builder.find()
        if not source.files and not cache.is_prepared(builder) and not hub.is_reachable():
            source.read()  # raises the UserError for data that cannot be fetched
        return super().locate(data_config)

    def first(self, *names: str) -> Path | None:
        """Return the first of these paths that exists below the data folder, or None."""
        folder = self.data_config.data_dir if self.data_config else None
        return next((folder / name for name in names if (folder / name).exists()), None) if folder else None

    def located(self, name: str, key: str) -> Path:
        """Return the path `name` if it exists, else the same path below the data folder.

        Raises:
            UserError: neither exists; the message names the option `key`.
        """
        path, folder = expanded(name, f"task.{key}"), self.config.data_dir
        if path.exists():
            return path
        if folder is not None and (folder / path).exists():
            return folder / path
        raise UserError(f"task.{key}: {name}: no such file or folder{' here or in LRA_DATA' if folder else ''}")

    def together(self, *layouts: dict[str, str]) -> dict[str, Path]:
        """Return {key: path} for the first layout {key: name} whose files are all below the data folder, else {}.

        Raises:
            UserError: some files of a layout exist, but not all.
        """
        folder = self.data_config.data_dir if self.data_config else None
        if folder is None:
            return {}
        for layout in layouts:
            paths = {key: folder / name for key, name in layout.items()}
            missing = [path for path in paths.values() if not path.exists()]
            if not missing:
                return paths
            if len(missing) < len(paths):
                raise UserError(f"{missing[0]}: no such file; expected all of {', '.join(layout.values())}")
        return {}


@dataclass(kw_only=True)
class Generated(TaskBuilder):
    """Base class of builders of generated tasks; the fields of the dataclass are the task's options.

    Args:
        train_size: number of training examples.
        val_size: number of validation examples.
        test_size: number of test examples.
        seed: seed of the data.
    """

    # names of the options that `example_options` leaves out
    BESIDE: ClassVar[set[str]] = {"train_size", "val_size", "test_size", "seed", "causal"}

    train_size: PositiveInt
    val_size: PositiveInt
    test_size: PositiveInt
    seed: NonNegativeInt

    @property
    def sizes(self) -> dict[str, int]:
        """Number of examples of each split."""
        return {split: getattr(self, f"{split}_size") for split in SPLITS}

    @property
    def example_options(self) -> dict[str, Any]:
        """Options that, together with the seed, determine the examples: all but sizes, seed and `causal`."""
        return {name: value for name, value in self.options.items() if name not in self.BESIDE}

    def differences(self, published: dict[str, Any], keys: Iterable[str]) -> dict[str, bool]:
        """Return {note for the task's name: True if it differs from `published`} for options `keys` and for sizes.

        `published` maps options to values, and `sizes` to a tuple of the sizes of the splits.
        """
        notes = {}
        for key in keys:
            value = getattr(self, key)
            text = "-".join(map(str, value)) if isinstance(value, list) else str(value).removesuffix(".0")  # 1.0 as 1
            notes[f"{key.replace('_', ' ')} {text}"] = published.get(key, ...) != value
        sizes = tuple(self.sizes.values())
        notes[f"{'/'.join(map(str, sizes))} examples"] = published.get("sizes", ...) != sizes
        return notes


def in_order(make: Callable[..., Any], calls: Iterable[tuple], workers: int) -> Iterator[Any]:
    """Yield `make(*arguments)` for each item `arguments` of `calls`, in order, for any number of worker processes.

    The first call, or every call if `workers` is 1, runs in this process, so that small data start no workers. At most
    `2 * workers` results are queued.

    Raises:
        UserError: a worker process was killed.
    """
    # Use loky: processes that the standard library spawns would run the caller's script again, and then wait for the
    # task's lock, which this process holds. `joblib.Parallel` would run ahead of the caller without a bound.
    from joblib.externals.loky import ProcessPoolExecutor

    calls = iter(calls)
    for arguments in calls if workers == 1 else islice(calls, 1):
        yield make(*arguments)
    pool, window = ProcessPoolExecutor(workers), deque[Future]()
    try:
        for arguments in calls:
            window.append(pool.submit(make, *arguments))
            if len(window) > 2 * workers:
                yield window.popleft().result()
        while window:
            yield window.popleft().result()
    except BrokenProcessPool:
        raise UserError(f"a worker process was killed (workers={workers}); is the memory full?") from None
    finally:
        for future in window:
            future.cancel()
        pool.shutdown()
