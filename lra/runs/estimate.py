"""What runs will take on this machine, measured with a part of their first batches, or reckoned from their FLOPs."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lra.config.settings import Settings
from lra.core.console import Preparation
from lra.core.errors import UserError
from lra.core.files import digest
from lra.core.subprocesses import results_from_child
from lra.data import Place, Split, Task
from lra.model.model import Model
from lra.runs.build import System
from lra.runs.describe import describe
from lra.runs.device import device_of, keep_memory, threads_at_hand
from lra.runs.initial_weights import draw_model
from lra.runs.micro_batch import by_tokens
from lra.runs.status import resume_step
from lra.training.batches import batches, micro_batches, predict
from lra.training.update import accumulate

SECONDS = 15  # for all measurements together
SHORT, PART = 1.0, 0.01  # of one cell: measuring takes no longer than a second, or than this part of its run
LEAST = 0.5  # of one cell: in less, a cell would be measured with so few examples that its fixed costs seem theirs
FORWARD = 1 / 3  # of training
ASSUMED_SPEED = 1e10  # FLOPs per second, where no cell could be measured: less than one core gives
GOLDEN = (math.sqrt(5) - 1) / 2  # its multiples, modulo 1, are spread evenly, however many there are


@dataclass(frozen=True, kw_only=True)
class Work:
    """The runs of a cell of a sweep that are to be done, in their `folders`."""

    settings: Settings
    system: System
    folders: list[Path]

    @property
    def tokens(self) -> int:
        """The tokens of one training and its pretraining, padding included; an upper bound where padding is masked."""
        return self._until(self.system.recipe.steps)

    @cached_property
    def left(self) -> float:
        """How many runs are still to be done; one that goes on counts by the part of its tokens that is to be read."""
        return sum(1 - self._until(step) / self.tokens if step else 1.0 for step in self._steps)

    @property
    def not_begun(self) -> int:
        """How many runs have no step behind them."""
        return self._steps.count(0)

    @cached_property
    def _steps(self) -> list[int]:
        """The step from which each run goes on."""
        return [_step(folder) for folder in self.folders]

    def _until(self, step: int) -> int:
        recipe, facts = self.system.recipe, self.system.builder.facts
        return (step * recipe.batch_size * facts.documents + self.documents_before) * facts.max_len

    @property
    def documents_before(self) -> int:
        """How many a pretraining reads."""
        phase = self.system.pretraining
        return 0 if phase is None else phase.system.recipe.steps * phase.system.recipe.batch_size


def _step(folder: Path) -> int:
    """The step from which a run goes on; 0 also where its checkpoint is damaged, which the run says itself."""
    try:
        return resume_step(folder)
    except UserError:
        return 0


@dataclass(frozen=True)
class Cost:
    """The seconds of one run, evaluation included: measured, or its FLOPs at `speed` FLOPs per second. None: its data
    cannot be had, or it cannot run."""

    seconds: float | None
    speed: float | None = None


def duration(seconds: float) -> str:
    """Say a length of time: minutes, or hours where these are more than ninety."""
    if seconds > 99 * 3600:
        return f"about {seconds / 3600:,.0f} hours"
    return f"about {seconds / 3600:.2g} hours" if seconds > 5400 else f"about {seconds / 60:.2g} minutes"


def costs(works: list[Work], seconds: float) -> list[Cost]:
    """Estimate the cost of one run of each cell.

    What cannot be measured within `seconds` has the speed of what can, or `ASSUMED_SPEED`. Measuring happens in a
    child, which leaves nothing in this process and is killed when time is up.
    """
    tasks = _prepared(works)
    by_place: dict[int, Cost] = {}
    with suppress(ChildProcessError):  # for want of memory, which its run will say
        for place, measured in results_from_child(_measure, works, tasks, seconds, seconds=seconds):
            by_place[place] = Cost(measured)
    left = [place for place in range(len(works)) if place not in by_place]
    if left:
        speed, per_example = ASSUMED_SPEED, {}
        if by_place:
            flops = sum(_flops(works[place], tasks[place], per_example) for place in by_place)
            speed = flops / sum(cost.seconds for cost in by_place.values())
        by_place |= {place: _reckoned(works[place], tasks[place], speed, per_example) for place in left}
    return [by_place[place] for place in range(len(works))]


def _reckoned(work: Work, task: Task | None, speed: float, per_example: dict[str, float]) -> Cost:
    if task is not None:
        with suppress(Exception):  # a model that cannot even be run without numbers says so when it is run
            return Cost(_flops(work, task, per_example) / speed, speed)
    return Cost(None)


def _examples(work: Work, task: Task) -> tuple[int, int]:
    """How many examples a run trains on, those of its pretraining included, and how many it evaluates."""
    recipe = work.system.recipe
    looks = -(-recipe.steps // recipe.eval_every)
    trained = recipe.steps * recipe.batch_size + work.documents_before // task.documents
    return trained, looks * len(task.val) + min(looks, 2) * len(task.test)


def _flops(work: Work, task: Task, per_example: dict[str, float]) -> float:
    """The FLOPs of one run, every document being of the greatest length. `per_example` keeps those of an example by the
    digest of all that decides them, since cells that differ in their recipe alone have one model."""
    trained, evaluated = _examples(work, task)
    settings = work.settings
    model = digest([settings.task, settings.attention, settings.model, settings.train["freeze"]])
    if model not in per_example:
        per_example[model] = describe(work.system)["flops_per_step"] / work.system.recipe.batch_size
    return per_example[model] * (trained + FORWARD * evaluated)


def _prepared(works: list[Work]) -> list[Task | None]:
    """The task of each; None where its data cannot be had, which its runs will say. Raises UserError where there is one
    work alone, so that its data are not looked for again."""
    later = (OSError, UserError) if len(works) > 1 else (OSError,)
    tasks: dict[str, Task | None] = {}
    for work in works:
        key = digest(work.settings.task)
        if key not in tasks:
            tasks[key] = None
            with Preparation(work.system.builder.facts.name) as progress, suppress(*later):
                tasks[key] = work.system.builder.build(Place.of(work.settings, progress))
    return [tasks[digest(work.settings.task)] for work in works]


def _measure(
    send: Callable[[tuple[int, float]], None], works: list[Work], tasks: list[Task | None], limit: float
) -> None:
    """Send the place of a cell and the seconds of a run, one cell after the other; what is sent later is nearer."""
    keep_memory()
    for place in sorted(range(len(works)), key=lambda place: place * GOLDEN % 1):
        if tasks[place] is not None:
            with suppress(Exception):  # a system that fails says so when it is run
                for seconds in _seconds(works[place], tasks[place], max(limit / len(works), LEAST)):
                    send((place, seconds))


def _seconds(work: Work, task: Task, share: float) -> Iterator[float]:
    """The seconds of one run, measured in about `share` seconds. One example that takes longer is measured again, since
    the first time may be a hundred times longer on a busy machine."""
    settings, recipe = work.settings, by_tokens(work.system.recipe, task)
    torch.set_num_threads(settings.threads or threads_at_hand())
    model = draw_model(work.system, task, settings.seed).to(device_of(settings.device))
    trained, evaluated = _examples(work, task)
    first = _training(model, work, task, 1)
    if first > share:
        yield first * (trained + FORWARD * evaluated)
        first = min(first, _training(model, work, task, 1))
        yield first * (trained + FORWARD * evaluated)
    if first > share:
        return
    share = min(share, max(SHORT, PART * first * (trained + FORWARD * evaluated)))
    each = _each(_training, model, work, task, most=min(recipe.micro_batch, recipe.batch_size), share=share / 2)
    yield trained * each + evaluated * _each(
        _evaluation, model, work, task, most=recipe.eval_batch, share=share / 2 - first
    )


def _each(measure: Callable[..., float], *arguments: Any, most: int, share: float) -> float:
    """Seconds per example with 1, 2, 4 ... of them, as many as `share` seconds allow: what a pass costs whatever the
    examples shall not count for each. The first time is not counted."""
    measure(*arguments, 1)
    each = spent = measure(*arguments, 1)
    examples = 1
    while examples < most and spent + 2 * examples * each < share:
        examples = min(2 * examples, most)
        each = measure(*arguments, examples)
        spent += examples * each
    return each


def _part(split: Split, examples: np.ndarray, most: int) -> np.ndarray:
    """At most so many of the examples, of lengths that are spread as theirs are: the median alone, or the quartiles."""
    order = examples[np.argsort(split.lengths(examples).max(axis=1), kind="stable")]
    count = min(most, len(order))
    return order[((np.arange(count) + 0.5) * len(order) / count).astype(int)]


def _training(model: Model, work: Work, task: Task, most: int) -> float:
    """Seconds per example, on `most` of the first batch."""
    settings, recipe = work.settings, by_tokens(work.system.recipe, task)
    _, batch = next(batches(len(task.train), recipe, settings.seed))
    examples = _part(task.train, batch, most)
    began = time.monotonic()
    model.train()
    model.redraw(settings.seed, 0)
    accumulate(
        model, task.train, examples, recipe.micro_batch, seed=settings.seed, step=0, precision=settings.precision
    ).tolist()  # an accelerator has done it by then
    return (time.monotonic() - began) / len(examples)


@torch.inference_mode()
def _evaluation(model: Model, work: Work, task: Task, most: int) -> float:
    """Seconds for each example of an evaluation pass over `most` of a batch."""
    size = by_tokens(work.system.recipe, task).eval_batch
    examples = _part(task.val, np.arange(min(len(task.val), size)), most)
    began = time.monotonic()
    model.eval()
    for part in micro_batches(model, task.val, examples, size):
        predict(model, part, work.settings.precision)[0].sum().item()
    return (time.monotonic() - began) / len(examples)
