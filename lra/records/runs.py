"""Runs of a results folder, their state, and the two files that keep finished runs next to a report.

`runs.jsonl` has one line a run: `{"run": folder, "record": {...}, "metrics": [...]}`, where `run` is the path of the
run's folder below the results folder; a line `{"sweep": {...}}` before them declares all cells and seeds, as
`sweep.json` does. `predictions.npz` has an array of predicted classes for each run, by the same path, and the labels of
each test split under `labels/` and the digest of the data.
"""

import hashlib
import io
import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from lra.core.errors import UserError, printable
from lra.core.files import explained, holder, parse_json, read_regular, write_atomic
from lra.records import record
from lra.records.names import CONFIG, ERRORS, KEPT_PREDICTIONS, LOCK, METRICS, PREDICTIONS, RECORD, RUNS, SWEEP
from lra.records.record import CONTENTS_BYTES, RunRecord, checked, signed, unsigned

LABELS = "labels/"  # prefix in predictions.npz
NO_RECORD = "the process ended without a record: it was killed, perhaps for lack of memory"
ERROR_BYTES = 2**20  # limit for error.log

SWEEP_LINE = b'{"sweep"'

Tell = Callable[[str], object]
"""Takes one line about a file that cannot be read and is left out."""


def refuse(fault: str) -> None:
    """Raise UserError: for callers that leave nothing out."""
    raise UserError(fault)


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

    def contents(self, name: str) -> bytes | None:
        """Return the bytes of `metrics.jsonl` or `predictions.npy`; None if there are none."""
        if name == METRICS:
            return metrics_bytes(self.metrics) if self.metrics else None
        if self.predictions is None:
            return None
        buffer = io.BytesIO()
        np.save(buffer, self.predictions)
        return buffer.getvalue()


def metrics_bytes(lines: Iterable[dict[str, Any]]) -> bytes:
    """Return evaluations as the bytes of `metrics.jsonl`."""
    return "".join(json.dumps(line) + "\n" for line in lines).encode()


def read_runs(folder: Path, tell: Tell = refuse) -> list[Run]:
    """Read every run of a results folder, sorted by name.

    Args:
        folder: a results folder, or a `runs.jsonl` file.
        tell: called for each record or file beside it that is damaged; it is left out.

    Raises:
        UserError: if there is no run. A run folder takes precedence over a line of `runs.jsonl` with its name.
    """
    if not folder.exists():
        raise UserError(f"{folder}: no such folder")
    place, loose = (folder, True) if folder.is_dir() else (folder.parent, False)
    runs = {run.name: run for run in _kept(place, tell)}
    runs |= {run.name: run for run in _in_folders(place, tell)} if loose else {}
    if not runs:
        raise UserError(f"{folder}: no {RECORD} below it and no {RUNS} in it that can be read; train something first")
    return [runs[name] for name in sorted(runs)]


def _in_folders(folder: Path, tell: Tell) -> Iterator[Run]:
    for path in sorted(_record_paths(folder, tell)):
        try:
            record = RunRecord.read(path)
        except ValueError as error:
            tell(printable(str(error)))
            continue
        yield Run(
            path.parent.relative_to(folder).as_posix(),
            record,
            _beside(path.with_name(METRICS), record, parse_metrics, tell) or [],
            _beside(path.with_name(PREDICTIONS), record, _parse_array, tell),
        )


def _record_paths(folder: Path, tell: Tell) -> Iterator[Path]:
    """Find every `record.json` below a folder, also through links; `tell` names folders that cannot be read."""
    for place, folders, names in os.walk(
        folder, followlinks=True, onerror=lambda error: tell(f"{error.filename}: {error}")
    ):
        real = Path(place).resolve()
        folders[:] = [name for name in folders if not real.is_relative_to(Path(place, name).resolve())]  # no circles
        if RECORD in names:
            yield Path(place, RECORD)


def _beside(path: Path, record: RunRecord, parse: Callable[[bytes], Any], tell: Tell) -> Any:
    """Read a file beside a record; None if there is none, or if it is damaged, which `tell` is called for."""
    expected = record.files.get(path.name)
    try:
        if expected is None and not path.exists():
            return None
        data = read_regular(path, CONTENTS_BYTES)
        check_digest(data, expected)
        return parse(data)
    except FileNotFoundError:
        tell(f"{path}: missing, but listed in the record")
    except (OSError, ValueError) as error:
        tell(printable(f"{path}: {error}"))
    return None


def check_digest(data: bytes, expected: str | None) -> None:
    """Raises ValueError if the SHA-256 of a file is not the one in its record."""
    if expected is not None and hashlib.sha256(data).hexdigest() != expected:
        raise ValueError("its SHA-256 does not match the record")


def parse_metrics(data: bytes) -> list[dict[str, Any]]:
    """Parse the complete lines of a `metrics.jsonl`. Raises ValueError."""
    *complete, _ = data.split(b"\n")
    lines = [parse_json(line) for line in complete]
    for number, line in enumerate(lines, start=1):
        if not isinstance(line, dict) or "step" not in line:
            raise ValueError(f"line {number}: expected an object with a step, found {str(line)[:40]!r}")
    return lines


def _parse_array(data: bytes) -> np.ndarray:
    try:
        array = np.lib.format.read_array(io.BytesIO(data), allow_pickle=False)
    except (ValueError, EOFError, MemoryError, OverflowError) as error:
        raise ValueError(f"not a readable array: {error}") from None
    if array.dtype.kind not in "iu" or array.ndim != 2 or array.shape[0] != 2:
        raise ValueError(f"expected integers [2, examples], found {array.dtype} {list(array.shape)}")
    return array


