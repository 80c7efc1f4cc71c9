"""Check a composed configuration of `lra-train`, and derive the key that identifies a run."""

from dataclasses import asdict, is_dataclass
from functools import cached_property
from typing import Annotated, Any, Literal

from omegaconf import DictConfig
from pydantic import AfterValidator, Field, PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass

from lra.config import configure
from lra.config.settings import Checkpoints, Cores, Generate, Precision, Products, Seed
from lra.config.values import STRICT, parsed
from lra.core import code
from lra.init import InitialWeights
from lra.network.architecture import Architecture
from lra.training.recipe import Pretrain, Recipe

# Keys whose values affect results; `Settings.config_key` adds `init`, `pretrain` and the user's code if there are any.
RESULT_KEYS = ("task", "attention", "protocol", "model", "train", "seed", "precision")


def _folder(path: str) -> str:
    if not path or path.startswith("~"):
        raise ValueError("expected a folder, written without ~")
    return path


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Protocol:
    """The keys of `protocol`: settings of a protocol that the configurations of attentions refer to."""

    simple_scale: str
    simple_dropout_on: str
    softmax_scale: str


@dataclass(frozen=True, kw_only=True, config=STRICT)
class SweepSettings:
    """The keys of `sweep`: the sweep that a run belongs to, and options of its report."""

    varied: list[str]
    jobs: PositiveInt
    tokens: Annotated[int, Field(gt=0, le=2**53)] | None
    reference: Annotated[str, Field(min_length=1)] | None
    margin: PositiveFloat


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Settings:
    """The checked configuration; the fields are the keys of `conf/train.yaml`.

    `task`, `attention`, `init` and the entries of `logger` are options with `_target_`, the class that checks them.
    """

    task: dict[str, Any]
    attention: dict[str, Any]
    protocol: Protocol
    model: Architecture
    train: Recipe
    init: dict[str, Any] | None
    pretrain: Pretrain | None
    seed: Seed
    precision: Precision
    device: Literal["auto", "cpu", "cuda"]
    threads: Cores | None
    products: Products
    out: Annotated[str, AfterValidator(_folder)]
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
    checkpoint: Checkpoints
    logger: dict[str, Any]
    sweep: SweepSettings
    generate: Generate

    @cached_property
    def start(self) -> InitialWeights | None:
        """Source of the initial weights that `init` names; None if `init` is not set."""
        if self.init is None:
            return None
        with configure.blamed("init", self.init):
            return configure.build(self.init, "init", kind=InitialWeights)()

    @property
    def lacks_weights(self) -> bool:
        """True if the file of initial weights is missing, for example because another run must write it first."""
        return self.start is not None and not self.start.path.is_file()

    @cached_property
    def config_key(self) -> dict[str, Any]:
        """Settings that affect results, with SHA-256 of initial weights (not their folder) and of the user's code.

        Raises UserError if the file of initial weights is missing.
        """
        values = {key: getattr(self, key) for key in RESULT_KEYS}
        chosen = {key: asdict(value) if is_dataclass(value) else value for key, value in values.items()}  # type: ignore
        if self.start is not None:
            options = {key: value for key, value in (self.init or {}).items() if key not in ("folder", "_partial_")}
            chosen["init"] = {**options, "sha256": self.start.sha256}
        if self.pretrain is not None:
            chosen["pretrain"] = asdict(self.pretrain)
        configure.add_working_folder_to_path()
        if sources := code.fingerprints(*code.targets(chosen | {"init": self.init})):
            chosen["code"] = sources
        return chosen


def settings_of(cfg: DictConfig) -> Settings:
    """Return a composed configuration as checked settings. Raises UserError that names the key of a mistake."""
    return parsed(Settings, configure.plain(cfg))
