"""Reading a results folder: the records, what the sweeps declared, and the cells they make together."""

import io
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from lra import record
from lra.errors import UserError, printable
from lra.report import schema

Record = dict[str, Any]
Tell = Callable[[str], object]
"""Takes one line on what cannot be read, and is left out."""

SWEEP = "sweep.json"
PREDICTIONS = "predictions.npy"
COSTS = "costs.npy"
SAMPLE = "sample.txt"
BESIDE = (record.METRICS, PREDICTIONS, COSTS, SAMPLE)  # what a report reads beside a record
LARGEST = 1e15  # a perplexity beyond is taken for infinite


@dataclass(frozen=True, order=True)
class Key:
    """Everything that a table shows of a cell; whatever is not here must not vary inside a cell."""

    protocol: str
    selection: str
    task: str
    attention: str
    variant: str
    settings: str

    @property
    def column(self) -> tuple[str, str, str]:
        return self.protocol, self.selection, self.task


@dataclass
class Cell:
    """The runs of one cell. `declared`: the seeds that a sweep announced, or None where no sweep is known."""

    key: Key
    runs: dict[int, Record] = field(default_factory=dict)
    declared: set[int] | None = None
    metric: str = "accuracy"

    def scores(self) -> dict[int, float]:
        """Test accuracy in percent, or perplexity, by seed: of the finished runs, by the rule of `key.selection`."""
        return {
            seed: run["test"][self.key.selection][self.metric]
            for seed, run in sorted(self.runs.items())
            if self.status(seed) == "finished"
        }

    def seeds(self) -> list[int]:
        """Declared or seen."""
        return sorted({*self.runs, *(self.declared or ())})

    def status(self, seed: int) -> str:
        """The record's word; or `missing`, `without RULE` where it has no such result, `not finite` (a perplexity)."""
        if seed not in self.runs:
            return "missing"
        run = self.runs[seed]
        if run["status"] != "finished":
            return run["status"]
        if self.key.selection not in run["test"]:
            return f"without {self.key.selection}"
        score = run["test"][self.key.selection][self.metric]
        return "finished" if score is not None and score <= LARGEST else "not finite"

    @property
    def complete(self) -> bool:
        """All declared seeds are done."""
        return bool(self.declared) and len(self.scores()) == len(self.seeds())


def settings_text(settings: dict[str, Any]) -> str:
    return " ".join(f"{key}={value}" for key, value in sorted(settings.items()))


def refuse(fault: str) -> NoReturn:
    raise UserError(fault)


def load(folder: Path, selection: str | None = None, tell: Tell = refuse) -> list[Cell]:
    """The cells of all records below `folder`, each by its own selection rule or all by `selection`.

    `tell` hears of each record, sweep.json and file beside a record that is not what it should be; it is left out.
    Raises UserError where pooling the others would hide a difference.
    """
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder")
    runs = list(_runs(folder, selection, tell))
    declared = list(_declarations(folder, selection, tell))
    keys = _keys(runs, declared)
    cells: dict[Key, Cell] = {}
    for place, key, run in runs:
        key = replace(key, task=run["task"]) if _with_data(run) else replace(key, task=keys[place].task)
        cell = cells.setdefault(key, Cell(key, metric=run["metric"]))
        seed = run["seed"]
        if seed in cell.runs:
            raise UserError(
                f"{run['path']} and {cell.runs[seed]['path']} are both seed {seed} of the same cell; keep one of them"
            )
        cell.runs[seed] = run
    for place, _, seeds in declared:
        cell = cells.setdefault(keys[place], Cell(keys[place]))
        cell.declared = {*(cell.declared or ()), *seeds}
    if not cells:
        raise UserError(f"{folder}: no {record.NAME} below it that can be read; train something first")
    if selection and not any(selection in run.get("test", {}) for cell in cells.values() for run in cell.runs.values()):
        raise UserError(f"--selection {selection}: no record below {folder} has it; leave the option out")
    _refuse_hidden_differences(cells.values())
    return [cells[key] for key in sorted(cells)]


def _runs(folder: Path, selection: str | None, tell: Tell) -> Iterator[tuple[Path, Key, Record]]:
    """The folder of the cell, the key and the record of every run."""
    for path in sorted(folder.rglob(record.NAME)):
        try:
            run = _read(path)
        except ValueError as error:
            tell(str(error))
            continue
        run["path"] = path.relative_to(folder).as_posix()
        run["damaged"] = list(_damaged(path.parent, run, tell))
        yield path.parent.parent, _key(run, run["task"], selection), run


def _read(path: Path) -> Record:
    """Its names are printable; the configuration is as it was written. Raises ValueError."""
    run = record.read(path)
    try:
        schema.check(schema.Record, run)
    except ValueError as error:
        raise ValueError(f"{path}: not a record: {error}") from None
    return {name: value if name == "config" else schema.cleaned(value) for name, value in run.items()}


def _damaged(folder: Path, run: Record, tell: Tell) -> Iterator[str]:
    """The names of files beside a record that are not what it says."""
    for name in BESIDE:
        try:
            if (folder / name).exists():
                record.contents(folder / name, run)
        except (OSError, ValueError) as error:
            tell(str(error) if name in str(error) else f"{folder / name}: {error}")
            yield name


