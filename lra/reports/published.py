"""Read published numbers, and the names and order of table rows and columns, from YAML files."""

import re
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, FiniteFloat

from lra.core.errors import UserError, printable
from lra.core.files import read_yaml
from lra.core.paths import conf_dir
from lra.records.record import TableName, readable

NAME = "published.yaml"

Text = Annotated[str, Field(min_length=1), AfterValidator(printable)]
Numbers = dict[Text, dict[Text, FiniteFloat]]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class PublishedSystem(_Strict):
    """A table row."""

    name: Text
    option: Text | None = None  # value of `system=` that trains this system
    attention: Text | None = None  # with `variant`, the options of the runs in this row; None if lra cannot train it
    variant: Text | None = None
    complexity: Annotated[str, AfterValidator(printable)] = ""


class PublishedTable(_Strict):
    """A published table."""

    name: Text
    reference: Text
    numbers: Text  # describes the numbers in footnotes, such as `best of 5 seeds`
    protocol: Text | None = None  # our protocol that has the same rules
    best: Numbers  # the number that the publication prints, by system and task
    mean: Numbers = {}  # mean over seeds, if the publication gives one
    # settings of the published runs, by task and key of our configuration
    settings: dict[Text, dict[Annotated[str, Field(pattern=r"^\w+\.\w+$")], int | float | Text]] = {}

    def number(self, system: str, task: str, which: str = "best") -> float | None:
        return getattr(self, which).get(system, {}).get(task)


class _File(_Strict):
    tasks: dict[Text, Text] = {}
    systems: list[PublishedSystem] = []
    sources: list[PublishedTable] = []
    baselines: Numbers = {}


class Published:
    """Published tables, and names of tasks and systems, from lra and from the `published.yaml` of a results folder.

    Args:
        folder: a results folder, with or without a `published.yaml`.

    Raises:
        UserError: if a file is damaged, or two systems or two tables have the same name.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.tasks: dict[str, str] = {}
        self.systems: dict[str, PublishedSystem] = {}
        self.sources: list[PublishedTable] = []
        self.baselines: dict[str, dict[str, float]] = {}
        own = [folder / NAME] if folder and (folder / NAME).exists() else []
        # systems are in the order of these files, which is the order of table rows
        for path in (conf_dir() / "table1.yaml", Path(__file__).with_name(NAME), conf_dir() / "systems.yaml", *own):
            with readable(path):
                file = _File.model_validate(read_yaml(path) or {})
            self.tasks |= file.tasks  # a user's file may replace titles, but neither systems nor sources
            self.baselines |= file.baselines
            for system in file.systems:
                if system.name in self.systems:
                    raise UserError(f"{path}: system {system.name!r} exists already; give it another name")
                self.systems[system.name] = system
            for source in file.sources:
                if source.name in (table.name for table in self.sources):
                    raise UserError(f"{path}: source {source.name!r} exists already; give it another name")
                self.sources.append(source)
        self._rows = {(row.attention, row.variant): row for row in self.systems.values() if row.attention}

    def add(self, attention: str, variant: str, row: TableName | dict[str, str] | None) -> None:
        """Add a table row for a user's attention, unless a row has the same name or the same attention and variant."""
        if row is None or (attention, variant) in self._rows:
            return
        row = row if isinstance(row, TableName) else TableName(**row)
        # a class has one name, but may be trained in several variants
        name = row.name if variant == "transformer" else f"{row.name}, {variant}"
        if name not in self.systems:  # a user's class must not take the name of a published system
            system = PublishedSystem(name=name, attention=attention, variant=variant, complexity=row.complexity)
            self.systems[name] = self._rows[attention, variant] = system

    def name(self, attention: str, variant: str, settings: str) -> str:
        """Return a table row's name: the system's or, if unknown, `ATTENTION, VARIANT`; settings follow in brackets."""
        row = self._rows.get((attention, variant))
        name = row.name if row else f"{attention}, {variant}"
        return f"{name} ({settings})" if settings else name

    def complexity(self, attention: str) -> str:
        """Return the complexity of an attention, which is the same in all variants; empty if it is unknown."""
        return next((row.complexity for (name, _), row in self._rows.items() if name == attention), "")

    def order(self, attention: str, variant: str, settings: str) -> tuple:
        """Return a sort key for table rows: published systems in the order of the files, then others by name."""
        key, known = (attention, variant), list(self._rows)
        row = known.index(key) if key in known else len(known)
        # parts with an odd index are compared as numbers, so that 9 comes before 10
        parts = re.split(r"(\d+(?:\.\d+)?)", settings)
        natural = tuple(float(part) if index % 2 else part for index, part in enumerate(parts))
        return row, *key, natural, settings

    def task_order(self, task: str) -> tuple:
        """Return a sort key: the index in `tasks` of the task or of its name without options; other tasks are last."""
        tasks = list(self.tasks)
        name = task if task in tasks else task.partition(" (")[0]
        return (tasks.index(name) if name in tasks else len(tasks), task)

    def source(self, task: str) -> PublishedTable | None:
        """Return the first published table with numbers for a task; None if there is none."""
        return next((source for source in self.sources if any(task in each for each in source.best.values())), None)
