"""Published numbers, and the names and the order that the paper gives to rows and columns: `published.yaml`."""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, FiniteFloat, ValidationError

from lra.core.errors import UserError, printable
from lra.core.files import read_regular
from lra.core.paths import systems_file, table1_file
from lra.report.read.records import CellKey
from lra.report.read.schema import fault

NAME = "published.yaml"
BYTES = 2**24  # the most that a file may have
OWN = Path(__file__).parent.with_name(NAME)

Text = Annotated[str, Field(min_length=1), AfterValidator(printable)]
Numbers = dict[Text, dict[Text, FiniteFloat]]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class PublishedSystem(_Strict):
    """A row: its name in tables, and which of our runs stand there, if any do; `system=option` chooses them.

    `local`: it reads neighbours alone, so that what it reaches needs no long range.
    """

    name: Text
    option: Text | None = None
    attention: Text | None = None
    variant: Text | None = None
    complexity: Annotated[str, AfterValidator(printable)] = ""
    local: bool = False


class PublishedTable(_Strict):
    """A published table: `best` by system and task is the number that it prints; `mean` where it gives one, too.

    `settings`: by task, with what the numbers were obtained; keys and values as in our configurations. `protocol`: ours
    that follows its rules, if one does.
    """

    name: Text
    reference: Text
    numbers: Text
    protocol: Text | None = None
    best: Numbers
    mean: Numbers = {}
    settings: dict[Text, dict[Annotated[str, Field(pattern=r"^\w+\.\w+$")], int | float | Text]] = {}

    def number(self, system: str, task: str, which: str = "best") -> float | None:
        return getattr(self, which).get(system, {}).get(task)

    def covers(self, task: str) -> bool:
        return any(task in numbers for numbers in self.best.values())


class _File(_Strict):
    tasks: dict[Text, Text] = {}
    arena: list[Text] = []
    systems: list[PublishedSystem] = []
    sources: list[PublishedTable] = []


class Published:
    """The published tables that come with this package, and those of further files."""

    def __init__(self, *files: Path) -> None:
        self.tasks: dict[str, str] = {}
        self.arena: list[str] = []
        self._systems: dict[str, PublishedSystem] = {}
        self.sources: list[PublishedTable] = []
        for path in (table1_file(), OWN, systems_file(), *files):
            file = _read(path)
            self.tasks |= file.tasks
            self.arena += file.arena
            for system in file.systems:
                if system.name in self._systems:
                    raise UserError(f"{path}: system {system.name!r} is known already; give it another name")
                self._systems[system.name] = system
            for source in file.sources:
                if source.name in (table.name for table in self.sources):
                    raise UserError(f"{path}: source {source.name!r} is known already; give it another name")
                self.sources.append(source)
        self._rows = {(row.attention, row.variant): row for row in self._systems.values() if row.attention}

    def add(self, key: CellKey, row: dict[str, str] | None) -> None:
        """A row as a record has it, of an attention that no file names; a name that is taken stays with who has it."""
        place = (key.attention, key.variant)
        if row is None or place in self._rows:
            return
        name = row["name"] if key.variant == "transformer" else f"{row['name']}, {key.variant}"
        if name not in self._systems:
            fields = {"name": name, "attention": key.attention, "variant": key.variant}
            self._systems[name] = self._rows[place] = PublishedSystem(**fields, complexity=row["complexity"])

    def rows(self) -> Iterator[PublishedSystem]:
        """All systems, in order."""
        yield from self._systems.values()

    def name(self, key: CellKey) -> str:
        row = self._rows.get((key.attention, key.variant))
        name = row.name if row else f"{key.attention}, {key.variant}"
        return f"{name} ({key.settings})" if key.settings else name

    def is_local(self, key: CellKey) -> bool:
        row = self._rows.get((key.attention, key.variant))
        return row is not None and row.local

    def complexity(self, key: CellKey) -> str:
        """The complexity of the attention; the variants do not change it."""
        rows = [row for (attention, _), row in self._rows.items() if attention == key.attention]
        return rows[0].complexity if rows else ""

    def order(self, key: CellKey) -> tuple:
        """Sorts rows as the paper does, others after them; no two keys have the same place."""
        place, places = (key.attention, key.variant), list(self._rows)
        number = places.index(place) if place in places else len(places)
        return number, *place, _natural(key.settings), key.settings

    def title(self, task: str) -> str:
        return self.tasks.get(task, task)

    def task_order(self, task: str) -> tuple:
        """Sorts columns as the paper does, others after them; derived data beside those they derive from."""
        tasks = list(self.tasks)
        name = task if task in tasks else task.split(" (")[0]
        return (tasks.index(name) if name in tasks else len(tasks), task)

    def source(self, task: str) -> PublishedTable | None:
        """The first source that has numbers for this task: the one that Table 1 is compared with."""
        return next((source for source in self.sources if source.covers(task)), None)

    def value(self, key: CellKey, which: str) -> float | None:
        """`which`: best or mean."""
        source = self.source(key.task)
        return source.number(self.name(key), key.task, which) if source else None

    def systems(self, task: str) -> Iterator[str]:
        """The names of all systems that some source has a number for, in order."""
        named = [name for source in self.sources for name, numbers in source.best.items() if task in numbers]
        yield from (name for name in self._systems if name in named)
        yield from dict.fromkeys(name for name in named if name not in self._systems)


def files(folder: Path, more: Iterable[Path]) -> list[Path]:
    """A user's own files of published numbers: that of the results folder, where there is one, and `more`."""
    of_folder = folder / NAME
    return [*([of_folder] if of_folder.exists() else []), *more]


def _natural(text: str) -> tuple[str | float, ...]:
    """Sorts texts with numbers in them by the size of these."""
    parts = re.split(r"(\d+(?:\.\d+)?)", text)
    return tuple(float(part) if place % 2 else part for place, part in enumerate(parts))


def _read(path: Path) -> _File:
    unreadable = f"{path}: not a readable file of published numbers"
    try:
        return _File.model_validate(yaml.safe_load(read_regular(path, BYTES, follow=True).decode()) or {})
    except ValidationError as error:
        raise UserError(f"{path}: {fault(error)}") from None
    except RecursionError:
        raise UserError(f"{unreadable}: it is nested too deep") from None
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UserError(f"{unreadable}: {' '.join(str(error).split())}") from None
