"""The record of a run: its numbers, and the configuration, data, code and machine that produced them."""

import hashlib
import json
import math
import os
import reprlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, FiniteFloat, ValidationError, model_validator

from lra.core import files
from lra.core.errors import UserError
from lra.core.files import digest, explained, open_regular, read_json, write_json
from lra.records.names import METRICS
from lra.records.names import RECORD as NAME

CONTENTS_BYTES = 2**32  # limit for a file beside a record
SCHEMA = 2  # of records and declarations
DATA_PATHS = ("data", "documents", "folder", "vocab")  # options of tasks that name files
RULES = ("last", "best_val", "best_test")

T = TypeVar("T", bound=BaseModel)
Name = Annotated[str, Field(min_length=1)]
Count = Annotated[int, Field(ge=0)]
Percent = Annotated[float, Field(ge=0, le=100)]
Measure = Annotated[float, Field(ge=0)]
Rule = Literal["last", "best_val", "best_test"]


def _finite(value: Any) -> Any:
    """Replace non-finite numbers by None: JSON has none."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


Loss = Annotated[FiniteFloat | None, BeforeValidator(_finite)]


class _Part(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")


class Group(_Part):
    """Counts of a group of test examples; `baseline`: correct answers of a trivial baseline."""

    examples: Annotated[Count, Field(ge=1)]
    correct: Count
    baseline: Count = 0

    @model_validator(mode="after")
    def _at_most_all(self) -> Self:
        if max(self.correct, self.baseline) > self.examples:
            raise ValueError(f"expected at most {self.examples} correct examples")
        return self


class SplitResult(Group):
    """A result on the validation or test split: accuracy in percent, loss in nats, the step of the weights."""

    accuracy: Percent
    loss: Loss
    perplexity: Loss = None
    step: Count


class CalibrationBin(_Part):
    """Predictions of similar confidence."""

    confidence: Annotated[float, Field(ge=0, le=1)]
    accuracy: Percent
    examples: Annotated[Count, Field(ge=1)]


class TokenCounts(_Part):
    computed: Count
    real: Count = 0


class Milestone(_Part):
    """Steps, tokens and seconds after which a validation accuracy was first reached."""

    step: Count
    tokens: Count
    seconds: Measure


class TableName(_Part):
    """Name and complexity in tables of an attention from outside this package."""

    name: Name
    complexity: str


class Provenance(BaseModel):
    """Code, data and machine of a run."""

    model_config = ConfigDict(strict=True, extra="allow")

    commit: str | None
    dirty: bool | None
    config_sha256: str
    data_sha256: str | None
    packages: dict[str, str]
    python: str
    cpu: str
    threads: Count
    device: str
    precision: str


class RunRecord(_Part):
    """`record.json` of a run.

    Args:
        spec: facts of the task that the model depends on (`lra.data.TaskSpec`).
        classes: names of the classes, for tasks that classify.
        config: the run's identity.
        files: SHA-256 of each file beside the record.
        test: results by selection rule.
        selection: the rule of the run's recipe.
    """

    task: Name
    task_version: int
    attention: Name
    variant: Name
    protocol: Name
    settings: dict[Name, Any]
    seed: int
    selection: Rule
    metric: Literal["accuracy", "perplexity"]
    row: TableName | None = None
    spec: dict[str, Any] | None = None
    classes: list[str] = []
    status: Literal["finished", "diverged", "failed", "paused"]
    reason: str = ""
    steps: Count = 0
    ended: Literal["steps", "no progress", "solved"] | None = None
    reached: dict[str, Milestone] = {}
    processes: Annotated[Count, Field(ge=1)] = 1
    validation: dict[Literal["best", "last"], SplitResult] = {}
    test: dict[Rule, SplitResult] = {}
    baselines: dict[Name, float] = {}
    test_in_train: Percent | None = None
    diagnostics: dict[Name, dict[str, Group]] = {}
    calibration: list[CalibrationBin] = []
    calibration_error: float | None = None
    seconds: dict[Name, Measure] = {}
    pretrain: dict[str, Any] | None = None
    init: dict[str, Any] | None = None
    tokens: TokenCounts | None = None
    tokens_per_second: Measure | None = None
    resumes: Count = 0
    inexact: list[str] = []
    parameters: Count = 0
    trainable_parameters: Count = 0
    full_pattern: bool = False
    checked: Any = None
    auto: dict[str, Any] = {}
    files: dict[str, str] = {}
    peak_memory_bytes: Count | None = None
    config: dict[str, Any]
    provenance: Provenance

    @model_validator(mode="after")
    def _tested(self) -> Self:
        if self.status == "finished" and self.selection not in self.test:
            raise ValueError(f"finished, but it has no test result for {self.selection}")
        if self.status == "finished" and not {"train", "evaluate"} <= self.seconds.keys():
            raise ValueError("finished, but it has no seconds.train and seconds.evaluate")
        return self

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read `record.json`. Raises ValueError with the path."""
        try:
            return checked(cls, read(path))
        except ValueError as error:
            raise ValueError(str(error) if str(path) in str(error) else f"{path}: not a record: {error}") from None

    def write(self, folder: Path) -> None:
        """Write `record.json` into `folder`."""
        write(folder, self.values())

    def values(self) -> dict[str, Any]:
        """Return the fields that were set, as JSON values."""
        return self.model_dump(mode="json", exclude_unset=True)

    def score(self, rule: str) -> float | None:
        """Return the test accuracy in percent, or the perplexity, under a selection rule."""
        result = self.test.get(rule)  # type: ignore[call-overload]
        return None if result is None else getattr(result, self.metric)

    @property
    def goal(self) -> float | None:
        """Validation accuracy at which training ends as solved."""
        return self.config.get("train", {}).get("goal")

    @property
    def solved(self) -> bool:
        """True if validation reached the goal at two consecutive evaluations, or at the last one."""
        if self.goal is None or self.status != "finished":
            return False
        last = self.validation.get("last")
        return self.ended == "solved" or (last is not None and last.accuracy >= self.goal)


