"""Define the record of a run: its results, and the configuration, data, code and machine that produced them."""

import math
import reprlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from zipfile import BadZipFile

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, FiniteFloat, ValidationError, model_validator

from lra.core import files
from lra.core.errors import UserError
from lra.core.files import digest, read_json, write_json
from lra.records.names import RECORD as NAME

SCHEMA = 2  # format version of signed JSON objects (see `signed`), stored under `schema`
DATA_PATHS = ("data", "documents", "folder", "vocab")  # options of tasks whose values are paths
RULES = ("last", "best_val", "best_test")  # rules that select the weights to test

Name = Annotated[str, Field(min_length=1)]
Count = Annotated[int, Field(ge=0)]
Percent = Annotated[float, Field(ge=0, le=100)]
Measure = Annotated[float, Field(ge=0)]
Rule = Literal["last", "best_val", "best_test"]


def finite(value: Any) -> Any:
    """Return a nested value with NaN and infinity replaced by None, because JSON cannot represent them."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


Loss = Annotated[FiniteFloat | None, BeforeValidator(finite)]


class _Part(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")


class Group(_Part):
    """Counts of a group of test examples: all, those correct, and those that a trivial baseline predicts correctly."""

    examples: Annotated[Count, Field(ge=1)]
    correct: Count
    baseline: Count = 0

    @model_validator(mode="after")
    def _at_most_all(self) -> Self:
        if max(self.correct, self.baseline) > self.examples:
            raise ValueError(f"expected at most {self.examples} correct examples")
        return self


class SplitResult(Group):
    """Result on the validation or test split."""

    accuracy: Percent
    loss: Loss  # mean over predictions, in nats
    perplexity: Loss = None
    not_finite: Count = 0  # number of predictions with an output that is not finite; they count as wrong
    step: Count  # training step after which the weights were evaluated


class TokenCounts(_Part):
    """Number of tokens that the training computed: `computed` with padding, `real` without padding."""

    computed: Count
    real: Count = 0


class Milestone(_Part):
    """Training steps, tokens and seconds until a given validation accuracy was first reached."""

    step: Count
    tokens: Count
    seconds: Measure


class TableName(_Part):
    """Name and complexity under which a user's attention is shown in tables."""

    name: Name
    complexity: str


class Provenance(_Part):
    """Code, data and machine of a run, and the times at which it began and ended."""

    lra: str
    commit: str | None
    dirty: bool | None
    config_sha256: str
    data_sha256: str | None
    packages: dict[str, str]
    python: str
    platform: str
    cpu: str
    cpu_model: str | None = None
    instructions: str
    threads: Count
    device: str
    backend: str | None = None  # implementation of the recurrences
    products: str | None = None  # library that computes fp32 matrix products
    precision: str
    noise: int  # version of the algorithm that draws dropout and Gumbel noise (`NOISE_VERSION`)
    started: str
    finished: str


class RunRecord(_Part):
    """Content of `record.json`, the record of a run."""

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
    spec: dict[str, Any] = {}  # properties of the task that the model depends on (fields of `TaskSpec`)
    classes: list[str] = []
    status: Literal["finished", "diverged", "failed", "paused"]
    reason: str = ""
    steps: Count = 0
    ended: Literal["steps", "no progress", "solved"] | None = None  # `solved`: the goal was reached
    reached: dict[str, Milestone] = {}  # milestones by validation accuracy in percent
    processes: Annotated[Count, Field(ge=1)] = 1
    validation: dict[Literal["best", "last"], SplitResult] = {}
    test: dict[Rule, SplitResult] = {}
    baselines: dict[Name, float] = {}
    test_in_train: Percent | None = None
    diagnostics: dict[Name, dict[str, Group]] = {}
    seconds: dict[Name, Measure] = {}
    pretrain: dict[str, Any] | None = None
    init: dict[str, Any] | None = None
    tokens: TokenCounts | None = None
    tokens_per_second: Measure | None = None
    resumes: Count = 0
    inexact: list[str] = []  # conditions that had changed when the run was resumed with `resume=inexact`
    parameters: Count = 0
    trainable_parameters: Count = 0
    full_pattern: bool = False
    checked: Any = None
    files: dict[str, str] = {}  # SHA-256 of metrics, weights and further results in the run's folder, by file name
    kept: str = ""  # results folder from which a sweep has reused the run; empty if it was trained here
    peak_memory_bytes: Count | None = None
    config: dict[str, Any]  # the configuration that identifies the run
    provenance: Provenance

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read `record.json`. Raises UserError."""
        with readable(path):
            return cls.model_validate(unsigned(read_json(path)))

    def values(self) -> dict[str, Any]:
        """Return the fields that were set explicitly, as JSON values."""
        # `exclude_unset`, so that a field added to this class does not change the SHA-256 of old records.
        return self.model_dump(mode="json", exclude_unset=True)

    def score(self, rule: str) -> float | None:
        """Return the test accuracy in percent, or perplexity, under a selection rule; None if there is no result."""
        result = self.test.get(rule)  # type: ignore[call-overload]
        return None if result is None else getattr(result, self.metric)

    @property
    def goal(self) -> float | None:
        """Validation accuracy in percent at which training ends as solved; None if the run has no goal."""
        return self.config.get("train", {}).get("goal")

    @property
    def solved(self) -> bool:
        """True if validation reached the goal at two consecutive evaluations, or at the last one."""
        if self.goal is None or self.status != "finished":
            return False
        last = self.validation.get("last")
        return self.ended == "solved" or (last is not None and last.accuracy >= self.goal)


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Context manager that turns errors while reading a file into a UserError that names the file."""
    try:
        yield
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key, found = ".".join(map(str, first["loc"])), reprlib.repr(first["input"])
        raise UserError(f"{path}: {key}: {first['msg']}, found {found}") from None
    except (OSError, ValueError, KeyError, TypeError, EOFError, BadZipFile, yaml.YAMLError) as error:
        raise UserError(f"{path}: not readable: {' '.join(str(error).split())}") from None


