"""Types and sections of configurations that several packages share."""

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt
from pydantic.dataclasses import dataclass

from lra.config.values import STRICT

Precision = Literal["fp32", "bf16"]
Products = Literal["auto", "mkl", "onednn"]
Seed = Annotated[int, Field(ge=0, le=2**53)]  # JSON keeps whole numbers up to 2**53 exactly
Cores = Annotated[int, Field(gt=0, le=1024)]


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Checkpoints:
    """When a run saves its state, and whether it keeps its weights; the keys of `checkpoint`."""

    minutes: PositiveFloat
    steps: PositiveInt | None
    keep: bool

    def due(self, step: int, seconds: float) -> bool:
        """True if a checkpoint is due after `step`, `seconds` after the previous one."""
        return seconds >= 60 * self.minutes or (self.steps is not None and step % self.steps == 0)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Generate:
    """Text generation by a language model after training; the keys of `generate`."""

    prompt: Annotated[str, Field(min_length=1)]
    tokens: PositiveInt
    top_p: Annotated[float, Field(gt=0, le=1)]
