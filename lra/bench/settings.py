"""Define the configuration of `lra-bench`."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, PositiveInt
from pydantic.dataclasses import dataclass

from lra.config.settings import Precision, Products
from lra.config.values import STRICT
from lra.network.architecture import Architecture
from lra.training.recipe import Recipe


@dataclass(frozen=True, kw_only=True, config=STRICT)
class BenchSettings:
    """The checked configuration; the fields are the keys of `conf/bench.yaml`."""

    what: Literal["step", "layer", "model"]
    subjects: Annotated[list[str], Field(min_length=1)]
    lengths: Annotated[list[PositiveInt], Field(min_length=1)]
    batch: PositiveInt
    rounds: PositiveInt
    out: str | None
    task: dict[str, Any]
    attention: dict[str, Any]
    protocol: dict[str, str]
    model: Architecture
    train: Recipe
    seed: Annotated[int, Field(ge=0, lt=2**63)]
    precision: Precision
    device: Literal["auto", "cpu", "cuda"]
    threads: PositiveInt
    products: Products
    cache: str
    data_dir: str | None
    workers: PositiveInt | None
    # Settings of lra-train that `assemble` reads: no loggers, random initial weights, no self-pretraining.
    logger: ClassVar[dict[str, Any]] = {}
    init: ClassVar[None] = None
    start: ClassVar[None] = None
    pretrain: ClassVar[None] = None