def read(path: Path) -> dict[str, Any]:
    """Return the signed JSON object in a file, without schema and SHA-256. Raises UserError."""
    with readable(path):
        return unsigned(read_json(path))


def unsigned(values: Any) -> dict[str, Any]:
    """Check the schema and SHA-256 of a signed object, remove both from it and return it. Raises ValueError."""
    if not isinstance(values, dict) or values.get("schema") != SCHEMA:
        raise ValueError(f"expected schema {SCHEMA}")
    if values.pop("sha256", None) != digest(values):  # `signed` computes it from all other entries
        raise ValueError("its content does not match its SHA-256")
    del values["schema"]
    return values


def signed(values: dict[str, Any]) -> dict[str, Any]:
    """Return `values` with `schema` and `sha256` (digest of all other entries); non-finite numbers become None."""
    whole = finite({**values, "schema": SCHEMA})
    return {"sha256": digest(whole), **whole}


def write(folder: Path, values: dict[str, Any]) -> None:
    """Sign `values` and write them as `record.json` into `folder`."""
    write_json(folder / NAME, signed(values))


def sha256(folder: Path, *names: str) -> dict[str, str]:
    """Return the SHA-256 of each of the files `names` that exists in a folder, by name."""
    return {name: files.sha256(folder / name) for name in names if (folder / name).is_file()}


class DeclaredCell(BaseModel):
    """A cell of a sweep, its seeds, and `reference`, the name of the report's row with which the cell is compared."""

    model_config = ConfigDict(strict=True)

    task: Name
    protocol: Name
    attention: Name
    variant: Name
    settings: dict[Name, Any]
    task_name: Name
    selection: Rule
    folder: Name
    seeds: list[int]
    reference: Name | None = None
    margin: Annotated[FiniteFloat, Field(gt=0)] | None = None


class Sweep(BaseModel):
    """Content of `sweep.json`: the cells of all sweeps with the same results folder.

    A report compares the cells with the runs to list missing runs.
    """

    cells: list[DeclaredCell] = []

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read `sweep.json`; a missing file gives an empty sweep. Raises UserError if it is damaged."""
        with readable(path):
            return cls.model_validate(read_json(path)) if path.exists() else cls()

    def merged(self, later: "Sweep", place: Path = Path()) -> "Sweep":
        """Return a sweep with the cells of this sweep and of `later`.

        The cell folders of `later` are relative to the folder `place`. A cell that both sweeps contain is taken from
        `later`, with the seeds of both.
        """
        cells = {cell.folder: cell for cell in self.cells}
        for cell in later.cells:
            folder = (place / cell.folder).as_posix()
            seeds = {*cell.seeds, *(cells[folder].seeds if folder in cells else ())}
            cells[folder] = cell.model_copy(update={"folder": folder, "seeds": sorted(seeds)})
        return Sweep(cells=[cells[folder] for folder in sorted(cells)])


def without_paths(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration without the paths of its data: different paths may lead to the same data."""
    task = config.get("task", {})
    return {**config, "task": {key: value for key, value in task.items() if key not in DATA_PATHS or value is None}}


def differences(first: Any, other: Any, key: str = "") -> list[tuple[str, Any, Any]]:
    """Return (dotted key, first value, other value) wherever two nested dictionaries differ; missing keys give None."""
    if isinstance(first, dict) and isinstance(other, dict):
        names = [*first, *(name for name in other if name not in first)]
        parts = ((first.get(name), other.get(name), f"{key}.{name}" if key else name) for name in names)
        return [change for part in parts for change in differences(*part)]
    return [] if first == other else [(key, first, other)]
