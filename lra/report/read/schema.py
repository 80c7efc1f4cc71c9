"""What a report expects of records and of a sweep.json: every key that it reads, its type and its range."""

import reprlib
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, FiniteFloat, ValidationError, model_validator

from lra.core.errors import printable
from lra.records import record

T = TypeVar("T", bound=BaseModel)
METRICS = ("accuracy", "perplexity")
RULES = ("last", "best_val", "best_test")

Name = Annotated[str, Field(min_length=1)]
Count = Annotated[int, Field(ge=0, le=2**53)]  # JavaScript, too, knows these one by one
Number = Annotated[int, Field(ge=-(2**53), le=2**53)]
Percent = Annotated[float, Field(ge=0, le=100)]
Measure = Annotated[float, Field(ge=0, le=1e15)]
Value = Annotated[float, Field(ge=-1e15, le=1e15)]


def _below(path: str) -> str:
    if PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts:
        raise ValueError(f"expected a folder below that of the sweep.json, found {path!r}")
    return path


class Checked(BaseModel):
    """Other keys than these may stand there, too."""

    model_config = ConfigDict(strict=True, extra="ignore")


class Group(Checked):
    """Test examples of one kind."""

    examples: Annotated[Count, Field(ge=1)]
    correct: Count
    baseline: Count = 0

    @model_validator(mode="after")
    def _a_part(self) -> "Group":
        if max(self.correct, self.baseline) > self.examples:
            raise ValueError(f"expected at most all of {self.examples} examples to be correct")
        return self


class Entry(Group):
    """A result on one split; the loss or the perplexity is null where it is not finite."""

    accuracy: Percent
    loss: FiniteFloat | None
    perplexity: Annotated[FiniteFloat, Field(ge=0)] | None = None
    step: Count


class Bin(Checked):
    """Predictions of about one confidence."""

    confidence: Annotated[float, Field(ge=0, le=1)]
    accuracy: Percent
    examples: Annotated[Count, Field(ge=1)]


class Packages(Checked):
    torch: str


class Provenance(Checked):
    commit: str | None
    dirty: bool | None
    config_sha256: str
    data_sha256: str | None
    packages: Packages
    python: str
    cpu: str
    threads: Count
    device: str
    precision: str


class TrainConfig(Checked):
    goal: FiniteFloat | None = None
    steps: Any = None

    @model_validator(mode="after")
    def _race(self) -> "TrainConfig":
        if self.goal is not None and not isinstance(self.steps, int):
            raise ValueError("expected a whole number of steps beside the goal")
        return self


class Config(Checked):
    model: dict[str, Any] = {}
    attention: dict[str, Any] = {}
    train: TrainConfig = TrainConfig()
    init: dict[str, Any] | None = None
    pretrain: dict[str, Any] | None = None


class TokenCounts(Checked):
    computed: Count
    real: Count = 0


class Predicted(Checked):
    """How well tokens of inputs were predicted; of grey values there is the loss alone."""

    loss: FiniteFloat | None = None
    perplexity: Annotated[FiniteFloat, Field(ge=0)] | None = None
    accuracy: Percent | None = None


class Pretraining(Checked):
    """The phase before a training; its seconds are in those of the run, too."""

    tokens: TokenCounts
    seconds: dict[Name, Measure]
    validation: dict[Literal["best", "last"], Predicted] = {}


class Row(Checked):
    """How tables name an attention that is not ours."""

    name: Name
    complexity: str


class Reached(Checked):
    """When a validation accuracy was first reached: after so many steps, tokens, and seconds, evaluations included."""

    step: Count
    tokens: Count
    seconds: Measure