def checked(model: type[T], values: Any) -> T:
    """Validate `values`. Raises ValueError with the first wrong key, what was expected and what was found."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise ValueError(fault(error)) from None


def fault(error: ValidationError) -> str:
    """Describe the first error in one line."""
    first = error.errors(include_url=False)[0]
    key = ".".join(map(str, first["loc"]))
    if first["type"] == "value_error":
        return f"{key}: {first['ctx']['error']}" if key else str(first["ctx"]["error"])
    value = "nothing" if first["type"] == "missing" else reprlib.repr(first["input"])
    return f"{key or 'the file'}: {first['msg']}, found {value}"


def read(path: Path) -> dict[str, Any]:
    """Read a signed JSON object, without its SHA-256. Raises ValueError with the path if it is damaged."""
    try:
        return unsigned(read_json(path))
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: not a readable record: {error}") from None


def unsigned(values: Any) -> dict[str, Any]:
    """Check schema and SHA-256 of a signed object and return it without them. Raises ValueError."""
    if not isinstance(values, dict) or values.get("schema") != SCHEMA:
        raise ValueError(f"expected schema {SCHEMA}")
    if values.pop("sha256", None) != digest(values):
        raise ValueError("its content does not match its SHA-256")
    del values["schema"]
    return values


def signed(values: dict[str, Any]) -> dict[str, Any]:
    """Add the schema and a SHA-256 of the rest; non-finite numbers become null."""
    whole = _finite({**values, "schema": SCHEMA})
    return {"sha256": digest(whole), **whole}


def write(folder: Path, values: dict[str, Any]) -> None:
    """Write `values`, signed, as `record.json`."""
    write_json(folder / NAME, signed(values))


def sha256(folder: Path, *names: str) -> dict[str, str]:
    """Return the SHA-256 of those of the files that a folder has, by name."""
    return {name: files.sha256(folder / name) for name in names if (folder / name).is_file()}


class DeclaredCell(BaseModel):
    """A cell of a sweep: the seeds to train and the row of the report to compare it with."""

    model_config = ConfigDict(strict=True, extra="ignore")

    protocol: Name
    selection: Rule
    task_name: Name
    attention: Name
    variant: Name
    settings: dict[Name, Any]
    folder: Name
    seeds: list[int]
    reference: Name | None = None
    margin: Annotated[FiniteFloat, Field(gt=0)] | None = None


def read_declared(path: Path) -> list[dict[str, Any]]:
    """Read the cells of a `sweep.json`. Raises ValueError with the path."""
    try:
        return cells_of(read_json(path))
    except (OSError, ValueError, TypeError) as error:
        raise ValueError(f"{path}: not a declaration of a sweep: {error}") from None


def cells_of(declaration: Any) -> list[dict[str, Any]]:
    """Check a declaration and return its cells. Raises ValueError, or TypeError."""
    if not isinstance(declaration, dict) or declaration.get("schema") != SCHEMA:
        raise ValueError(f"expected schema {SCHEMA}")
    cells = declaration.get("cells")
    if declaration.get("sha256") != digest(cells):
        raise ValueError("its content does not match its SHA-256")
    for cell in cells:
        checked(DeclaredCell, cell)
    return cells


def merged(earlier: list[dict[str, Any]], later: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Merge the cells of two declarations: a cell in both is taken from the later one, with the seeds of both."""
    cells = {cell["folder"]: cell for cell in earlier}
    for cell in later:
        seeds = cells.get(cell["folder"], cell)["seeds"]
        cells[cell["folder"]] = {**cell, "seeds": sorted({*seeds, *cell["seeds"]})}
    return [cells[folder] for folder in sorted(cells)]


