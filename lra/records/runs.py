"""Read the runs of a results folder, and read and write the two files with its kept runs.

`runs.jsonl` has one line per run: `{"run": folder, "record": {...}, "metrics": [...]}`, where `run` is the path of the
run's folder relative to the results folder. If sweeps have declared cells, a first line `{"sweep": {...}}` lists them.
`predictions.npz` has the predicted classes of each run under its path `run`, and the labels of each test split under
`labels/DIGEST`, where DIGEST is the SHA-256 of the data.
"""

import io
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from lra.core.errors import UserError
from lra.core.files import write_atomic
from lra.records.names import KEPT_PREDICTIONS, METRICS, PREDICTIONS, RECORD, RUNS, SWEEP
from lra.records.record import RunRecord, Sweep, readable, signed, unsigned, write

LABELS = "labels/"  # prefix of the names of the label arrays in predictions.npz


@dataclass(frozen=True)
class Run:
    """A run of a results folder."""

    name: str  # path of the run's folder relative to the results folder
    record: RunRecord
    metrics: list[dict[str, Any]] = field(default_factory=list)  # lines of `metrics.jsonl`, one per evaluation
    predictions: np.ndarray | None = None  # predicted classes and labels [2, n] of the test split, if kept

    @property
    def cell(self) -> Path:
        """Path of the cell's folder relative to the results folder."""
        return Path(self.name).parent


def read_runs(folder: Path) -> list[Run]:
    """Return every run of a results folder or of a `runs.jsonl` file, sorted by name.

    The folder of a run takes precedence over its line in `runs.jsonl`.

    Raises:
        UserError: if there is no run, or a file is damaged.
    """
    if not folder.exists():
        raise UserError(f"{folder}: no such folder")
    runs = _kept(folder if folder.is_dir() else folder.parent)
    if folder.is_dir():
        # Path.rglob does not follow links to folders, which users make to gather runs from several disks.
        loose = [Path(place) for place, _, names in os.walk(folder, followlinks=True) if RECORD in names]
        runs |= {run.name: run for run in (_loose(path, folder) for path in loose)}
    if not runs:
        raise UserError(f"{folder}: no {RECORD} below it and no {RUNS} in it; train something first")
    return [runs[name] for name in sorted(runs)]


def _loose(folder: Path, results: Path) -> Run:
    """Return the run in `folder`, named by its path relative to the folder `results`."""
    record = RunRecord.read(folder / RECORD)
    metrics, predictions = folder / METRICS, folder / PREDICTIONS
    with readable(metrics):
        lines = list(map(json.loads, metrics.read_bytes().splitlines())) if metrics.exists() else []
    with readable(predictions):
        array = np.load(predictions) if predictions.exists() else None
    return Run(folder.relative_to(results).as_posix(), record, lines, array)


def _kept(folder: Path) -> dict[str, Run]:
    """Return the runs in `runs.jsonl` by name, with predictions if there are any; {} without `runs.jsonl`."""
    path, answers = folder / RUNS, folder / KEPT_PREDICTIONS
    if not path.exists():
        return {}
    with readable(answers):
        arrays = dict(np.load(answers)) if answers.exists() else {}
    runs: dict[str, Run] = {}
    for number, text in enumerate(path.read_bytes().splitlines(), start=1):
        with readable(Path(f"{path}, line {number}")):
            line = json.loads(text)
            if "sweep" in line:
                continue
            name, record = line["run"], RunRecord.model_validate(unsigned(line["record"]))
            if name in runs:
                raise ValueError(f"run {name!r} is in an earlier line, too; delete one of the lines")
            both = [arrays[name], arrays[f"{LABELS}{record.provenance.data_sha256}"]] if name in arrays else None
            runs[name] = Run(name, record, line["metrics"], None if both is None else np.stack(both))
    return runs


def keep_runs(folder: Path, runs: Iterable[Run]) -> None:
    """Write `runs.jsonl` and `predictions.npz` into a results folder. Raises UserError if a run is paused."""
    sweep = declared(folder)
    lines: list[dict[str, Any]] = [{"sweep": signed(sweep.model_dump())}] if sweep.cells else []
    arrays: dict[str, np.ndarray] = {}
    for run in runs:
        if run.record.status == "paused":
            raise UserError(f"{folder / run.name}: paused; train it to its end, or delete it")
        lines.append({"run": run.name, "record": signed(run.record.values()), "metrics": run.metrics})
        if run.predictions is not None:  # labels are stored once for all runs on the same data
            arrays[run.name], arrays[f"{LABELS}{run.record.provenance.data_sha256}"] = run.predictions
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, **arrays)
    # Before runs.jsonl, whose new lines need these predictions.
    write_atomic(folder / KEPT_PREDICTIONS, buffer.getvalue())
    text = "".join(json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n" for line in lines)
    write_atomic(folder / RUNS, text.encode())


def unpack(run: Run, folder: Path) -> None:
    """Write record, metrics and predictions of a kept run into a folder. Raises UserError."""
    if run.predictions is not None:
        write_array(folder / PREDICTIONS, run.predictions)
    write_atomic(folder / METRICS, "".join(json.dumps(line) + "\n" for line in run.metrics).encode())
    write(folder, run.record.values())  # last, because a folder with a record counts as complete


def write_array(path: Path, values: np.ndarray) -> None:
    """Write an array as a .npy file."""
    buffer = io.BytesIO()
    np.save(buffer, values)
    write_atomic(path, buffer.getvalue())


def read_kept(path: Path) -> Run:
    """Return the kept run at FOLDER/runs.jsonl/RUN, or the run whose folder or record is `path`. Raises UserError."""
    file = next((parent for parent in path.parents if parent.name == RUNS), None)
    if file is None:
        folder = path.parent if path.name == RECORD else path
        if not (folder / RECORD).exists():
            raise UserError(f"{path}: no {RECORD} there; expected a run's folder, or FOLDER/{RUNS}/RUN")
        return _loose(folder, folder)
    name = path.relative_to(file).as_posix()
    runs = {run.name: run for run in read_runs(file)}
    if name not in runs:
        raise UserError(f"{file}: no run {name!r}; it has {len(runs)} runs, such as {next(iter(runs))!r}")
    return runs[name]


def declared(folder: Path) -> Sweep:
    """Return the cells declared by the `runs.jsonl` of a results folder and by every `sweep.json` below it.

    The folders of the cells are relative to the results folder.
    """
    sweep, path = Sweep(), folder / RUNS
    if path.exists():
        with readable(path), path.open("rb") as file:
            if (line := json.loads(file.readline()).get("sweep")) is not None:
                sweep = Sweep.model_validate(unsigned(line))
    for path in sorted(folder.rglob(SWEEP)):
        sweep = sweep.merged(Sweep.read(path), path.parent.relative_to(folder))
    return sweep