def _declarations(folder: Path, selection: str | None, tell: Tell) -> Iterator[tuple[Path, Key, list[int]]]:
    """The folder, the key and the seeds of every cell that a sweep announced."""
    for path in sorted(folder.rglob(SWEEP)):
        try:
            for entry in declared_cells(path):
                yield path.parent / entry["folder"], _key(entry, entry["task_name"], selection), entry["seeds"]
        except ValueError as error:
            tell(str(error))


def declared_cells(path: Path) -> list[dict[str, Any]]:
    """The cells that a `sweep.json` declares, with printable names. Raises ValueError with its name."""
    cells = record.declared(path)
    try:
        schema.check(schema.Sweep, {"cells": cells})
    except ValueError as error:
        raise ValueError(f"{path}: not what a sweep declares: {error}") from None
    return schema.cleaned(cells)


def _key(known: dict[str, Any], task: str, selection: str | None) -> Key:
    return Key(
        known["protocol"],
        selection or known["selection"],
        task,
        known["attention"],
        known["variant"],
        settings_text(known["settings"]),
    )


def _keys(runs: list[tuple[Path, Key, Record]], declared: list[tuple[Path, Key, list[int]]]) -> dict[Path, Key]:
    """The key of the cell in each folder.

    A task has its final name once its data are read. A cell without such a run takes the name from the other cells
    that were declared as this one was, where these have a single one.
    """
    keys = {place: key for place, key, _ in declared} | {place: key for place, key, _ in runs}
    final = {place: key.task for place, key, run in runs if _with_data(run)}
    names: dict[tuple[str, str], set[str]] = defaultdict(set)
    for place, key, _ in declared:
        if place in final:
            names[key.task].add(final[place])
    announced = {place: key.task for place, key, _ in declared}
    for place, key in keys.items():
        others = names[announced.get(place, key.task)]
        task = final[place] if place in final else min(others) if len(others) == 1 else key.task
        keys[place] = replace(key, task=task)
    return keys


def _with_data(run: Record) -> bool:
    return run["provenance"]["data_sha256"] is not None


def predictions(folder: Path, run: Record, selection: str) -> np.ndarray | None:
    """Predicted classes and labels [2, n] of the test split under a selection rule, where the run kept them.

    They are kept for the checkpoint that the run's own rule selects. Raises UserError.
    """
    path = (folder / run["path"]).with_name(PREDICTIONS)
    shown = run["test"].get(selection)
    if shown is None or shown["step"] != run["test"][run["selection"]]["step"]:
        return None
    found = _array(path, run)
    if found is not None and found.shape != (2, shown["examples"]):
        raise UserError(f"{path}: expected an array of shape (2, {shown['examples']}), found {found.shape}")
    return found


def costs(folder: Path, run: Record) -> np.ndarray | None:
    """The training cost of every batch, where the run kept them. Raises UserError."""
    return _array((folder / run["path"]).with_name(COSTS), run)


def text(folder: Path, run: Record) -> str | None:
    """What a language model wrote, in one line, where the run kept it. Raises UserError."""
    data = contents((folder / run["path"]).with_name(SAMPLE), run)
    return None if data is None else printable(" ".join(data.decode(errors="replace").split()))


def _array(path: Path, run: Record) -> np.ndarray | None:
    data = contents(path, run)
    try:
        return None if data is None else np.load(io.BytesIO(data), allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise UserError(f"{path}: not a readable array: {error}") from None


def contents(path: Path, run: Record) -> bytes | None:
    """A file beside a record; None where there is none, or where it is not what the record says. Raises UserError."""
    if path.name in run.get("damaged", ()) or not path.exists():
        return None
    try:
        return record.contents(path, run)
    except (OSError, ValueError) as error:
        raise UserError(str(error)) from None


def _refuse_hidden_differences(cells: Iterable[Cell]) -> None:
    """Runs of a cell differ in the seed alone; those of a column share task version, data and protocol."""
    columns: dict[tuple[str, str, str], list[Record]] = defaultdict(list)
    for cell in cells:
        runs = list(cell.runs.values())
        columns[cell.key.column] += runs
        for run in runs[1:]:
            _refuse(record.differences(_pooled(runs[0]), _pooled(run)), runs[0], run, "a cell")
    for runs in columns.values():
        for run in runs[1:]:
            varied = {f"config.{key}" for other in (runs[0], run) for key in other["settings"]}
            found = record.differences(_compared(runs[0]), _compared(run))
            _refuse([change for change in found if change[0] not in varied], runs[0], run, "a column")
        digests = {run["provenance"]["data_sha256"]: run["path"] for run in runs if run["provenance"]["data_sha256"]}
        if len(digests) > 1:
            raise UserError(f"column {runs[0]['task']!r}: {' and '.join(digests.values())} were run on different data")


def _refuse(differences: list[tuple[str, Any, Any]], first: Record, other: Record, place: str) -> None:
    for key, one, two in differences:
        raise UserError(
            f"{first['path']} and {other['path']} would share {place} of the table but differ in {key}: {one} and {two}"
        )


def _pooled(run: Record) -> dict[str, Any]:
    """What all runs of a cell must share; each seed may start from the weights of its own source."""
    config = {key: value for key, value in run["config"].items() if key != "seed"}
    if config.get("init"):
        config["init"] = {key: value for key, value in config["init"].items() if key != "sha256"}
    return {"task_version": run["task_version"], "metric": run["metric"], "config": config}


def _compared(run: Record) -> dict[str, Any]:
    """What all runs of a column must share, besides the data."""
    protocol = run["config"].get("protocol")
    return {"task_version": run["task_version"], "metric": run["metric"], "config": {"protocol": protocol}}