def declare(path: Path, cells: list[dict[str, Any]]) -> None:
    """Write a `sweep.json`."""
    write_json(path, declaration(cells))


def declaration(cells: list[dict[str, Any]]) -> dict[str, Any]:
    """Return cells with their SHA-256."""
    return {"schema": SCHEMA, "sha256": digest(cells), "cells": cells}


def without_paths(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration without the paths of its data, which are the same data under every spelling."""
    task = config.get("task", {})
    return {**config, "task": {key: value for key, value in task.items() if key not in DATA_PATHS or value is None}}


def differences(first: Any, other: Any, key: str = "") -> list[tuple[str, Any, Any]]:
    """List (dotted key, value, other value) wherever two nested dictionaries differ; a missing key is None."""
    if isinstance(first, dict) and isinstance(other, dict):
        names = [*first, *(name for name in other if name not in first)]
        parts = ((first.get(name), other.get(name), f"{key}.{name}" if key else name) for name in names)
        return [change for part in parts for change in differences(*part)]
    return [] if first == other else [(key, first, other)]


class Metrics:
    """`metrics.jsonl`: one line per evaluation, each flushed.

    Args:
        earlier: what `write` returned before the checkpoint that a run resumes from; later lines are removed.
    """

    def __init__(self, folder: Path, earlier: dict[str, Any] | None) -> None:
        self._path = folder / METRICS
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = open_regular(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
            self._file.seek(0)
            kept = self._file.read(earlier["bytes"]) if earlier else b""
            self._sha = hashlib.sha256(kept)
            if earlier and self._sha.hexdigest() != earlier["sha256"]:
                raise UserError(
                    f"{self._path} is not what it was when the run was paused; delete the folder to train anew"
                )
            self._file.truncate(len(kept))
        except ValueError as error:
            raise UserError(f"{self._path}: {error}; delete it") from None
        except OSError as error:
            raise explained(error, self._path, 0) from error

    def write(self, **line: Any) -> dict[str, Any]:
        """Add a line and return the size and the SHA-256 of the file."""
        data = (json.dumps(_finite(line)) + "\n").encode()
        try:
            self._file.write(data)
            self._file.flush()
        except OSError as error:
            raise explained(error, self._path, len(data)) from error
        self._sha.update(data)
        return {"bytes": self._file.tell(), "sha256": self._sha.hexdigest()}

    def read(self) -> bytes:
        """Return the content of the file."""
        return self._path.read_bytes()

    def __enter__(self) -> "Metrics":
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):  # a line that could not be written was reported
            self._file.close()
