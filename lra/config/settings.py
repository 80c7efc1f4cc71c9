"""Define the types and sections of the configuration that several packages use."""

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
    """Section `checkpoint`: when a run saves its state, and whether it keeps its weights at the end."""

    minutes: PositiveFloat
    steps: PositiveInt | None
    keep: bool

    def due(self, step: int, seconds: float) -> bool:
        """Return True if a checkpoint is due after `step`, when the previous one is `seconds` old."""
        return seconds >= 60 * self.minutes or (self.steps is not None and step % self.steps == 0)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Generate:
    """Section `generate`: text generation by a language model after training."""

    prompt: Annotated[str, Field(min_length=1)]
    tokens: PositiveInt
    top_p: Annotated[float, Field(gt=0, le=1)]
