"""The only training loop: a generator of measurements that never logs, prints or saves."""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from lra.config.settings import Precision
from lra.model.model import Model
from lra.tasks import Task
from lra.training.batches import Tokens, batches
from lra.training.evaluate import OnPart, Score, evaluate
from lra.training.recipe import Recipe
from lra.training.update import OnCut, adamw, compile_blocks, update

OnStep = Callable[[int, float, Tokens], None]
"""Called after each update with the updates done, its loss, and the tokens it read."""


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """What `fit` yields: the state after `step` updates. Seconds count training or evaluation only, since the last."""

    step: int
    epoch: float
    lr: float
    train_loss: float
    val: Score
    train_seconds: float
    eval_seconds: float
    tokens: Tokens


class Training:
    """A model in training: everything that changes from step to step, and nothing else."""

    def __init__(self, model: Model, recipe: Recipe) -> None:
        self.model = model
        if recipe.compile:
            compile_blocks(model)
        self.optimizer = adamw(model, recipe)
        self.step = 0
        self.losses: list[float] = []  # of every step
        self.measured = 0  # the step of the last measurement; these two are since then
        self.tokens = Tokens()
        self.seconds = 0.0

    def tensors(self) -> dict[str, Tensor]:
        """By name: the weights and buffers, what the optimiser keeps of each parameter, and the losses."""
        weights = {f"model/{name}": value for name, value in self.model.state_dict().items()}
        kept = {
            f"optimizer/{name}/{key}": value
            for name, parameter in self.model.named_parameters()
            for key, value in self.optimizer.state.get(parameter, {}).items()
        }
        return {**weights, **kept, "losses": torch.tensor(self.losses, dtype=torch.float64)}

    def state(self) -> dict[str, Any]:
        """The rest, as JSON values."""
        return {"step": self.step, "measured": self.measured, "tokens": asdict(self.tokens), "seconds": self.seconds}

    def load(self, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
        """Go on from what `tensors` and `state` gave. Raises KeyError, ValueError or RuntimeError where they are of
        another model."""
        weights, kept = {}, {}
        shapes = {name: parameter.shape for name, parameter in self.model.named_parameters()}
        names = {parameter: name for name, parameter in self.model.named_parameters()}
        held = (parameter for group in self.optimizer.param_groups for parameter in group["params"])
        places = {names[parameter]: place for place, parameter in enumerate(held)}
        for path, value in tensors.items():
            part, _, name = path.partition("/")
            if part == "model":
                weights[name] = value
            elif part == "optimizer":
                parameter, key = name.rsplit("/", 1)
                if value.dim() and value.shape != shapes[parameter]:
                    raise ValueError(f"{path} is {list(value.shape)}, expected {list(shapes[parameter])}")
                kept.setdefault(places[parameter], {})[key] = value.clone()  # aligned as it was
        self.model.load_state_dict(weights)
        self.optimizer.load_state_dict({**self.optimizer.state_dict(), "state": kept})
        self.losses = tensors["losses"].tolist()
        self.step, self.measured, self.seconds = state["step"], state["measured"], state["seconds"]
        self.tokens = Tokens(**state["tokens"])

    def due(self, recipe: Recipe) -> bool:
        """Whether this step is to be measured, and has not been."""
        return self.step > self.measured and (self.step % recipe.eval_every == 0 or self.step == recipe.steps)


def fit(
    training: Training,
    task: Task,
    recipe: Recipe,
    *,
    seed: int,
    precision: Precision,
    on_step: OnStep,
    on_part: OnPart = lambda *_: None,
    on_cut: OnCut = lambda: None,
) -> Iterator[Measurement]:
    """Train on from `training.step`, yielding a measurement every `eval_every` steps and after the last.

    `on_step` is called after each step, and after its measurement if there is one; `on_part` within evaluations, and
    `on_cut` within steps. Raises `Diverged` before the update that a non-finite loss or gradient would have made.
    """
    if training.due(recipe):  # it stopped in that evaluation
        yield _measured(training, task, recipe, precision, on_part)
        on_step(training.step, training.losses[-1], Tokens())
    clock = time.perf_counter()
    for step, examples in batches(len(task.train), recipe, seed, training.step):
        loss, seen = update(
            training.model,
            training.optimizer,
            task.train,
            examples,
            recipe,
            seed=seed,
            step=step,
            precision=precision,
            on_cut=on_cut,
        )
        training.step = step + 1
        training.losses.append(loss)
        training.tokens += seen
        training.seconds += time.perf_counter() - clock
        if training.due(recipe):
            yield _measured(training, task, recipe, precision, on_part)
        clock = time.perf_counter()
        on_step(training.step, loss, seen)


def _measured(training: Training, task: Task, recipe: Recipe, precision: Precision, on_part: OnPart) -> Measurement:
    """Evaluate, and count anew from here."""
    clock = time.perf_counter()
    score = evaluate(training.model, task.val, recipe.eval_batch, precision=precision, on_part=on_part)
    losses = training.losses[training.measured :]
    now = Measurement(
        step=training.step,
        epoch=training.step * recipe.batch_size / len(task.train),
        lr=recipe.learning_rate(training.step - 1),
        train_loss=math.fsum(losses) / len(losses),
        val=score,
        train_seconds=training.seconds,
        eval_seconds=time.perf_counter() - clock,
        tokens=training.tokens,
    )
    training.measured, training.tokens, training.seconds = training.step, Tokens(), 0.0
    return now
