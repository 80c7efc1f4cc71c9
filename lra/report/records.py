"""Reading a results folder: the records, what the sweeps declared, and the cells they make together."""

import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lra import record
from lra.errors import UserError

Record = dict[str, Any]


@dataclass(frozen=True, order=True)
class Key:
    """Everything that a table shows of a cell; whatever is not here must not vary inside a cell."""

    protocol: str
    selection: str
    task: str
    attention: str
    variant: str
    settings: str


METRICS = ("accuracy", "perplexity")


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
            if run["status"] == "finished"
        }

    def seeds(self) -> list[int]:
        """Declared or seen."""
        return sorted({*self.runs, *(self.declared or ())})

    def status(self, seed: int) -> str:
        return self.runs[seed]["status"] if seed in self.runs else "missing"


def settings_text(settings: dict[str, Any]) -> str:
    return " ".join(f"{key}={value}" for key, value in sorted(settings.items()))


def load(folder: Path) -> list[Cell]:
    """The cells of all records below `folder`. Raises UserError where pooling them would hide a difference."""
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder")
    cells: dict[Key, Cell] = {}
    folders: dict[Path, Key] = {}
    for path in sorted(folder.rglob(record.NAME)):
        try:
            run = record.read(path)
            key = Key(
                run["protocol"],
                run["selection"],
                run["task"],
                run["attention"],
                run["variant"],
                settings_text(run["settings"]),
            )
            seed, metric = run["seed"], run["metric"]
            if metric not in METRICS:
                raise ValueError(f"metric {metric!r}, expected one of {METRICS}")
        except (ValueError, KeyError) as error:
            raise UserError(f"{path}: not a record: {error}") from None
        cell = cells.setdefault(key, Cell(key, metric=metric))
        if seed in cell.runs:
            raise UserError(f"{path}: seed {seed} stands in {cell.runs[seed]['path']}, too; keep one of them")
        cell.runs[seed] = run | {"path": path.relative_to(folder).as_posix()}
        folders[path.parent.parent] = key
    for path in sorted(folder.rglob("sweep.json")):
        for entry in json.loads(path.read_text())["cells"]:
            key = folders.get(path.parent / entry["folder"]) or Key(
                entry["protocol"],
                entry["selection"],
                entry["task_name"],
                entry["attention"],
                entry["variant"],
                settings_text(entry["settings"]),
            )
            cell = cells.setdefault(key, Cell(key))
            cell.declared = {*(cell.declared or ()), *entry["seeds"]}
    if not cells:
        raise UserError(f"{folder}: no {record.NAME} below it; train something first")
    _refuse_hidden_differences(cells.values())
    return [cells[key] for key in sorted(cells)]


def _refuse_hidden_differences(cells: Iterable[Cell]) -> None:
    data: dict[tuple[str, ...], dict[str, str]] = defaultdict(dict)
    for cell in cells:
        runs = list(cell.runs.values())
        for run in runs[1:]:
            for key, one, other in record.differences(_pooled(runs[0]), _pooled(run)):
                paths = f"{runs[0]['path']} and {run['path']}"
                raise UserError(f"{paths} would share a cell of the table but differ in {key}: {one} and {other}")
        for run in runs:
            if run["provenance"]["data_sha256"]:
                column = (cell.key.protocol, cell.key.selection, cell.key.task)
                data[column][run["provenance"]["data_sha256"]] = run["path"]
    for column, digests in data.items():
        if len(digests) > 1:
            raise UserError(f"column {column[2]!r}: {' and '.join(digests.values())} were run on different data")


def _pooled(run: Record) -> dict[str, Any]:
    """What all runs of a cell must share; each seed may start from the weights of its own source."""
    config = {key: value for key, value in run["config"].items() if key != "seed"}
    if config.get("init"):
        config["init"] = {key: value for key, value in config["init"].items() if key != "sha256"}
    return {"task_version": run["task_version"], "metric": run["metric"], "config": config}
