"""Reading a results folder: the records, what lies beside each, what the sweeps declared, and the cells that
they make together."""

import io
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any, NoReturn

import numpy as np

from lra.core.errors import UserError, printable
from lra.core.files import JSON_BYTES, parse_json, read_regular
from lra.records import record
from lra.records.names import COSTS, METRICS, PREDICTIONS, RECORD, SAMPLE, SWEEP
from lra.records.record import CONTENTS_BYTES
from lra.records.run_files import RunFiles
from lra.report.read import schema
from lra.report.read.schema import Question

Record = dict[str, Any]
"""As the file has it, with its `path` below the results folder, whether it is `packed`, and the files beside it that
are `damaged`."""


def anchor(run: Record) -> str:
    """Where the page shows a record that is packed, and that no link can open."""
    return f"run/{PurePosixPath(run['path']).parent}"


def beside(run: Record, name: str) -> str:
    """The path of a file beside a record."""
    return str(PurePosixPath(run["path"]).with_name(name))


def predictions(files: RunFiles, run: Record, selection: str) -> np.ndarray | None:
    """Predicted classes and labels [2, n] of the test split under a selection rule, where the run kept them.

    They are kept for the checkpoint that the run's own rule selects. Raises UserError.
    """
    shown = run["test"].get(selection)
    if shown is None or shown["step"] != run["test"][run["selection"]]["step"]:
        return None
    array = _array(files, run, PREDICTIONS, kinds="iu")
    if array is not None and array.shape != (2, shown["examples"]):
        place = files.shown(beside(run, PREDICTIONS))
        raise UserError(f"{place}: expected an array of shape (2, {shown['examples']}), found {array.shape}")
    return array


def costs(files: RunFiles, run: Record) -> np.ndarray | None:
    """The training cost of every batch, where the run kept them. Raises UserError."""
    array = _array(files, run, COSTS, kinds="f")
    if array is not None and array.ndim != 1:
        raise UserError(
            f"{files.shown(beside(run, COSTS))}: expected a line of numbers, found a shape of {array.shape}"
        )
    return array


def text(files: RunFiles, run: Record) -> str | None:
    """What a language model wrote, in one line, where the run kept it. Raises UserError."""
    data = contents(files, run, SAMPLE)
    return None if data is None else printable(" ".join(data.decode(errors="replace").split()))


def _array(files: RunFiles, run: Record, name: str, kinds: str) -> np.ndarray | None:
    """An array of one of these kinds of numbers, as numpy names them."""
    data = contents(files, run, name)
    if data is None:
        return None
    try:
        array = np.lib.format.read_array(io.BytesIO(data), allow_pickle=False)
        if array.dtype.kind not in kinds:
            raise ValueError(f"its numbers are of the type {array.dtype}")
        return array
    except (ValueError, EOFError, MemoryError, OverflowError) as error:
        raise UserError(f"{files.shown(beside(run, name))}: not a readable array: {error}") from None


def contents(files: RunFiles, run: Record, name: str) -> bytes | None:
    """A file beside a record; None where there is none, or where it is not what the record says. Raises UserError."""
    path = beside(run, name)
    if name in run.get("damaged", ()) or not files.exists(path):
        return None
    try:
        data = files.read(path)
        record.check_contents(name, data, run)
        return data
    except (OSError, ValueError) as error:
        raise UserError(f"{files.shown(path)}: {error}") from None


# Reading a results folder: the records, what the sweeps declared, and the cells they make together.


Tell = Callable[[str], object]
"""Takes one line on what cannot be read, and is left out."""

BESIDE = (METRICS, PREDICTIONS, COSTS, SAMPLE)  # what a report reads beside a record
LARGEST = 1e15  # a perplexity beyond is taken for infinite


@dataclass(frozen=True, order=True)
class CellKey:
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
class RecordedCell:
    """The runs of one cell. `declared`: the seeds that a sweep announced, or None where no sweep is known; `question`:
    what it asks."""

    key: CellKey
    runs: dict[int, Record] = field(default_factory=dict)
    declared: set[int] | None = None
    metric: str = "accuracy"
    question: Question | None = None

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


def refuse(fault: str) -> NoReturn:
    raise UserError(fault)


