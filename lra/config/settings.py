"""The checked form of a composed configuration."""

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any, Literal

from omegaconf import DictConfig
from pydantic import Field, PositiveFloat, PositiveInt

from lra.config import configure
from lra.core import code, files, paths
from lra.core.errors import UserError, did_you_mean

RESULT_KEYS = ("task", "attention", "protocol", "model", "train", "seed", "precision")

Precision = Literal["fp32", "bf16"]
Products = Literal["auto", "mkl", "onednn"]
Seed = Annotated[int, Field(ge=0, le=2**53)]  # JSON keeps whole numbers up to 2**53 exactly
Cores = Annotated[int, Field(gt=0, le=1024)]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The checked configuration; the fields are the keys of `conf/train.yaml`."""

    task: dict[str, Any]
    attention: dict[str, Any]
    protocol: dict[str, str]
    model: dict[str, Any]
    train: dict[str, Any]
    init: dict[str, Any] | None
    pretrain: dict[str, Any] | None
    seed: Seed
    precision: Precision
    device: Literal["auto", "cpu", "cuda"]
    threads: Cores | None
    products: Products
    out: str
    kept: str | None
    overwrite: bool
    rates: str | None
    describe: bool
    rerun: str | None
    probe: PositiveInt | None
    cache: str
    data_dir: str | None
    workers: Cores | None
    packages: list[str]
    also: list[str] | str
    sweep_minutes: PositiveFloat | None
    max_hours: PositiveFloat | None
    resume: Literal["exact", "inexact"]
    checkpoint: dict[str, Any]
    logger: dict[str, Any]
    sweep: dict[str, Any]
    generate: dict[str, Any]

    @cached_property
    def start(self) -> Any:
        """The source of the initial weights (`lra.init.InitialWeights`); None: they are drawn."""
        if self.init is None:
            return None
        with configure.blamed("init", self.init):
            return configure.build(self.init, "init")()

    @cached_property
    def identity(self) -> dict[str, Any]:
        """Everything that decides the numbers, the SHA-256 of the user's own source files included, without paths.

        Raises:
            UserError: the file of initial weights is missing, whose digest is part of the identity.
        """
        chosen = {key: getattr(self, key) for key in RESULT_KEYS}
        if self.start is not None:
            options = {key: value for key, value in (self.init or {}).items() if key not in ("folder", "_partial_")}
            chosen["init"] = {**options, "sha256": self.start.sha256}
        if self.pretrain is not None:
            chosen["pretrain"] = self.pretrain
        configure.look_here_too()
        if sources := code.fingerprints(*code.targets(chosen | {"init": self.init})):
            chosen["code"] = sources
        return chosen


@dataclass(frozen=True, kw_only=True)
class Checkpoints:
    """When a run saves its state, and whether it keeps its weights; the keys of `checkpoint`."""

    minutes: PositiveFloat
    steps: PositiveInt | None
    keep: bool

    def due(self, step: int, seconds: float) -> bool:
        """True if a checkpoint is due after `step`, `seconds` after the previous one."""
        return seconds >= 60 * self.minutes or (self.steps is not None and step % self.steps == 0)


@dataclass(frozen=True, kw_only=True)
class Generate:
    """Text generation by a language model after training; the keys of `generate`."""

    prompt: Annotated[str, Field(min_length=1)]
    tokens: PositiveInt
    top_p: Annotated[float, Field(gt=0, le=1)]


@dataclass(frozen=True, kw_only=True)
class Siblings:
    """A run's sweep, and options of its report; the keys of `sweep`."""

    varied: list[str]
    jobs: PositiveInt
    tokens: Annotated[int, Field(gt=0, le=2**53)] | None
    reference: Annotated[str, Field(min_length=1)] | None
    margin: PositiveFloat


def settings_of(cfg: DictConfig) -> Settings:
    """Check names and types of a composed configuration."""
    return checked(configure.plain(cfg))


def checked(values: dict[str, Any]) -> Settings:
    """Construct settings from plain values. Raises UserError with the key of the first mistake."""
    configure.check(Settings, values, "")
    for key, kind in (("generate", Generate), ("checkpoint", Checkpoints), ("sweep", Siblings)):
        configure.check(kind, values[key], f"{key}.")
    known = files.read_yaml(paths.conf_dir() / "protocol" / "paper.yaml")["protocol"]
    for key in values["protocol"]:
        if key not in known:
            raise UserError(f"protocol.{key}: unknown key; {did_you_mean(key, known)}")
    if not values["out"] or values["out"].startswith("~"):
        raise UserError(f"out={values['out']}: expected a folder, written without ~")
    return Settings(**values)