def _kept(folder: Path, tell: Tell) -> Iterator[Run]:
    """Read the runs of `runs.jsonl`, if there is one."""
    path = folder / RUNS
    if not path.exists():
        return
    predicted = _kept_predictions(folder / KEPT_PREDICTIONS, tell)
    for number, line in enumerate(read_regular(path, CONTENTS_BYTES).splitlines(), start=1):
        if line.startswith(SWEEP_LINE):
            continue
        try:
            run = _parse_line(line, predicted)
        except (ValueError, KeyError, TypeError) as error:
            tell(printable(f"{path}, line {number}: not a kept run: {error}"))
            continue
        for name in (METRICS, PREDICTIONS):
            data = run.contents(name)
            if data is None and name in run.record.files:
                tell(f"{path}, line {number}: {name} is missing, but listed in the record")
            elif data is not None:
                try:
                    check_digest(data, run.record.files.get(name))
                except ValueError as error:
                    tell(f"{path}, line {number}: {name}: {error}")
        yield run


def _parse_line(line: bytes, predicted: dict[str, np.ndarray]) -> Run:
    values = parse_json(line)
    record = checked(RunRecord, unsigned(values["record"]))
    name, labels = str(values["run"]), f"{LABELS}{record.provenance.data_sha256}"
    both = None
    if name in predicted:
        both = np.stack([predicted[name], predicted[labels]])
    return Run(name, record, list(values["metrics"]), both)


def _kept_predictions(path: Path, tell: Tell) -> dict[str, np.ndarray]:
    if not path.exists():
        return {}
    try:
        with np.load(io.BytesIO(read_regular(path, CONTENTS_BYTES)), allow_pickle=False) as archive:
            return dict(archive)
    except Exception as error:  # zipfile, zlib and NumPy each have their own
        tell(printable(f"{path}: not readable: {error}"))
        return {}


def keep_runs(folder: Path, runs: Iterable[Run]) -> None:
    """Write `runs.jsonl` and `predictions.npz` into a results folder. Raises UserError for a run that has not ended."""
    cells = declared_cells(folder)
    lines = [json.dumps({"sweep": record.declaration(cells)}, ensure_ascii=False) + "\n"] if cells else []
    arrays: dict[str, np.ndarray] = {}
    for run in runs:
        if run.record.status == "paused":
            raise UserError(f"{folder / run.name}: paused; train it to its end, or delete it")
        values = {"run": run.name, "record": signed(run.record.values()), "metrics": run.metrics}
        lines.append(json.dumps(values, ensure_ascii=False, allow_nan=False) + "\n")
        if run.predictions is not None:
            arrays[run.name], labels = run.predictions
            known = arrays.setdefault(f"{LABELS}{run.record.provenance.data_sha256}", labels)
            if not np.array_equal(known, labels):
                raise UserError(f"{folder / run.name}: its test labels differ from those of other runs on its data")
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, **arrays)
    write_atomic(folder / KEPT_PREDICTIONS, buffer.getvalue())
    write_atomic(folder / RUNS, "".join(lines).encode())


def read_kept(path: Path) -> Run:
    """Read one kept run, given as `FOLDER/runs.jsonl/RUN`, or a run's folder. Raises UserError."""
    file = next((parent for parent in path.parents if parent.name == RUNS), None)
    folder = path.parent if path.name == RECORD else path
    if file is None:
        if not (folder / RECORD).exists():
            raise UserError(f"{path}: no {RECORD} there; expected a run's folder, or FOLDER/{RUNS}/RUN")
        return next(_in_folders(folder, refuse))
    name = path.relative_to(file).as_posix()
    runs = {run.name: run for run in read_runs(file)}
    if name not in runs:
        raise UserError(f"{file}: no run {name!r}; it has {len(runs)} runs, as {next(iter(runs))!r}")
    return runs[name]


def declared_cells(folder: Path, tell: Tell = refuse) -> list[dict[str, Any]]:
    """Return the cells that sweeps below a results folder or its `runs.jsonl` declared, with folders relative to it."""
    cells: list[dict[str, Any]] = []
    for path in [*folder.glob(RUNS), *sorted(folder.rglob(SWEEP))]:
        try:
            found = _kept_cells(path) if path.name == RUNS else record.read_declared(path)
        except ValueError as error:
            tell(printable(str(error)))
            continue
        place = path.parent.relative_to(folder)
        cells = record.merged(cells, [{**cell, "folder": (place / cell["folder"]).as_posix()} for cell in found])
    return cells


def _kept_cells(path: Path) -> list[dict[str, Any]]:
    with path.open("rb") as file:
        first = file.readline()
    try:
        return record.cells_of(parse_json(first)["sweep"]) if first.startswith(SWEEP_LINE) else []
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path}, line 1: not a declaration of a sweep: {error}") from None


# The state of a run, read from its folder.


def recorded(folder: Path) -> RunRecord | None:
    """Read the record of a run; None if there is none. Raises UserError if it is damaged or unreadable."""
    try:
        return RunRecord.read(folder / RECORD) if (folder / RECORD).exists() else None
    except OSError as error:
        raise explained(error, folder, None) from error
    except ValueError as error:
        raise UserError(f"{error}; delete it to train again") from None


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
        return "refused", _error_text(folder / ERRORS)
    return ("killed", NO_RECORD) if (folder / CONFIG).exists() else ("waiting", "it never started")


def _error_text(path: Path) -> str:
    try:
        return read_regular(path, ERROR_BYTES).decode(errors="replace").strip()
    except (OSError, ValueError) as error:
        return f"{path}: {error}"
