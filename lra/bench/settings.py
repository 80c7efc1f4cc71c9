"""What a configuration of `lra-bench` means."""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from omegaconf import DictConfig
from pydantic import Field, PositiveFloat, PositiveInt

from lra.config import configure
from lra.config.settings import Precision
from lra.core.errors import UserError

What = Literal["layer", "model", "step", "epoch", "profile", "accuracy", "host"]
Direction = Literal["forward", "train"]


@dataclass(frozen=True, kw_only=True)
class BenchSettings:
    """The checked configuration; the fields are the keys of `conf/bench.yaml`."""

    what: What
    subjects: Annotated[list[str], Field(min_length=1)]
    lengths: Annotated[list[PositiveInt], Field(min_length=1)]
    directions: Annotated[list[Direction], Field(min_length=1)]
    batch: PositiveInt
    data: Literal["random", "real"]
    rounds: PositiveInt
    memory_limit: PositiveFloat | None
    out: str | None
    task: dict[str, Any]
    attention: dict[str, Any]
    protocol: dict[str, str]
    model: dict[str, Any]
    train: dict[str, Any]
    seed: Annotated[int, Field(ge=0, lt=2**63)]
    precision: Precision
    device: Literal["auto", "cpu", "cuda"]
    threads: PositiveInt
    cache: str
    data_dir: str | None
    workers: PositiveInt | None
    packages: list[str]
    start: ClassVar[None] = None  # weights are drawn
    pretrain: ClassVar[None] = None  # nothing is trained before


def settings_of(cfg: DictConfig) -> BenchSettings:
    """Check names and types of a composed configuration."""
    values = configure.plain(cfg)
    configure.check(BenchSettings, values, "")
    twice = next((length for length in values["lengths"] if values["lengths"].count(length) > 1), None)
    if twice is not None:
        raise UserError(f"lengths={values['lengths']}: {twice} stands there twice")
    return BenchSettings(**values)
