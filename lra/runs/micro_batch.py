"""How many examples pass through the model at once, where `auto` shall say it: as many as the memory takes."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import torch

from lra.config.settings import Precision
from lra.core.console import say
from lra.data import Split, Task, TaskSpec
from lra.model.model import Model
from lra.ops import dropout
from lra.records.checkpoint import Generation
from lra.runs.build import Job
from lra.training import distributed
from lra.training.batches import MicroBatch, predict, read
from lra.training.losses import summed_loss
from lra.training.recipe import AUTO, Recipe

TOKENS = {"micro_batch": 1 << 14, "eval_batch": 1 << 17}  # of a part on a CPU, about those of the papers' recipes
EVALUATED = 1 << 20  # tokens of a part on an accelerator, at most
SHARE = 0.9  # of an accelerator's memory that a trial may take; holes between tensors take the rest


class TooLarge(RuntimeError):
    """The accelerator has no room for a part of a batch."""


def automatic(recipe: Recipe) -> list[str]:
    """The keys of a recipe whose value is `auto`."""
    return [key for key in TOKENS if getattr(recipe, key) == AUTO]


def by_tokens(recipe: Recipe, facts: TaskSpec) -> Recipe:
    """The recipe with numbers for `auto` as a CPU takes them, which do not depend on the machine."""
    numbers = {key: _examples(TOKENS[key], facts) for key in automatic(recipe)}
    if "micro_batch" in numbers:
        numbers["micro_batch"] = min(numbers["micro_batch"], recipe.batch_size)
    return replace(recipe, **numbers)


def resolve_auto_sizes(job: Job, task: Task, model: Model, saved: Generation | None) -> Job:
    """The job with numbers for `auto`: those with which the run of its checkpoint began, else what fits, the same on
    all ranks. The model is on its device; nothing of it changes."""
    wanted = automatic(job.system.recipe)
    if not wanted:
        return job
    begun = saved.state["course"] if saved is not None else None
    if begun is not None and all(begun["identity"]["train"][key] == AUTO for key in wanted):
        recipe = replace(job.system.recipe, **{key: begun["environment"][key] for key in wanted})
    else:
        recipe = _fitting(job, task, model)
        numbers = " ".join(f"train.{key}={getattr(recipe, key)}" for key in wanted)
        say(f"{job.title}: auto says {numbers}")
    return replace(job, system=replace(job.system, recipe=recipe))


def _fitting(job: Job, task: Task, model: Model) -> Recipe:
    recipe = job.system.recipe
    if next(model.parameters()).device.type == "cpu":
        return by_tokens(recipe, task)
    trial = TrialPasses(model, task.train, job.settings.seed, job.settings.precision)
    tried = {
        "micro_batch": (trial.train, -(-recipe.batch_size // distributed.count())),
        "eval_batch": (trial.evaluate, _examples(EVALUATED, task)),
    }
    with _most_of_the_memory():
        return replace(recipe, **{key: distributed.all_reduce_min(largest(*tried[key])) for key in automatic(recipe)})


def _examples(tokens: int, facts: TaskSpec) -> int:
    return max(1, tokens // (facts.documents * facts.max_len))


def largest(work: Callable[[int], None], most: int) -> int:
    """The first of `most`, half of it, and so on, for which `work` finds memory; 1 is not tried, since there is nothing
    below it."""
    size = most
    while size > 1:
        try:
            work(size)
            break
        except torch.OutOfMemoryError:
            size //= 2
    return size


@contextmanager
def _most_of_the_memory() -> Iterator[None]:
    torch.cuda.set_per_process_memory_fraction(SHARE)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
        torch.cuda.empty_cache()


@dataclass(frozen=True)
class TrialPasses:
    """Passes over the longest example of a split, as many times as asked; nothing meets other ranks."""

    model: Model
    split: Split
    seed: int
    precision: Precision

    def train(self, size: int) -> None:
        """A gradient, beside the room that the optimiser's two means will take."""
        model, part = self.model, self._part(size)
        model.train()
        model.redraw(self.seed, 0)
        dropout.set_keys(model, seed=self.seed, step=0, rows=part.rows)
        try:
            means = [
                torch.empty_like(weight) for weight in model.parameters() for _ in range(2) if weight.requires_grad
            ]
            summed_loss(*predict(model, part, self.precision)).backward()
            del means
        finally:
            model.zero_grad(set_to_none=True)

    @torch.inference_mode()
    def evaluate(self, size: int) -> None:
        """A pass as in an evaluation."""
        self.model.eval()
        predict(self.model, self._part(size), self.precision)

    def _part(self, size: int) -> MicroBatch:
        longest = self.split.lengths(np.arange(len(self.split))).max(axis=1).argmax()
        return read(self.split, np.full(size, longest), np.arange(size), self.model.max_len)


@contextmanager
def naming_what_is_too_large(recipe: Recipe) -> Iterator[None]:
    """Raises TooLarge, with what to do, where an accelerator's memory is too small."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise TooLarge(
            f"train.micro_batch={recipe.micro_batch} or train.eval_batch={recipe.eval_batch} takes more memory than "
            f"the accelerator has ({str(error).splitlines()[0]}); use smaller ones, or train.micro_batch=auto "
            "train.eval_batch=auto, with resume=inexact in the same folder"
        ) from error