def load(files: RunFiles, selection: str | None = None, tell: Tell = refuse) -> list[RecordedCell]:
    """The cells of all records among `files`, each by its own selection rule or all by `selection`.

    `tell` hears of each record, sweep.json and file beside a record that is not what it should be; it is left out.
    Raises UserError where pooling the others would hide a difference.
    """
    runs = [
        (PurePosixPath(run["path"]).parent.parent, key_of(run, run["task"], selection), run)
        for run in records(files, tell)
    ]
    declared = [(place, key_of(cell, cell["task_name"], selection), cell) for place, cell in declarations(files, tell)]
    keys = _keys(runs, declared)
    cells: dict[CellKey, RecordedCell] = {}
    for place, key, run in runs:
        key = replace(key, task=run["task"]) if _with_data(run) else replace(key, task=keys[place].task)
        cell = cells.setdefault(key, RecordedCell(key, metric=run["metric"]))
        seed = run["seed"]
        if seed in cell.runs:
            raise UserError(
                f"{run['path']} and {cell.runs[seed]['path']} are both seed {seed} of the same cell; keep one of them"
            )
        cell.runs[seed] = run
    for place, _, entry in declared:
        cell = cells.setdefault(keys[place], RecordedCell(keys[place]))
        cell.declared = {*(cell.declared or ()), *entry["seeds"]}
        if entry.get("margin") is not None:
            cell.question = Question(entry.get("reference"), entry["margin"])
    if not cells:
        raise UserError(f"{files.folder}: no {RECORD} below it that can be read; train something first")
    if selection and not any(selection in run.get("test", {}) for cell in cells.values() for run in cell.runs.values()):
        raise UserError(f"--selection {selection}: no record below {files.folder} has it; leave the option out")
    refuse_hidden_differences(cells.values())
    return [cells[key] for key in sorted(cells)]


def records(files: RunFiles, tell: Tell) -> Iterator[Record]:
    """Every record that can be read; `tell` hears of the others, and of files beside a record that are damaged."""
    for path in files.find(RECORD):
        try:
            run = read_record(files, path)
        except ValueError as error:
            tell(str(error))
            continue
        run |= {"path": path, "packed": files.is_packed(path)}
        run["damaged"] = list(_damaged(files, run, tell))
        yield run


def read_record(files: RunFiles, path: str) -> Record:
    """Its names are printable; the configuration is as it was written. Raises ValueError with its name."""
    if path != path.encode(errors="replace").decode():
        raise ValueError(f"{files.shown(path)}: not a readable record: expected a path in UTF-8; rename its folder")
    try:
        run = record.parse(files.read(path, JSON_BYTES))
    except (OSError, ValueError) as error:
        raise ValueError(f"{files.shown(path)}: not a readable record: {error}") from None
    try:
        schema.check(schema.Record, run)
    except ValueError as error:
        raise ValueError(f"{files.shown(path)}: not a record: {error}") from None
    return {name: value if name == "config" else schema.cleaned(value) for name, value in run.items()}


def _damaged(files: RunFiles, run: Record, tell: Tell) -> Iterator[str]:
    """The names of files beside a record that are not what it says."""
    for name in BESIDE:
        path = beside(run, name)
        if not files.exists(path):
            if name in run.get("files", {}):
                tell(f"{files.shown(path)}: missing, though its record lists it")
                yield name
            continue
        try:
            record.check_contents(name, files.read(path), run)
        except (OSError, ValueError) as error:
            tell(f"{files.shown(path)}: {_why(error)}")
            yield name


def _why(error: Exception) -> str:
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)


def declarations(files: RunFiles, tell: Tell) -> Iterator[tuple[PurePosixPath, dict[str, Any]]]:
    """Every cell that a sweep declared, with its folder; `tell` hears of a `sweep.json` that cannot be read."""
    for path in files.find(SWEEP):
        try:
            cells = declared_cells(files, path)
        except ValueError as error:
            tell(str(error))
            continue
        yield from ((PurePosixPath(path).parent / cell["folder"], cell) for cell in cells)


def declared_cells(files: RunFiles, path: str) -> list[dict[str, Any]]:
    """The cells that a `sweep.json` declares, with printable names. Raises ValueError with its name."""
    cells = files.declared(path)
    try:
        schema.check(schema.SweepFile, {"cells": cells})
    except ValueError as error:
        raise ValueError(f"{files.shown(path)}: not what a sweep declares: {error}") from None
    return schema.cleaned(cells)


def key_of(cell: Mapping[str, Any], task: str, selection: str | None = None) -> CellKey:
    """The key of a cell as a record or a sweep.json has it; `selection`: the rule that a report is asked for."""
    settings = " ".join(f"{name}={value}" for name, value in sorted(cell["settings"].items()))
    return CellKey(cell["protocol"], selection or cell["selection"], task, cell["attention"], cell["variant"], settings)


def _keys(
    runs: list[tuple[PurePosixPath, CellKey, Record]], declared: list[tuple[PurePosixPath, CellKey, dict[str, Any]]]
) -> dict[PurePosixPath, CellKey]:
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


def refuse_hidden_differences(cells: Iterable[RecordedCell]) -> None:
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
            changes = record.differences(_compared(runs[0]), _compared(run))
            _refuse([change for change in changes if change[0] not in varied], runs[0], run, "a column")
        digests = {run["provenance"]["data_sha256"]: run["path"] for run in runs if run["provenance"]["data_sha256"]}
        if len(digests) > 1:
            raise UserError(f"column {runs[0]['task']!r}: {' and '.join(digests.values())} were run on different data")


