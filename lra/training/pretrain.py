"""Self-pretraining on the inputs of a task."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from lra.config.settings import Seed
from lra.core.errors import UserError
from lra.data import Task, TaskSpec
from lra.data.self_pretraining import Objective, facts_of, inputs_of
from lra.model.architecture import belongs

if TYPE_CHECKING:
    from torch import Tensor

TOKENS = "embedding.tokens."
Share = Annotated[float, Field(gt=0, lt=1)]


@dataclass(frozen=True, kw_only=True)
class Pretrain:
    """The keys of `pretrain` in the configuration; `train` overrides keys of the recipe of training."""

    objective: Objective
    mask: Share | None
    loss: Literal["cross_entropy", "absolute"]
    holdout: Share
    seed: Seed | None
    train: dict[str, Any]

    def __post_init__(self) -> None:
        if (self.mask is None) == (self.objective == "masked"):
            wanted = "a share of the tokens" if self.objective == "masked" else "null, since nothing is hidden"
            raise UserError(f"pretrain.mask={self.mask}: expected {wanted} with pretrain.objective={self.objective}")

    def facts(self, facts: TaskSpec) -> TaskSpec:
        """Return the specification of the pretraining task."""
        return facts_of(facts, self.objective, values=self.loss == "absolute")

    def task(self, task: Task, seed: int) -> Task:
        """Return the pretraining task on the training inputs of `task`."""
        return inputs_of(
            task.train,
            TaskSpec(**{name: getattr(task, name) for name in TaskSpec.__dataclass_fields__}),
            task.digest,
            self.objective,
            values=self.loss == "absolute",
            share=self.mask,
            holdout=self.holdout,
            seed=seed,
        )


def carried(weights: "dict[str, Tensor]", vocab_size: int) -> "dict[str, Tensor]":
    """Return the pretrained weights that training starts from: all but the head and the vector of hidden tokens.

    That vector is the last row of the embedding, or the `hidden` vector of grey values.
    """
    kept = {name: value for name, value in weights.items() if not belongs(name, ["head"]) and name != f"{TOKENS}hidden"}
    if f"{TOKENS}bias" in kept:  # grey values have no embedding table
        return kept
    return {**kept, f"{TOKENS}weight": kept[f"{TOKENS}weight"][:vocab_size]}
