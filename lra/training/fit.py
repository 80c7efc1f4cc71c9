"""Training loop: a generator of measurements that never logs, prints or saves."""

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lra.config.settings import Precision
from lra.data import Split, Task
from lra.model.model import Model
from lra.ops.device import is_asynchronous
from lra.training.batches import MicroBatch, Tokens, batches, micro_batches, prefetch
from lra.training.evaluate import OnPart, Score, evaluate
from lra.training.recipe import Recipe
from lra.training.update import Diverged, Update, compile_blocks, make_optimizer, update

OnStep = Callable[[int, float, Tokens], None]
"""Called after each update with the number of updates, the last loss that was read, and the tokens read since then."""


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """Training and validation results after `step` updates; seconds and tokens since the last measurement."""

    step: int
    epoch: float
    lr: float
    train_loss: float
    val: Score
    train_seconds: float
    eval_seconds: float
    tokens: Tokens


class Training:
    """A model in training: everything that changes from step to step."""

    def __init__(self, model: Model, recipe: Recipe) -> None:
        self.model = model
        if recipe.compile:
            compile_blocks(model)
        self.optimizer = make_optimizer(model, recipe)
        self.step = 0
        self.updates: deque[Update] = deque()  # whose loss has not been read, the last ones of `step`
        self.losses: list[float] = []  # of all other steps
        self.measured = 0  # step of the last measurement; tokens and seconds count from there
        self.tokens = Tokens()
        self.seconds = 0.0

    def look(self, leave: int = 0) -> Tokens:
        """Read the losses of all updates but the last `leave`, and return their tokens.

        Raises:
            Diverged: a loss or gradient is not finite; `step` is then the number of updates before it.
        """
        seen = Tokens()
        while len(self.updates) > leave:
            done = self.updates.popleft()
            try:
                loss, tokens = done.look()
            except Diverged:
                self.step = done.step
                self.updates.clear()
                raise
            self.losses.append(loss)
            seen += tokens
        self.tokens += seen
        return seen

    def tensors(self) -> dict[str, Tensor]:
        """Return weights, buffers, optimiser state and losses by name. Call `look` before this and `state`."""
        weights = {f"model/{name}": value for name, value in self.model.state_dict().items()}
        kept = {
            f"optimizer/{name}/{key}": value
            for name, parameter in self.model.named_parameters()
            for key, value in self.optimizer.state.get(parameter, {}).items()
        }
        return {**weights, **kept, "losses": torch.tensor(self.losses, dtype=torch.float64)}

    def state(self) -> dict[str, Any]:
        """Return the rest as JSON values."""
        return {"step": self.step, "measured": self.measured, "tokens": asdict(self.tokens), "seconds": self.seconds}

    def load(self, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
        """Restore `tensors` and `state`. Raises KeyError, ValueError or RuntimeError if they are of another model."""
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

    def due(self, recipe: Recipe, last: int) -> bool:
        """Return True if a measurement is due at this step and has not been made."""
        return self.step > self.measured and (self.step % recipe.eval_every == 0 or self.step == last)


def fit(
    training: Training,
    task: Task,
    recipe: Recipe,
    *,
    seed: int,
    precision: Precision,
    on_step: OnStep,
    on_part: OnPart = lambda *_: None,
    last_step: Callable[[], int] | None = None,
) -> Iterator[Measurement]:
    """Train on from `training.step`, yielding a measurement every `eval_every` steps and after the last.

    Args:
        on_step: called after each step and its measurement.
        on_part: called within evaluations.
        last_step: called before each step, returns the number of steps after which training ends; None: `steps`.

    Raises:
        Diverged: a loss or gradient is not finite; weights and optimiser are those before that step. On an accelerator,
            where losses are read a step later, one step later.
    """
    behind = int(is_asynchronous(next(training.model.parameters()).device))
    last_step = last_step or (lambda: recipe.steps)
    if training.due(recipe, last_step()):  # the run was stopped in that evaluation
        yield _measured(training, task, recipe, precision, on_part, last_step())
        on_step(training.step, training.losses[-1], Tokens())
    clock = time.perf_counter()
    for step, split, examples, parts in _read(training, task, recipe, seed, precision):
        last = last_step()
        if step >= last:
            return
        started = update(
            training.model, training.optimizer, split, examples, recipe, seed=seed, step=step, precision=precision,
            last=last, parts=parts,
        )  # fmt: skip
        training.updates.append(started)
        training.step = step + 1
        due = training.due(recipe, last)
        seen = training.look(0 if due or not training.losses else behind)
        training.seconds += time.perf_counter() - clock
        if due:
            yield _measured(training, task, recipe, precision, on_part, last)
        on_step(training.step, training.losses[-1], seen)
        clock = time.perf_counter()


def _read(
    training: Training, task: Task, recipe: Recipe, seed: int, precision: Precision
) -> Iterator[tuple[int, Split, np.ndarray, Iterable[MicroBatch]]]:
    """Steps, their splits, examples and micro-batches; on an accelerator these are read during the step before."""
    model = training.model
    for_step = partial(micro_batches, model, size=recipe.micro_batch, precision=precision)
    steps = (
        (step, task.train.of_step(step), examples)
        for step, examples in batches(len(task.train), recipe, seed, training.step)
    )
    if is_asynchronous(next(model.parameters()).device):
        return prefetch((step, split, examples, list(for_step(split, examples))) for step, split, examples in steps)
    return ((step, split, examples, for_step(split, examples)) for step, split, examples in steps)


def _measured(
    training: Training, task: Task, recipe: Recipe, precision: Precision, on_part: OnPart, last: int
) -> Measurement:
    """Evaluate, and reset what counts from the last measurement."""
    clock = time.perf_counter()
    score = evaluate(training.model, task.val, recipe.eval_batch, precision=precision, on_part=on_part)
    losses = training.losses[training.measured :]
    now = Measurement(
        step=training.step,
        epoch=training.step * recipe.batch_size / len(task.train),
        lr=recipe.learning_rate(training.step - 1, last),
        train_loss=math.fsum(losses) / len(losses),
        val=score,
        train_seconds=training.seconds,
        eval_seconds=time.perf_counter() - clock,
        tokens=training.tokens,
    )
    training.measured, training.tokens, training.seconds = training.step, Tokens(), 0.0
    return now