def _refuse(differences: list[tuple[str, Any, Any]], first: Record, other: Record, place: str) -> None:
    for key, mine, theirs in differences:
        raise UserError(
            f"{first['path']} and {other['path']} would share {place} of the table but differ in {key}: {mine} and "
            f"{theirs}"
        )


def _pooled(run: Record) -> dict[str, Any]:
    """What all runs of a cell must share; each seed may start from the weights of its own source."""
    config = {key: value for key, value in run["config"].items() if key != "seed"}
    if config.get("init"):
        config["init"] = {key: value for key, value in config["init"].items() if key != "sha256"}
    return {"task_version": run["task_version"], "metric": run["metric"], "config": config}


def _compared(run: Record) -> dict[str, Any]:
    """What all runs of a column must share, besides the data; in a race the goal, and how often it is looked for."""
    train = run["config"].get("train", {})
    goal = train.get("goal")
    race = {"goal": goal} if goal is None else {"goal": goal, "eval_every": train.get("eval_every")}
    config = {"protocol": run["config"].get("protocol"), "train": race}
    return {"task_version": run["task_version"], "metric": run["metric"], "config": config}


def training_seconds(run: Record) -> float | None:
    """The seconds of a run's training and pretraining, without evaluations."""
    seconds = run.get("seconds", {})
    if "train" not in seconds:
        return None
    return seconds["train"] + run.get("pretrain", {}).get("seconds", {}).get("train", 0)


def computed_tokens(run: Record) -> int | None:
    """Tokens of a run's batches, padding included, with those of its pretraining."""
    if not run.get("tokens"):
        return None
    return run["tokens"]["computed"] + run.get("pretrain", {}).get("tokens", {}).get("computed", 0)


# Learning curves: the lines of `metrics.jsonl` beside each record, by name, and their course over the seeds.


PROBES = {
    "attention_std": "sd of attention outputs",
    "score_std": "sd of A",
    "score_asymmetry": "‖A − Aᵀ‖ / ‖A‖",
    "residual_norm": "length of residuals",
    "gradient_norm": "norm of gradients",
}
"""What lra/training/block_probe.py measures in each block; A = Q Kᵀ, scaled, before any softmax."""

Curve = dict[str, list[Any]]
"""One list per quantity, all of the length of `step`; what an evaluation did not measure is None."""


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The evaluations of the training in a `metrics.jsonl`, none where there is no file; a last line that is being
    written is left out, and so are those of a pretraining.

    Raises UserError.
    """
    try:
        return parsed(str(path), read_regular(path, CONTENTS_BYTES))
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: not readable: {error}") from None


def parsed(path: str, data: bytes) -> list[dict[str, Any]]:
    """The evaluations of the training in these bytes of `path`."""
    *complete, _ = data.decode(errors="replace").split("\n")
    lines = []
    for number, text in enumerate(complete, start=1):
        try:
            line = parse_json(text)
        except ValueError as error:
            raise UserError(f"{path}, line {number}: expected a JSON object, found {error}") from None
        if not isinstance(line, dict) or "step" not in line:
            raise UserError(f"{path}, line {number}: expected an object with a step, found {text[:40]!r}")
        if "phase" not in line:
            lines.append(line)
    return lines


def read_curve(files: RunFiles, run: Record) -> Curve | None:
    """The curve of a run that left one; `val_perplexity`, which no line holds, is the exponential of `val_loss`."""
    lines = parsed(files.shown(beside(run, METRICS)), contents(files, run, METRICS) or b"")
    if not lines:
        return None
    curve = {
        name: [line.get(name) for line in lines] for name in dict.fromkeys(name for line in lines for name in line)
    }
    if "val_loss" in curve:
        curve["val_perplexity"] = [None if loss is None else math.exp(min(loss, 700)) for loss in curve["val_loss"]]
    return curve


def over_seeds(curves: Iterable[Curve], name: str) -> tuple[np.ndarray, np.ndarray]:
    """(steps, values [seeds, steps, ...]) of one quantity, at the steps where every curve that measured it has it."""
    measured = [
        {step: value for step, value in zip(curve["step"], curve[name], strict=True) if value is not None}
        for curve in curves
        if name in curve
    ]
    steps = sorted(set.intersection(*map(set, measured))) if measured else []
    values = [[points[step] for step in steps] for points in measured]
    return np.array(steps), np.array(values, dtype=float)


def reached(curve: Curve, name: str, target: float, *, lower: bool) -> int | None:
    """The first step at which a quantity was as good as `target`, or better."""
    points = zip(curve["step"], curve[name], strict=True)
    return next(
        (step for step, value in points if value is not None and (value <= target if lower else value >= target)), None
    )