class Record(Checked):
    """`files`: the SHA-256 of what lies beside the record, by its name in that folder."""

    task: Name
    task_version: Number
    attention: Name
    variant: Name
    protocol: Name
    settings: dict[Name, Any]
    seed: Number
    selection: Literal[RULES]
    metric: Literal[METRICS]
    row: Row | None = None
    status: Literal[record.STATUSES]
    reason: str = ""
    steps: Count = 0
    ended: Literal["steps", "no progress", "solved"] | None = None
    reached: dict[Annotated[str, Field(pattern=r"^\d+$")], Reached] = {}
    test: dict[Literal[RULES], Entry] = {}
    validation: dict[Literal["best", "last"], Entry] = {}
    baselines: dict[Name, Value] = {}
    test_in_train: Percent | None = None
    diagnostics: dict[Name, dict[str, Group]] = {}
    calibration: list[Bin] = []
    seconds: dict[Name, Measure] = {}
    tokens: TokenCounts | None = None
    pretrain: Pretraining | None = None
    tokens_per_second: Measure | None = None
    parameters: Count = 0
    trainable_parameters: Count = 0
    processes: Annotated[Count, Field(ge=1)] = 1
    auto: dict[Name, Any] = {}
    peak_memory_bytes: Count | None = None
    resumes: Count = 0
    files: dict[Annotated[str, Field(pattern=r"^[\w-][\w.-]*$")], str] = {}
    config: Config
    provenance: Provenance

    @model_validator(mode="after")
    def _tested(self) -> "Record":
        if self.status in ("finished", "diverged") and "steps" not in self.model_fields_set:
            raise ValueError(f"{self.status}, but it has no steps")
        if self.status != "finished":
            return self
        if self.selection not in self.test:
            raise ValueError(f"finished, but it has no test result for {self.selection}")
        if not {"train", "evaluate"} <= self.seconds.keys():
            raise ValueError("finished, but it has no seconds.train and seconds.evaluate")
        lacking = [rule for rule, entry in self.test.items() if self.metric not in entry.model_fields_set]
        if lacking:
            raise ValueError(f"test.{lacking[0]} has no {self.metric}")
        return self


class Declared(Checked):
    """A cell of a sweep; those of before had no margin."""

    protocol: Name
    selection: Literal[RULES]
    task_name: Name
    attention: Name
    variant: Name
    settings: dict[Name, Any]
    folder: Annotated[str, AfterValidator(_below)]
    seeds: list[Number]
    reference: Name | None = None
    margin: Annotated[FiniteFloat, Field(gt=0)] | None = None


class _Train(Checked):
    steps: Count


class Steps(Checked):
    """A run's configuration, as far as its progress shows it."""

    train: _Train


class Evaluation(Checked):
    """A line of metrics.jsonl; a loss is null where it is not finite."""

    step: Count
    val_accuracy: Percent | None = None
    val_loss: FiniteFloat | None = None
    seconds: Measure = 0.0
    train_seconds: Measure = 0.0
    tokens: Count = 0
    tokens_real: Count = 0


class SweepFile(Checked):
    cells: list[Declared]


def check(model: type[T], value: Any) -> T:
    """Raises ValueError that names the first key that is not as the model says, what was expected and what found."""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise ValueError(fault(error)) from None


def fault(error: ValidationError) -> str:
    """The first thing that is wrong, in one line."""
    first = error.errors(include_url=False)[0]
    key = ".".join(map(str, first["loc"]))
    if first["type"] == "value_error":
        return f"{key}: {first['ctx']['error']}" if key else str(first["ctx"]["error"])
    expected = "Input should be a valid dictionary" if first["type"] == "model_type" else first["msg"]
    value = "nothing" if first["type"] == "missing" else reprlib.repr(first["input"])
    return f"{key or 'the file'}: {expected}, found {value}"


def cleaned(value: Any) -> Any:
    """A JSON value whose texts, keys included, are printable."""
    if isinstance(value, dict):
        return {printable(key): cleaned(item) for key, item in value.items()}
    if isinstance(value, list):
        return [cleaned(item) for item in value]
    return printable(value) if isinstance(value, str) else value


@dataclass(frozen=True)
class Question:
    """What a sweep asks: how each row differs from the `reference` system (None: from the Transformer, where there is
    one), where a difference below `margin` points does not matter."""

    reference: str | None
    margin: float
