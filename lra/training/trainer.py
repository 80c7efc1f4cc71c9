"""Train a model: training loop, evaluations, and the state that checkpoints save."""

import json
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lra.config.settings import Checkpoints, Precision
from lra.core.console import say
from lra.core.files import write_atomic
from lra.core.signals import Paused, StopFlag
from lra.datasets.task import Split, Task
from lra.network.model import Model
from lra.ops import dropout, products
from lra.ops.device import is_asynchronous
from lra.records import checkpoint, record
from lra.records.names import METRICS
from lra.training import distributed
from lra.training.batches import MicroBatch, Tokens, batches, micro_batches, predict, prefetch, summed_loss
from lra.training.block_probe import probe
from lra.training.early_stopping import StoppingRule, is_better
from lra.training.evaluate import evaluate
from lra.training.optimizer import Diverged, Update, compile_blocks, make_optimizer, update
from lra.training.progress import TrainingBar
from lra.training.recipe import Recipe

# Names of the attributes of `Trainer` that checkpoints store as JSON.
PLAIN = ("step", "measured", "seconds", "window_seconds", "last", "best", "lines", "resumes")


def compute_gradient(
    model: Model,
    split: Split,
    examples: np.ndarray,
    parts: Iterable[MicroBatch],
    *,
    seed: int,
    step: int,
    precision: Precision,
) -> Tensor:
    """Set every `grad` to the gradient of the mean loss over `examples`, and return the loss and token counts.

    Except for rounding, the gradient does not depend on the cut into `parts` or on the number of ranks: the loss of a
    micro-batch is divided by the number of predictions in the whole batch, and dropout is keyed by document.

    Returns:
        Tensor [3] for the whole batch: mean loss, number of tokens without padding, number of tokens with padding.
    """
    if not model.training:  # saves time, because `train` visits every module
        model.train()
    model.redraw(seed, step)
    for parameter in model.every_parameter:
        parameter.grad = None  # not zero: AdamW must skip weights that this step does not use
    predictions = len(split.predictions(examples))  # number in the whole batch, not only in this rank's part
    # float64, so that the recorded loss hardly depends on the cut into micro-batches
    total, real, computed = torch.zeros((), dtype=torch.float64, device=model.every_parameter[0].device), 0, 0
    for part in parts:
        dropout.set_keys(model, seed=seed, step=step, documents=part.documents)
        with products.of_micro_batch(part.tokens.size, model.dim):
            logits, labels = predict(model, part, precision)
            loss = summed_loss(logits, labels) / predictions
            loss.backward()  # in each micro-batch, so that only one holds its activations
        total += loss.detach()
        real, computed = real + part.real, computed + part.tokens.size
    distributed.add_gradients(model.every_parameter)
    # Sum the totals on the device: reading `total` here would make the host wait for an accelerator.
    totals = torch.stack([total, total.new_full((), real), total.new_full((), computed)])
    distributed.all_reduce_sum_(totals)
    return totals


@dataclass(frozen=True, kw_only=True)
class Output:
    """Destinations of a training's files, messages and metrics."""

    folder: Path | None = None  # receives `metrics.jsonl` and checkpoints; None: neither is written
    title: str = "training"  # prefix of messages
    checkpoints: Checkpoints | None = None  # None: checkpoints only at the end and at a pause
    run: dict[str, Any] = field(default_factory=dict)  # configuration and conditions, stored in checkpoints as JSON
    log: Callable[[dict[str, Any]], None] = lambda _: None  # receives each line of `metrics.jsonl`


