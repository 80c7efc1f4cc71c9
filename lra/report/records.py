"""Reading a results folder: the records, what the sweeps declared, and the cells they make together."""

import io
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from lra import record
from lra.errors import UserError

Record = dict[str, Any]

METRICS = ("accuracy", "perplexity")
RULES = ("last", "best_val", "best_test")
PREDICTIONS = "predictions.npy"
COSTS = "costs.npy"
SAMPLE = "sample.txt"


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
        return "finished" if run["test"][self.key.selection][self.metric] is not None else "not finite"

    @property
    def complete(self) -> bool:
        """All declared seeds are done."""
        return bool(self.declared) and len(self.scores()) == len(self.seeds())


def settings_text(settings: dict[str, Any]) -> str:
    return " ".join(f"{key}={value}" for key, value in sorted(settings.items()))


def load(folder: Path, selection: str | None = None) -> list[Cell]:
    """The cells of all records below `folder`, each by its own selection rule or all by `selection`.

    Raises UserError where pooling them would hide a difference.
    """
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder")
    cells: dict[Key, Cell] = {}
    folders: dict[Path, Key] = {}
    for path in sorted(folder.rglob(record.NAME)):
        run, key = _read(path, selection)
        cell = cells.setdefault(key, Cell(key, metric=run["metric"]))
        seed = run["seed"]
        run["path"] = path.relative_to(folder).as_posix()
        if seed in cell.runs:
            raise UserError(
                f"{run['path']} and {cell.runs[seed]['path']} are both seed {seed} of the same cell; keep one of them"
            )
        cell.runs[seed] = run
        folders[path.parent.parent] = key
    for path in sorted(folder.rglob("sweep.json")):
        for place, declared, seeds in _declared(path, selection):
            key = folders.get(place, declared)
            cell = cells.setdefault(key, Cell(key))
            cell.declared = {*(cell.declared or ()), *seeds}
    if not cells:
        raise UserError(f"{folder}: no {record.NAME} below it; train something first")
    if selection and not any(selection in run.get("test", {}) for cell in cells.values() for run in cell.runs.values()):
        raise UserError(f"--selection {selection}: no record below {folder} has it; leave the option out")
    _refuse_hidden_differences(cells.values())
    return [cells[key] for key in sorted(cells)]


def _read(path: Path, selection: str | None) -> tuple[Record, Key]:
    try:
        run = record.read(path)
        key = Key(
            run["protocol"],
            selection or run["selection"],
            run["task"],
            run["attention"],
            run["variant"],
            settings_text(run["settings"]),
        )
        if run["metric"] not in METRICS:
            raise ValueError(f"metric {run['metric']!r}, expected one of {METRICS}")
        if not isinstance(run["seed"], int):
            raise ValueError(f"seed {run['seed']!r}, expected a whole number")
        if run["status"] == "finished" and run["selection"] not in run["test"]:
            raise ValueError(f"finished, but it has no test result for {run['selection']}")
    except (ValueError, KeyError) as error:
        raise UserError(f"{path}: not a record: {error}") from None
    return run, key


def _declared(path: Path, selection: str | None) -> list[tuple[Path, Key, list[int]]]:
    """The folder, key and seeds of every cell that a sweep announced."""
    try:
        return [
            (
                path.parent / entry["folder"],
                Key(
                    entry["protocol"],
                    selection or entry["selection"],
                    entry["task_name"],
                    entry["attention"],
                    entry["variant"],
                    settings_text(entry["settings"]),
                ),
                entry["seeds"],
            )
            for entry in record.declared(path)
        ]
    except ValueError as error:
        raise UserError(str(error)) from None
    except (KeyError, TypeError) as error:
        raise UserError(f"{path}: not what a sweep declares: {type(error).__name__}: {error}") from None


def predictions(folder: Path, run: Record, selection: str) -> np.ndarray | None:
    """Predicted classes and labels [2, n] of the test split under a selection rule, where the run kept them.

    They are kept for the checkpoint that the run's own rule selects. Raises UserError.
    """
    path = (folder / run["path"]).with_name(PREDICTIONS)
    shown = run["test"].get(selection)
    if not path.exists() or shown is None or shown["step"] != run["test"][run["selection"]]["step"]:
        return None
    found = _array(path, run)
    if found.shape != (2, shown["examples"]):
        raise UserError(f"{path}: expected an array of shape (2, {shown['examples']}), found {found.shape}")
    return found


def costs(folder: Path, run: Record) -> np.ndarray | None:
    """The training cost of every batch, where the run kept them. Raises UserError."""
    path = (folder / run["path"]).with_name(COSTS)
    return _array(path, run) if path.exists() else None


def text(folder: Path, run: Record) -> str | None:
    """What a language model wrote, where the run kept it. Raises UserError."""
    path = (folder / run["path"]).with_name(SAMPLE)
    return _contents(path, run).decode(errors="replace") if path.exists() else None


def _array(path: Path, run: Record) -> np.ndarray:
    try:
        return np.load(io.BytesIO(_contents(path, run)), allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise UserError(f"{path}: not a readable array: {error}") from None


def _contents(path: Path, run: Record) -> bytes:
    try:
        return record.contents(path, run)
    except ValueError as error:
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
