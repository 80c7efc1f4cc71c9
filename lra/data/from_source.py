"""Base class of tasks made from raw data: find the data, derive the facts, prepare the task with these facts."""

from abc import abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, NoReturn

from lra.core.errors import UserError
from lra.core.files import digest
from lra.data import Place, Task, TaskBuilder, TaskSpec, fingerprints, hub, readers
from lra.data.cache import Identity, Splits, described, prepared
from lra.data.fingerprints import Stamp
from lra.data.writer import Writer

GENERATED = "generated"  # name of a source that needs no raw data
Content = dict[str, Any]
"""Facts about the data that decide a task's name besides its options, by the keys of a prepared task's `source`."""


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
        return sum(fingerprints.counted(place, path, count) for path in paths)

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
    path = Path(name).expanduser()
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
        """Return all that decides the content of the cache, with the stamps of the raw files."""
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
        return digest(builder.identity(place, fingerprints.stamps(place, source.paths, source.inside)))

    def build(self, place: Place) -> Task:
        builder = self.at(place)
        source = builder.find(place)
        stamps = fingerprints.stamps(place, source.paths, source.inside)

        def make(writers: dict[str, Writer], staging: Path) -> dict[str, Any]:
            more = builder.fill(place, source, writers, staging)
            digests = fingerprints.confirmed(place, source.paths, stamps, source.inside)
            return {"from": source.name, **({"sha256": digests} if digests else {}), **more}

        return prepared(
            place,
            builder.facts,
            builder.identity(place, stamps),
            make,
            builder.baselines,
            validates_on_test=self.validates_on_test,
        )
