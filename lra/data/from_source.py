"""Tasks made from raw data or by a generator: find the data, derive the facts, prepare the task with these facts.

SHA-256 and row counts of raw files are stored in the cache folder, so that a second start reads no data; a stored value
holds as long as path, inode, size and times of its files are unchanged.
"""

from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass, field, fields
from functools import partial
from itertools import chain, islice
from multiprocessing import get_all_start_methods, get_context, get_start_method, set_start_method
from pathlib import Path
from typing import Any, ClassVar, NoReturn

from pydantic import NonNegativeInt, PositiveInt

from lra.core.errors import UserError
from lra.core.files import digest, read_json, sha256, write_json
from lra.core.paths import expanded
from lra.data import Place, Task, TaskBuilder, TaskSpec, hub, readers
from lra.data.cache import SPLITS, Identity, Splits, described, prepared
from lra.data.writer import Writer

GENERATED = "generated"  # name of a source that needs no raw data
STORED = "raw"  # folder of stored digests and counts, beside those of the tasks
GUARD = 'in a script, calls of lra stand below `if __name__ == "__main__":`'

Content = dict[str, Any]
"""Facts about the data that decide a task's name besides its options, by the keys of a prepared task's `source`."""

Stamp = dict[str, str]
"""Name and SHA-256 of a file or folder of raw data, as the identity of a cache holds them."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """Raw data at hand: files, a folder, a data set of the hub, or a generator.

    Args:
        name: origin of the data, for the record.
        read: returns all data in the form that the task's `fill` expects.
        paths: the files; empty for generated data, the hub, and missing data. A folder stands for its files that match
            one of the patterns `inside`.
        inside: patterns relative to a folder.
        content: returns the facts that decide the name, such as the number of rows, without parsing the data.
    """

    name: str
    read: Callable[[], Any]
    paths: list[Path] = field(default_factory=list)
    inside: tuple[str, ...] = ()
    content: Callable[[], Content] = dict

    def files(self, path: Path) -> dict[str, Path]:
        """Return the files that a path stands for, by name."""
        if not (self.inside and path.is_dir()):
            return {path.name: path}
        return {str(file.relative_to(path)): file for pattern in self.inside for file in path.glob(pattern)}

    def state(self) -> list[str]:
        """Return a digest of the inodes, sizes and times of the files of each path."""
        return [_state(self.files(path)) for path in self.paths]

    def stamps(self, place: Place) -> list[Stamp]:
        """Return the stamp of each path; the SHA-256 of a folder is that of the names and SHA-256 of its files.

        Raises:
            UserError: a path is not a regular file.
        """
        return [{"name": path.name, "sha256": self._sha256(place, path)} for path in self.paths]

    def _sha256(self, place: Place, path: Path) -> str:
        files = self.files(path)
        if files == {path.name: path}:
            return _stored(place, path, files, "sha256", lambda: sha256(path))
        return _stored(
            place, path, files, "sha256", lambda: digest({name: sha256(file) for name, file in files.items()})
        )


def counted(place: Place, path: Path, count: Callable[[Path], Any], what: str = "rows") -> Any:
    """Return the JSON value `count(path)`, stored under the name `what` until the file changes."""
    return _stored(place, path, {path.name: path}, what, lambda: count(path))


def _stored(place: Place, path: Path, files: dict[str, Path], what: str, compute: Callable[[], Any]) -> Any:
    """Return the stored value of unchanged files, or compute and store it."""
    state = _state(files)
    memo = place.cache / STORED / f"{digest([str(path.resolve()), what])[:16]}.stamp"
    with suppress(OSError, ValueError, KeyError, TypeError):
        entry = read_json(memo)
        if entry["state"] == state and not place.verify:
            return entry["value"]
    value = compute()
    if _state(files) == state:
        with suppress(UserError):  # a cache folder that is read-only
            write_json(memo, {"state": state, "value": value})
    return value


def _state(files: dict[str, Path]) -> str:
    try:
        status = {str(file): file.stat() for file in files.values()}
    except OSError as error:
        raise UserError(f"{error.filename}: {error.strerror}") from None
    return digest({name: [s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns] for name, s in status.items()})


def of_splits(
    place: Place,
    name: str,
    files: dict[str, list[Path]],
    read: Callable[[], Any],
    *,
    beside: Iterable[Path] = (),
    count: Callable[[Path], int] = readers.count,
) -> Source:
    """Return a source of files by split, whose rows are counted; the files `beside` them belong to all splits."""

    def rows(paths: list[Path]) -> int:
        return sum(counted(place, path, count) for path in paths)

    return Source(
        name=name,
        paths=[*beside, *chain(*files.values())],
        read=read,
        content=lambda: {"rows": {split: rows(paths) for split, paths in files.items()}},
    )


def missing_source(place: Place, what: str, *, size: str, wants: str, reason: str) -> Source:
    """Return a source whose `read` raises `hub.missing_data_error`."""

    def read() -> NoReturn:
        raise hub.missing_data_error(place, what, size=size, wants=wants, reason=reason)

    return Source(name="", read=read)


def first(place: Place, *patterns: str) -> Path | None:
    """Return the first path below the data folder that matches one of the patterns, or None."""
    if place.data_dir is None:
        return None
    return next((path for pattern in patterns for path in sorted(place.data_dir.glob(pattern))), None)


def located(place: Place, name: str, key: str) -> Path:
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


def together(place: Place, layouts: Iterable[tuple[str, ...]]) -> list[list[Path]]:
    """Return the files of the first layout found below the data folder, by pattern; an empty list if there is none.

    Raises:
        UserError: only a part of a layout is there.
    """
    for layout in layouts if place.data_dir else ():
        matches = [sorted(place.data_dir.glob(pattern)) for pattern in layout]
        if all(matches):
            return matches
        if any(matches):
            missing = place.data_dir / layout[matches.index([])]
            [beside, *_] = filter(None, matches)
            raise UserError(f"{missing}: no such file; it belongs beside {beside[0].name}")
    return []


class FromSource(TaskBuilder):
    """Builder of a task that is made from one source.

    A subclass defines `find`, `facts_of`, `fill` and `baselines`; `name` is that of its folder in the cache. `BESIDE`
    lists the options that do not change what an example is.
    """

    name: str
    validates_on_test = False
    BESIDE: ClassVar[frozenset[str]] = frozenset()

    @abstractmethod
    def find(self, place: Place) -> Source:
        """Return the source of the data without reading it."""

    @abstractmethod
    def facts_of(self, content: Content) -> TaskSpec:
        """Return the facts for data of this content; for an empty one those of the published data."""

    @property
    def options(self) -> dict[str, Any]:
        """Options that decide an example: the fields of a dataclass without those in `BESIDE`."""
        names = [field.name for field in fields(self) if field.init and field.name not in self.BESIDE]
        return {name: getattr(self, name) for name in names}

    def identity(self, place: Place, stamps: list[Stamp]) -> Identity:
        """Return everything that determines the content of the cache, with the stamps of the raw files."""
        return {"task": self.name, "version": self.facts_of({}).version, **self.options, "raw": stamps or None}

    @abstractmethod
    def fill(self, place: Place, source: Source, writers: dict[str, Writer], staging: Path) -> dict[str, Any]:
        """Write all examples and return further facts of the source for the record."""

    @abstractmethod
    def baselines(self, splits: Splits) -> dict[str, float]:
        """Return the test scores of baselines by name."""

    @property
    def facts(self) -> TaskSpec:
        if self.place is None:
            return self.facts_of({})
        source = self.find(self.place)
        if source.paths:
            return self.facts_of(source.content())
        return self.facts_of(described(self.place, self.identity(self.place, [])) or {})

    def locate(self, place: Place) -> str:
        builder = self.at(place)
        source = builder.find(place)
        prepared_or_here = source.paths or source.name == GENERATED or described(place, builder.identity(place, []))
        if not prepared_or_here and not (source.name and hub.is_reachable()):
            next(iter(source.read()), None)  # raises
        return digest(builder.identity(place, source.stamps(place)))

    def build(self, place: Place) -> Task:
        builder = self.at(place)
        source = builder.find(place)
        state, stamps = source.state(), source.stamps(place)

        def make(writers: dict[str, Writer], staging: Path) -> dict[str, Any]:
            more = builder.fill(place, source, writers, staging)
            for path, before, now in zip(source.paths, state, source.state(), strict=True):
                if before != now:
                    raise UserError(f"{path}: changed while it was read; prepare again")
            digests = {stamp["name"]: stamp["sha256"] for stamp in stamps}
            return {"from": source.name, **({"sha256": digests} if digests else {}), **more}

        return prepared(
            place,
            builder.facts,
            builder.identity(place, stamps),
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
    def generated(self, place: Place) -> Any:
        """Return all examples, in the form that `fill` expects."""

    @property
    def sizes(self) -> dict[str, int]:
        return {split: getattr(self, f"{split}_size") for split in SPLITS}

    def identity(self, place: Place, stamps: list[Stamp]) -> Identity:
        version = self.facts_of({}).version
        return {"task": self.name, "version": version, "sizes": self.sizes, **self.options, "seed": self.seed}

    def find(self, place: Place) -> Source:
        """Return the generator as a source."""
        return Source(name=GENERATED, read=partial(self.generated, place))


def in_order(make: Callable[..., Any], calls: Iterable[tuple], workers: int) -> Iterator[Any]:
    """Yield `make(*arguments)` of each call in order, for any number of processes.

    The first call is made in this process, which is all that small data need. At most two results per worker wait.

    Raises:
        UserError: a worker process ended early.
    """
    calls = iter(calls)
    for arguments in calls if workers == 1 else islice(calls, 1):
        yield make(*arguments)
    if get_start_method() not in get_all_start_methods():
        set_start_method("spawn", force=True)  # workers of joblib have "loky", which a spawned process does not know
    pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn"))
    try:
        window: deque = deque()
        for arguments in calls:
            window.append(pool.submit(make, *arguments))
            if len(window) > 2 * workers:
                yield window.popleft().result()
        while window:
            yield window.popleft().result()
    except BrokenProcessPool:
        raise UserError(f"a process that makes examples ended before its work (workers={workers}): {GUARD}") from None
    finally:
        pool.shutdown(cancel_futures=True)