class Trainer:
    """A model, its optimiser and the state of its training.

    Args:
        probe: number of validation examples on which every block is measured at each evaluation.

    Attributes:
        step: number of updates.
        lines: one entry per evaluation, the lines of `metrics.jsonl`.
        last, best: scores of the last and the best evaluation, as in records; empty before the first.
        seconds, tokens: totals from the first step to the last evaluation.
    """

    def __init__(
        self,
        model: Model,
        task: Task,
        recipe: Recipe,
        *,
        seed: int,
        precision: Precision,
        probe: int | None = None,
        output: Output | None = None,
    ) -> None:
        self.model, self.task, self.recipe = model, task, recipe
        self.seed, self.precision, self.probe = seed, precision, probe
        self.output = output or Output()
        if recipe.compile:
            compile_blocks(model)
        self.optimizer = make_optimizer(model, recipe)
        self.stopping = StoppingRule(recipe)
        self.step, self.measured = 0, 0  # `measured`: step of the last evaluation
        self.updates: deque[Update] = deque()  # latest updates, whose losses have not been read
        self.losses: list[float] = []  # losses of all steps before those in `updates`
        self.seconds, self.window_seconds = {"train": 0.0, "evaluate": 0.0}, 0.0  # `window`: since the last evaluation
        self.tokens, self.window_tokens = Tokens(), Tokens()
        self.last: dict[str, Any] = {}
        self.best: dict[str, Any] = {}
        self.best_weights: dict[str, Tensor] = {}
        self.lines: list[dict[str, Any]] = []
        self.resumes = 0
        self._saved_at = time.monotonic()

    def train(self, stop: StopFlag, limit: Callable[[int, float], Paused | None] = lambda *_: None) -> None:
        """Train for all steps of the recipe, or until its stopping rule ends the training.

        Args:
            stop: flag that a signal or time limit sets to request a pause.
            limit: called after each step with the number of steps and their time in seconds; returns another
                reason to pause, or None.

        Raises:
            Paused: on all ranks, if one of them is asked to stop; the state is saved.
            Diverged: a loss or gradient is not finite; weights and optimiser are those before that step. It is
                raised up to one step later on an accelerator, where losses are read late.
        """
        say(f"{self.output.title}: {self.recipe.rate_in_words()}")
        if self.resumes:
            say(f"{self.output.title}: resumes from step {self.step}")
        self.write_metrics()  # the file may have lines of evaluations after the checkpoint, which will come again
        model, recipe, rule, batches_of_steps = self.model, self.recipe, self.stopping, self._batches()
        with TrainingBar(self.output.title, recipe.steps, self.step) as bar:
            try:
                if self.is_eval_step():  # an earlier process paused in this evaluation
                    self.validate(stop, bar)
                while self.step < rule.step:
                    clock = time.perf_counter()
                    batch = next(batches_of_steps)
                    totals = compute_gradient(model, *batch, seed=self.seed, step=self.step, precision=self.precision)
                    self.updates.append(update(model, self.optimizer, totals, recipe, step=self.step, last=rule.step))
                    self.step += 1
                    # On an accelerator one loss stays unread, so that the host prepares the next step meanwhile.
                    late = self._asynchronous and len(self.losses) > 0 and not self.is_eval_step()
                    tokens = self.read_losses(leave=int(late))
                    self.window_seconds += time.perf_counter() - clock
                    if self.is_eval_step():
                        self.validate(stop, bar)
                    bar.step(self.step, self.losses[-1], tokens.computed)
                    if self._is_checkpoint_due():
                        self.save()
                    seconds = self.seconds["train"] + self.window_seconds
                    distributed.pause_all(stop.pending() or limit(self.step, seconds))
            except Paused:
                self.save()
                raise
        self.save()  # if the test is interrupted, the training need not be repeated
        distributed.pause_all(stop.signalled())  # a signal may have come since the last step

    def _is_checkpoint_due(self) -> bool:
        """Return True on all ranks if a checkpoint is due."""
        # By the clock of rank 0, because the clocks of ranks differ and all must call the same reductions.
        rule, waited = self.output.checkpoints, time.monotonic() - self._saved_at
        due = distributed.is_main() and rule is not None and rule.due(self.step, waited)
        return distributed.all_reduce_sum(due) == [1]

    def is_eval_step(self) -> bool:
        """Return True if an evaluation is due at this step and has not been made."""
        due = self.step % self.recipe.eval_every == 0 or self.step == self.stopping.step
        return self.step > self.measured and due

    def validate(self, stop: StopFlag, bar: TrainingBar) -> None:
        """Score the validation split, store the weights if they are the best, and add a line to `metrics.jsonl`.

        Raises:
            Paused: a signal came. A time limit is checked after the evaluation only, so that each start of a run
                makes progress.
        """
        recipe, step, clock = self.recipe, self.step, time.perf_counter()
        score = evaluate(
            self.model, self.task.val, recipe.eval_batch, precision=self.precision, stop=stop,
            progress=lambda done, total: bar.evaluating(step, done, total),
        )  # fmt: skip
        seconds, tokens, losses = time.perf_counter() - clock, self.window_tokens, self.losses[self.measured :]
        score.say_if_not_finite(f"{self.output.title}, step {step}, validation")
        # Nothing above changes the state, so a run that is paused in an evaluation can repeat all of it.
        bar.evaluated(f"{self.task.metric} {getattr(score, self.task.metric):.2f}")
        line = {
            "step": step,
            "epoch": step * recipe.batch_size / len(self.task.train),
            "lr": recipe.learning_rate(step - 1, self.stopping.step),  # rate of the last update
            "train_loss": math.fsum(losses) / len(losses),
            "val_loss": score.loss,
            "val_accuracy": score.accuracy,
            "seconds": self.window_seconds + seconds,
            "train_seconds": self.window_seconds,
            "tokens": tokens.computed,
            "tokens_real": tokens.real,
        }
        if self.probe:  # its time is in none of the totals
            line |= probe(self.model, self.task.val, self.probe, precision=self.precision)
        self.seconds["train"] += self.window_seconds
        self.seconds["evaluate"] += seconds
        self.tokens += tokens
        self.measured, self.window_tokens, self.window_seconds = step, Tokens(), 0.0
        self.last = score.entry(step)
        if is_better(self.last, self.best, self.task.metric):
            self.best = self.last
            # Copies, because the next update changes the weights in place.
            self.best_weights = {name: value.clone() for name, value in self.model.state_dict().items()}
        self.stopping.update(self.last, self.best["step"], self.tokens.computed, sum(self.seconds.values()))
        self.lines.append(record.finite(line))
        self.write_metrics()  # before the loggers, which may be slow: users may follow the run in this file
        self.output.log(self.lines[-1])

    def read_losses(self, leave: int = 0) -> Tokens:
        """Read the unread losses except those of the last `leave` updates; return the tokens of the updates read.

        Raises:
            Diverged: a loss or gradient is not finite; `step` is then the number of updates before it.
        """
        seen = Tokens()
        while len(self.updates) > leave:
            done = self.updates.popleft()
            try:
                loss, tokens = done.read()
            except Diverged:
                self.step = done.step
                self.updates.clear()  # later updates have changed nothing, see `update`
                raise
            self.losses.append(loss)
            seen += tokens
        self.window_tokens += seen
        return seen

    @property
    def _asynchronous(self) -> bool:
        return is_asynchronous(next(self.model.parameters()).device)

    def _batches(self) -> Iterator[tuple[Split, np.ndarray, Iterable[MicroBatch]]]:
        """Return an iterator over (split, examples, micro-batches) of each step, read a step ahead on accelerators."""

        def parts(split: Split, examples: np.ndarray) -> Iterator[MicroBatch]:
            return micro_batches(self.model, split, examples, self.recipe.micro_batch, self.precision)

        steps = (
            (self.task.train.of_step(step), examples)
            for step, examples in batches(len(self.task.train), self.recipe, self.seed, self.step)
        )
        if self._asynchronous:  # `list` reads the examples in the thread; a generator would leave that to the caller
            return prefetch((split, examples, list(parts(split, examples))) for split, examples in steps)
        return ((split, examples, parts(split, examples)) for split, examples in steps)

    def write_metrics(self) -> None:
        """Write `metrics.jsonl` on rank 0."""
        if self.output.folder is not None and distributed.is_main():
            text = "".join(json.dumps(line) + "\n" for line in self.lines)
            write_atomic(self.output.folder / METRICS, text.encode())

    def save(self) -> None:
        """Write a checkpoint on rank 0. Raises `Diverged` on all ranks if an unread loss or gradient is not finite."""
        self.read_losses()
        if self.output.folder is not None and distributed.is_main():
            tensors, state = self.state_dict()
            checkpoint.write(self.output.folder, tensors, {"training": state, "run": self.output.run})
            self._saved_at = time.monotonic()

    def state_dict(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return the state as a dict of tensors and a dict of JSON values, without the losses that are still unread."""
        tensors = {f"model/{name}": value for name, value in self.model.state_dict().items()}
        for name, parameter in self.model.named_parameters():  # by name, since torch's indices depend on the groups
            for key, value in self.optimizer.state.get(parameter, {}).items():
                tensors[f"optimizer/{name}/{key}"] = value
        # In float64, as read from the device, so that a resumed run writes the same means.
        tensors["losses"] = torch.tensor(self.losses, dtype=torch.float64)
        tensors |= {f"best/{name}": value for name, value in self.best_weights.items()}
        state = {key: getattr(self, key) for key in PLAIN}
        totals = {"tokens": asdict(self.tokens), "window_tokens": asdict(self.window_tokens)}
        return tensors, {**state, **totals, "stopping": self.stopping.state_dict()}

    def load_state_dict(self, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
        """Restore a state from `state_dict`. Raises KeyError, ValueError or RuntimeError for another model."""
        weights: dict[str, Tensor] = {}
        parameters, fused = dict(self.model.named_parameters()), self.optimizer.defaults["fused"]
        for path, value in tensors.items():
            part, _, name = path.partition("/")
            if part == "model":
                weights[name] = value
            elif part == "best":
                self.best_weights[name] = value
            elif part == "optimizer":
                name, key = name.rsplit("/", 1)
                parameter = parameters[name]
                if value.dim() and value.shape != parameter.shape:
                    raise ValueError(f"{path} is {list(value.shape)}, expected {list(parameter.shape)}")
                device = parameter.device if value.dim() or fused else "cpu"  # plain AdamW counts steps on the host
                self.optimizer.state[parameter][key] = value.to(device, copy=True)  # a file's tensors may be unaligned
        self.model.load_state_dict(weights)
        self.losses = tensors["losses"].tolist()
        for key in PLAIN:
            setattr(self, key, state[key])
        self.tokens, self.window_tokens = Tokens(**state["tokens"]), Tokens(**state["window_tokens"])
        self.stopping.load_state_dict(state["stopping"])
