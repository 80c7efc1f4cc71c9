"""Define recipes of training (optimiser, schedule, batches, stopping) and of self-pretraining on a task's inputs."""

import math
import re
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, Field, NonNegativeFloat, PositiveFloat, PositiveInt, with_config
from pydantic.dataclasses import dataclass
from typing_extensions import TypedDict

from lra.config.settings import Seed
from lra.config.values import STRICT
from lra.datasets.self_pretraining import Objective, inputs_of, spec_of
from lra.datasets.task import Task, TaskSpec
from lra.network.architecture import Group, belongs

if TYPE_CHECKING:
    from torch import Tensor

TOKENS = "embedding.tokens."  # prefix of the names of token-embedding weights
Fraction = Annotated[float, Field(gt=0, lt=1)]
Probability = Annotated[float, Field(ge=0, lt=1)]
OPEN_SCHEDULES = ("rsqrt", "constant")  # schedules whose rates do not depend on train.steps


def _times(value: str) -> str:
    if not re.fullmatch(r"\d*\.?\d+x", value) or float(value[:-1]) == 0:
        raise ValueError("expected a factor such as 2x")
    return value


Times = Annotated[str, AfterValidator(_times)]


@with_config(STRICT)
class GroupOverrides(TypedDict):
    """Peak learning rate and weight decay of a parameter group. None: as for other weights; `2x`: twice their rate."""

    rate: PositiveFloat | Times | None
    weight_decay: NonNegativeFloat | None


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Recipe:
    """The keys of `train` in the configuration. `micro_batch` and `eval_batch` change results by rounding only."""

    steps: PositiveInt
    batch_size: PositiveInt
    micro_batch: PositiveInt
    eval_batch: PositiveInt
    eval_every: PositiveInt
    lr: PositiveFloat
    warmup: PositiveInt
    schedule: Literal["rsqrt", "constant", "cosine", "cosine_to_zero", "triangular"]
    patience: PositiveInt | None
    progress: Annotated[float, Field(gt=0, lt=1)] | None
    goal: Annotated[float, Field(gt=0, le=100)] | None
    cooldown: PositiveInt | None
    weight_decay: NonNegativeFloat
    betas: Annotated[list[Probability], Field(min_length=2, max_length=2)]
    eps: PositiveFloat
    clip_norm: PositiveFloat | None
    freeze: list[Group] | None
    no_decay: list[Group] | None
    layer_decay: Annotated[float, Field(gt=0, lt=1)] | None
    groups: dict[str, GroupOverrides] | None
    compile: bool
    selection: Literal["last", "best_val", "best_test"]

    def __post_init__(self) -> None:
        # Each message begins with a key of the section; `parsed` puts `train.` or `pretrain.train.` before it.
        if self.cooldown is not None and self.schedule not in OPEN_SCHEDULES:
            raise ValueError(
                f"cooldown={self.cooldown}: schedule={self.schedule} falls by itself; expected "
                f"{' or '.join(OPEN_SCHEDULES)}"
            )
        if self.progress is not None and self.patience is None:
            raise ValueError(f"progress={self.progress:g}: patience=null; set patience to a number of evaluations")
        if self.micro_batch > self.batch_size:
            raise ValueError(f"micro_batch={self.micro_batch} is larger than batch_size={self.batch_size}")

    def learning_rate(self, step: int, last: int | None = None) -> float:
        """Return the learning rate lr * min(1, step / warmup) * schedule; the first update, step 0, has rate 0.

        rsqrt: 1 / sqrt(max(step, warmup)). cosine: half a period that begins after the warm-up and takes `steps` steps,
        so that the rate does not reach zero, as in Long Range Arena. cosine_to_zero: half a period that takes the
        `steps - warmup` steps left, as in the S4 family. triangular: linear from the peak to 1/32 of it (ULMFiT, Howard
        and Ruder 2018, eq. 3).

        Args:
            step: index of the update, from 0.
            last: number of steps of the run; in the last `cooldown` of them the rate falls linearly to zero. None:
                `steps`.
        """
        past, rest = max(0, step - self.warmup), max(1, self.steps - self.warmup)  # steps after warm-up: so far, in all
        factor = {
            "rsqrt": 1 / math.sqrt(max(step, self.warmup)),
            "constant": 1.0,
            "cosine": 0.5 * (1 + math.cos(math.pi * past / self.steps)),
            "cosine_to_zero": 0.5 * (1 + math.cos(math.pi * past / rest)),
            "triangular": 1 - (1 - 1 / 32) * past / rest,
        }[self.schedule]
        remaining = (self.steps if last is None else last) - step
        cooling = 1.0 if self.cooldown is None else min(1.0, remaining / self.cooldown)
        return self.lr * min(1.0, step / self.warmup) * factor * cooling

    def rate_factor_and_decay(self, name: str, group: str | None) -> tuple[float, float]:
        """Return the learning-rate factor and the weight decay of a parameter; `group` is its group, if any."""
        usual = 0.0 if belongs(name, self.no_decay or ()) else self.weight_decay
        if group is None:
            return 1.0, usual
        options = (self.groups or {})[group]
        rate, decay = options["rate"], options["weight_decay"]
        decay = usual if decay is None else decay
        if rate is None:
            return 1.0, decay
        return float(rate.removesuffix("x")) if isinstance(rate, str) else rate / self.peak, decay

    @property
    def peak(self) -> float:
        """Learning rate at the end of the warm-up."""
        return self.lr / math.sqrt(self.warmup) if self.schedule == "rsqrt" else self.lr

    def rate_in_words(self) -> str:
        """Return a text with optimiser, schedule and highest rate, and the reason if this rate is below the peak."""
        rates = [self.learning_rate(step) for step in range(self.steps + 1)]
        highest = max(rates)
        words = f"AdamW, train.schedule={self.schedule}, highest rate {highest:.3g} at step {rates.index(highest)}"
        if self.warmup + (self.cooldown or 0) <= self.steps:
            return words
        needed = f"train.warmup={self.warmup}" + (f" + train.cooldown={self.cooldown}" if self.cooldown else "")
        return f"{words}, below its peak of {self.peak:.3g}: train.steps={self.steps} < {needed}"

    def depth_factor(self, name: str, depth: int) -> float:
        """Return the layer-wise factor of the learning rate of a weight (ELECTRA, Clark et al. 2020, appendix B).

        It is 1 in the head, and is multiplied by `layer_decay` in each block towards the embedding.
        """
        if self.layer_decay is None or name.startswith(("head.", "final_norm.")):
            return 1.0
        block = re.match(r"blocks\.(\d+)\.", name)
        return self.layer_decay ** (depth - int(block[1]) if block else depth + 1)


