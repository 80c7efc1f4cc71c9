"""Tasks made from raw data or by a generator: find the data, derive the specification, prepare the task.

SHA-256 and row counts of raw files are stored in the cache folder, so that a second start reads no data.
"""

import os
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, fields
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, NoReturn

from pydantic import NonNegativeInt, PositiveInt

from lra.core.errors import UserError
from lra.core.files import digest, sha256
from lra.core.paths import expanded
from lra.datasets import hub, readers
from lra.datasets.cache import SPLITS, Identity, Splits, Writer, is_prepared, prepared, stored
from lra.datasets.task import DataConfig, Task, TaskBuilder, TaskSpec

GENERATED = "generated"  # name of a source that needs no raw data
LISTED = 10  # files whose SHA-256 a record lists

Content = dict[str, Any]
"""Facts about the data that decide a task's name besides its options."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """Raw data at hand: files, a data set of the hub, or a generator.

    Args:
        name: origin of the data, for the record.
        read: returns all data in the form that the task's `fill` expects.
        files: the files; empty for generated data, the hub, and missing data.
        content: returns what decides the name, such as the number of rows, without parsing the data.
    """

    name: str
    read: Callable[[], Any]
    files: list[Path] = field(default_factory=list)
    content: Callable[[], Content] = dict

    def sha256(self, place: DataConfig) -> dict[str, str]:
        """Return the SHA-256 of each file by its path below the folder that they share."""
        if not self.files:
            return {}
        above = os.path.commonpath([path.absolute().parent for path in self.files])
        names = [os.path.relpath(path, above) for path in self.files]
        return stored(place, self.files, "sha256", lambda: dict(zip(names, map(sha256, self.files), strict=True)))


def counted(place: DataConfig, path: Path, count: Callable[[Path], int]) -> int:
    """Return the number of rows of a file by `count`, stored until the file changes."""
    return stored(place, [path], "rows", lambda: count(path))


def of_splits(
    place: DataConfig,
    name: str,
    files: dict[str, Path],
    read: Callable[[Path], Any],
    *,
    shared: Iterable[Path] = (),
    count: Callable[[Path], int] = readers.count,
) -> Source:
    """Return a source of a file for each split, whose rows are counted; the `shared` files belong to all.

    Its `read` returns what `read` returns for each file, by split.
    """
    return Source(
        name=name,
        files=[*shared, *files.values()],
        read=lambda: {split: read(path) for split, path in files.items()},
        content=lambda: {"rows": {split: counted(place, path, count) for split, path in files.items()}},
    )


def missing_source(place: DataConfig, what: str, *, wants: str, reason: str) -> Source:
    """Return a source whose `read` raises `hub.missing_data_error`."""

    def read() -> NoReturn:
        raise hub.missing_data_error(place, what, wants=wants, reason=reason)

    return Source(name="", read=read)


def first(place: DataConfig, *names: str) -> Path | None:
    """Return the first of these paths that exists below the data folder, or None."""
    paths = [place.data_dir / name for name in names] if place.data_dir else []
    return next((path for path in paths if path.exists()), None)


def located(place: DataConfig, name: str, key: str) -> Path:
    """Return a path as it was typed, or else below the data folder.

    Raises:
        UserError: there is none; the message names the option `key`.
    """
    path = expanded(name, f"task.{key}")
    if path.exists():
        return path
    if place.data_dir is not None and (place.data_dir / path).exists():
        return place.data_dir / path
    raise UserError(f"task.{key}: {name}: no such file or folder{' here or in LRA_DATA' if place.data_dir else ''}")


def together(place: DataConfig, *layouts: dict[str, str]) -> dict[str, Path]:
    """Return the files of the first layout found below the data folder, by its keys; empty if there is none.

    Raises:
        UserError: only a part of a layout is there.
    """
    folder = place.data_dir
    if folder is None:
        return {}
    for layout in layouts:
        paths = {key: folder / name for key, name in layout.items()}
        missing = [path for path in paths.values() if not path.exists()]
        if not missing:
            return paths
        if len(missing) < len(paths):
            raise UserError(f"{missing[0]}: no such file; it belongs to {', '.join(layout.values())}")
    return {}


class FromSource(TaskBuilder):
    """Builder of a task that is made from one source.

    A subclass defines `find`, `spec_of`, `fill` and `baselines`; `name` is that of its folder in the cache. `BESIDE`
    lists the options that do not change what an example is.
    """

    name: str
    validates_on_test = False
    BESIDE: ClassVar[frozenset[str]] = frozenset()

    @abstractmethod
    def find(self, place: DataConfig) -> Source:
        """Return the source of the data without reading it."""

    @abstractmethod
    def spec_of(self, content: Content) -> TaskSpec:
        """Return the specification for data of this content; for an empty one that of the published data."""

    @property
    def options(self) -> dict[str, Any]:
        """Options that decide an example: the fields of a dataclass without those in `BESIDE`."""
        names = [field.name for field in fields(self) if field.init and field.name not in self.BESIDE]  # type: ignore[arg-type]
        return {name: getattr(self, name) for name in names}

    def identity(self, place: DataConfig, raw: dict[str, str]) -> Identity:
        """Return everything that determines the content of the cache, with the SHA-256 of the raw files."""
        return {"task": self.name, "version": self.spec_of({}).version, **self.options, "raw": raw}

    @abstractmethod
    def fill(self, place: DataConfig, source: Source, writers: dict[str, Writer], staging: Path) -> dict[str, Any]:
        """Write all examples and return more about the source for the record."""

    @abstractmethod
    def baselines(self, splits: Splits) -> dict[str, float]:
        """Return the test scores of baselines by name."""

    @property
    def spec(self) -> TaskSpec:
        return self.spec_of({} if self.place is None else self.find(self.place).content())

    def locate(self, place: DataConfig) -> str:
        builder = self.at(place)
        source = builder.find(place)
        identity = builder.identity(place, source.sha256(place))
        at_hand = source.files or source.name == GENERATED or is_prepared(place, identity)
        if not at_hand and not (source.name and hub.is_reachable()):
            source.read()  # raises
        return digest(identity)

    def build(self, place: DataConfig) -> Task:
        builder = self.at(place)
        source = builder.find(place)
        raw = source.sha256(place)

        def make(writers: dict[str, Writer], staging: Path) -> dict[str, Any]:
            more = builder.fill(place, source, writers, staging)
            listed = raw if len(raw) <= LISTED else {f"{len(raw):,} files": digest(raw)}
            return {"from": source.name, **({"sha256": listed} if raw else {}), **more}

        return prepared(
            place,
            builder.spec,
            builder.identity(place, raw),
            make,
            builder.baselines,
            validates_on_test=self.validates_on_test,
        )


@dataclass(kw_only=True)
class Generated(FromSource):
    """A generated task; the fields of the dataclass are its options.

    Args:
        train_size: examples of train.
        val_size: examples of val.
        test_size: examples of test.
        seed: of the data.
    """

    BESIDE = frozenset({"train_size", "val_size", "test_size", "seed", "causal"})

    train_size: PositiveInt
    val_size: PositiveInt
    test_size: PositiveInt
    seed: NonNegativeInt

    @abstractmethod
    def generated(self, place: DataConfig) -> Any:
        """Return all examples, in the form that `fill` expects."""

    @property
    def sizes(self) -> dict[str, int]:
        return {split: getattr(self, f"{split}_size") for split in SPLITS}

    def identity(self, place: DataConfig, raw: dict[str, str]) -> Identity:
        version = self.spec_of({}).version
        return {"task": self.name, "version": version, "sizes": self.sizes, **self.options, "seed": self.seed}

    def find(self, place: DataConfig) -> Source:
        """Return the generator as a source."""
        return Source(name=GENERATED, read=lambda: self.generated(place))


def in_order(make: Callable[..., Any], calls: Iterable[tuple], workers: int) -> Iterator[Any]:
    """Yield `make(*arguments)` of each call in order, for any number of processes.

    The first call is made in this process, which is all that small data need. At most two results per worker wait.

    Raises:
        UserError: a worker process ended early.
    """
    # Spawned processes of the standard library would run the caller's script once more, and wait for the lock of the
    # task that this process holds.
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
        raise UserError(f"a process that makes examples was killed (workers={workers}); is the memory full?") from None
    finally:
        for future in window:
            future.cancel()
        pool.shutdown()
