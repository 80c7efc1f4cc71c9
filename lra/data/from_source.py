"""How tasks of raw data are made: the data are found, the facts follow, and the task is prepared with these facts."""

from abc import abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, NoReturn

from lra.core.errors import UserError
from lra.data import Place, Task, TaskBuilder, TaskSpec, fingerprints, hub, readers
from lra.data.cache import Identity, Splits, described, prepared
from lra.data.fingerprints import Stamp
from lra.data.writer import Writer

Content = dict[str, Any]
"""What the name of a task depends on besides its options, under the keys that a prepared task's `source` has."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """Raw data that were found: published files, a layout of the hub, files of a folder, or none.

    `name` says where the data come from. `paths` are the files; a folder stands for its files that match one of the
    patterns `inside`. There are none where data are generated, on the hub or absent. `read` gives all of the data,
    in the form that the task expects. `content` says what is in the files; it counts rows but does not parse them, and
    published data, which are complete or refused, need no counting.
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
    """A source of files of each split, whose rows are counted; those `beside` them belong to all splits."""

    def counted(paths: list[Path]) -> int:
        return sum(fingerprints.counted(place, path, count) for path in paths)

    return Source(
        name=name,
        paths=[*beside, *chain(*files.values())],
        read=read,
        content=lambda: {"rows": {split: counted(paths) for split, paths in files.items()}},
    )


def missing_source(place: Place, what: str, *, size: str, wants: str, reason: str) -> Source:
    """Data that are not at hand and that nobody could fetch: whoever reads them is told what is wanted."""

    def read() -> NoReturn:
        raise hub.missing_data_error(place, what, size=size, wants=wants, reason=reason)

    return Source(name="", read=read)


def first(place: Place, *patterns: str) -> Path | None:
    """The first path below the data folder that one of these patterns matches; None where none does."""
    if place.data_dir is None:
        return None
    return next((path for pattern in patterns for path in sorted(place.data_dir.glob(pattern))), None)


def together(place: Place, layouts: Iterable[tuple[str, ...]]) -> list[list[Path]]:
    """The files of the first of the layouts that is there, for each of its patterns; none where no layout is.

    Raises UserError where only a part of a layout is there.
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
    """A task that is made of one source. Its name follows from the options and the source alone, by `facts_of`.

    `name`: of its folder in the cache, unless `identity` says another. `BESIDE`: the options that do not decide what an
    example is.
    """

    name: str
    validates_on_test = False
    BESIDE: ClassVar[frozenset[str]] = frozenset()

    @abstractmethod
    def find(self, place: Place) -> Source:
        """The source of the data, which are not read yet."""

    @abstractmethod
    def facts_of(self, content: Content) -> TaskSpec:
        """The facts for data of this content; an empty one is that of the published data."""

    @property
    def options(self) -> dict[str, Any]:
        """What decides an example, of a task whose options are fields of a dataclass."""
        names = [field.name for field in fields(self) if field.init and field.name not in self.BESIDE]
        return {name: getattr(self, name) for name in names}

    def identity(self, place: Place, stamps: list[Stamp]) -> Identity:
        """Everything that decides the content of the cache, with the stamps of the source's files."""
        return {"task": self.name, "version": self.facts_of({}).version, **self.options, "raw": stamps or None}

    @abstractmethod
    def fill(self, place: Place, source: Source, writers: dict[str, Writer], staging: Path) -> dict[str, Any]:
        """Read the source and write all examples; what is to be said of the data besides name and SHA-256."""

    @abstractmethod
    def baselines(self, splits: Splits) -> dict[str, float]:
        """What a model must beat, by name."""

    @property
    def facts(self) -> TaskSpec:
        if self.place is None:
            return self.facts_of({})
        source = self.find(self.place)
        if source.paths:
            return self.facts_of(source.content())
        return self.facts_of(described(self.place, self.identity(self.place, [])) or {})

    def build(self, place: Place) -> Task:
        here = self.at(place)
        source = here.find(place)
        stamps = fingerprints.stamps(place, source.paths, source.inside)

        def make(writers: dict[str, Writer], staging: Path) -> dict[str, Any]:
            more = here.fill(place, source, writers, staging)
            digests = fingerprints.confirmed(place, source.paths, stamps, source.inside)
            return {"from": source.name, **({"sha256": digests} if digests else {}), **more}

        return prepared(
            place,
            here.facts,
            here.identity(place, stamps),
            make,
            here.baselines,
            validates_on_test=self.validates_on_test,
        )