@dataclass(frozen=True, kw_only=True, config=STRICT)
class Pretrain:
    """The keys of `pretrain` in the configuration; `train` overrides keys of the training recipe."""

    objective: Objective
    mask: Fraction | None
    loss: Literal["cross_entropy", "absolute"]
    holdout: Fraction
    seed: Seed | None
    train: dict[str, Any]

    def __post_init__(self) -> None:
        if (self.mask is None) == (self.objective == "masked"):
            wanted = "a fraction of the tokens" if self.objective == "masked" else "null, since nothing is hidden"
            raise ValueError(f"mask={self.mask}: expected {wanted} with objective={self.objective}")

    def spec(self, spec: TaskSpec) -> TaskSpec:
        """Return the specification of the pretraining task."""
        return spec_of(spec, self.objective, values=self.loss == "absolute")

    def task(self, task: Task, seed: int) -> Task:
        """Return the pretraining task on the training inputs of `task`."""
        return inputs_of(
            task,
            self.objective,
            values=self.loss == "absolute",
            share=self.mask or 0.0,  # unused if nothing is masked
            holdout=self.holdout,
            seed=seed,
        )


def carried(weights: "dict[str, Tensor]", vocab_size: int) -> "dict[str, Tensor]":
    """Return the pretrained weights that training starts from: all but the head and the embedding of masked tokens.

    That embedding is the last row of the table; for grey values, which have no table, it is the parameter `hidden`.
    """
    kept = {name: value for name, value in weights.items() if not belongs(name, ["head"]) and name != f"{TOKENS}hidden"}
    if f"{TOKENS}bias" in kept:  # grey values have no embedding table
        return kept
    return {**kept, f"{TOKENS}weight": kept[f"{TOKENS}weight"][:vocab_size]}
