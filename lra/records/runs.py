"""Runs of a results folder, their state, and the two files that keep finished runs next to a report.

`runs.jsonl` has one line a run: `{"run": folder, "record": {...}, "metrics": [...]}`, where `run` is the path of the
run's folder below the results folder; a line `{"sweep": {...}}` before them has the content of `sweep.json`.
`predictions.npz` has the predicted classes of each run, by the same path, and the labels of each test split under
`labels/` and the digest of the data.
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
from lra.core.files import holder, write_atomic
from lra.records.names import (
    CONFIG,
    ERRORS,
    KEPT_PREDICTIONS,
    LOCK,
    METRICS,
    PREDICTIONS,
    RECORD,
    RUNS,
    SWEEP,
)
from lra.records.record import RunRecord, Sweep, readable, signed, unsigned

LABELS = "labels/"  # prefix in predictions.npz
NO_RECORD = "the process ended without a record: it was killed, perhaps for lack of memory"


@dataclass(frozen=True)
class Run:
    """A run below a results folder.

    Args:
        name: path of its folder below the results folder.
        metrics: evaluations in the order of training, the lines of `metrics.jsonl`.
        predictions: predicted classes and labels [2, n] of the test split, if kept.
    """

    name: str
    record: RunRecord
    metrics: list[dict[str, Any]] = field(default_factory=list)
    predictions: np.ndarray | None = None

    @property
    def cell(self) -> Path:
        """Folder of its cell below the results folder."""
        return Path(self.name).parent


def read_runs(folder: Path) -> list[Run]:
    """Read every run of a results folder, sorted by name.

    Args:
        folder: a results folder, or a `runs.jsonl` file. A run folder takes precedence over a line with its name.

    Raises:
        UserError: if there is no run, or a file is damaged.
    """
    if not folder.exists():
        raise UserError(f"{folder}: no such folder")
    place = folder if folder.is_dir() else folder.parent
    runs = _kept(place)
    if folder.is_dir():
        loose = [Path(place) for place, _, names in os.walk(folder, followlinks=True) if RECORD in names]
        runs |= {run.name: run for run in (_loose(path, folder) for path in loose)}
    if not runs:
        raise UserError(f"{folder}: no {RECORD} below it and no {RUNS} in it; train something first")
    return [runs[name] for name in sorted(runs)]


def _loose(folder: Path, results: Path) -> Run:
    """Read the run of a folder."""
    record = RunRecord.read(folder / RECORD)
    metrics, predictions = folder / METRICS, folder / PREDICTIONS
    with readable(metrics):
        lines = list(map(json.loads, metrics.read_bytes().splitlines())) if metrics.exists() else []
    with readable(predictions):
        array = np.load(predictions) if predictions.exists() else None
    return Run(folder.relative_to(results).as_posix(), record, lines, array)


def _kept(folder: Path) -> dict[str, Run]:
    """Read the runs of `runs.jsonl` and `predictions.npz` by name, if there are any."""
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
            name, record = line["run"], RunRecord.parse(line["record"])
            if name in runs:
                raise ValueError(f"run {name!r} is in an earlier line, too; delete one of the lines")
            both = [arrays[name], arrays[f"{LABELS}{record.provenance.data_sha256}"]] if name in arrays else None
            runs[name] = Run(name, record, line["metrics"], None if both is None else np.stack(both))
    return runs


def keep_runs(folder: Path, runs: Iterable[Run]) -> None:
    """Write `runs.jsonl` and `predictions.npz` into a results folder. Raises UserError for a run that has not ended."""
    sweep = declared(folder)
    lines: list[dict[str, Any]] = [{"sweep": signed(sweep.model_dump())}] if sweep.cells else []
    arrays: dict[str, np.ndarray] = {}
    for run in runs:
        if run.record.status == "paused":
            raise UserError(f"{folder / run.name}: paused; train it to its end, or delete it")
        lines.append({"run": run.name, "record": signed(run.record.values()), "metrics": run.metrics})
        if run.predictions is not None:
            arrays[run.name], arrays[f"{LABELS}{run.record.provenance.data_sha256}"] = run.predictions
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, **arrays)
    write_atomic(folder / KEPT_PREDICTIONS, buffer.getvalue())
    text = "".join(json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n" for line in lines)
    write_atomic(folder / RUNS, text.encode())


def unpack(run: Run, folder: Path) -> None:
    """Write record, metrics and predictions of a kept run into a folder. Raises UserError."""
    if run.predictions is not None:
        buffer = io.BytesIO()
        np.save(buffer, run.predictions)
        write_atomic(folder / PREDICTIONS, buffer.getvalue())
    write_atomic(folder / METRICS, "".join(json.dumps(line) + "\n" for line in run.metrics).encode())
    run.record.write(folder)


def read_kept(path: Path) -> Run:
    """Read one kept run, given as `FOLDER/runs.jsonl/RUN`, or a run's folder. Raises UserError."""
    file = next((parent for parent in path.parents if parent.name == RUNS), None)
    if file is None:
        folder = path.parent if path.name == RECORD else path
        if not (folder / RECORD).exists():
            raise UserError(f"{path}: no {RECORD} there; expected a run's folder, or FOLDER/{RUNS}/RUN")
        return _loose(folder, folder)
    name = path.relative_to(file).as_posix()
    runs = {run.name: run for run in read_runs(file)}
    if name not in runs:
        raise UserError(f"{file}: no run {name!r}; it has {len(runs)} runs, as {next(iter(runs))!r}")
    return runs[name]


def declared(folder: Path) -> Sweep:
    """Return the cells that sweeps below a results folder or its `runs.jsonl` declared, with folders relative to it."""
    sweep, path = Sweep(), folder / RUNS
    if path.exists():
        with readable(path), path.open("rb") as file:
            line = json.loads(file.readline()).get("sweep", {})
            sweep = Sweep.model_validate(unsigned(line) if "sha256" in line else line)
    for path in sorted(folder.rglob(SWEEP)):
        sweep = sweep.merged(Sweep.read(path), path.parent.relative_to(folder))
    return sweep


# The state of a run, read from its folder.


def recorded(folder: Path) -> RunRecord | None:
    """Read the record of a run; None if there is none. Raises UserError if it is damaged."""
    return RunRecord.read(folder / RECORD) if (folder / RECORD).exists() else None


def state(folder: Path) -> tuple[str, str]:
    """Return the status of a run and its reason or place.

    The status is finished, running (a process holds its lock), diverged, failed, paused, refused, killed or waiting.
    Raises UserError if its record is damaged.
    """
    run = recorded(folder)
    if run is not None and run.status == "finished":
        return "finished", ""
    at_work = holder(folder / LOCK)
    if at_work is not None:
        return "running", at_work
    if run is not None:
        return run.status, run.reason
    if (folder / ERRORS).exists():
        return "refused", (folder / ERRORS).read_text(encoding="utf-8").strip()
    return ("killed", NO_RECORD) if (folder / CONFIG).exists() else ("waiting", "it never started")
