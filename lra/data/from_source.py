"""How tasks of raw data are made: the data are found, the facts follow, and the task is prepared with these facts."""

from abc import abstractmethod
from pathlib import Path
from typing import Any

from lra.data import Place, Task, TaskBuilder, TaskSpec, fingerprints
from lra.data.cache import Identity, Splits, described, prepared
from lra.data.fingerprints import Stamp
from lra.data.sources import Content, Source
from lra.data.writer import Writer


class FromSource(TaskBuilder):
    """A task that is made of one source. Its name follows from the options and the source alone, by `facts_of`."""

    validates_on_test = False

    @abstractmethod
    def find(self, place: Place) -> Source:
        """The source of the data, which are not read yet."""

    @abstractmethod
    def facts_of(self, content: Content) -> TaskSpec:
        """The facts for data of this content; an empty one is that of the published data."""

    @abstractmethod
    def identity(self, place: Place, stamps: list[Stamp]) -> Identity:
        """Everything that decides the content of the cache, with the stamps of the source's files."""

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
