"""What the runs of a sweep will take on this machine, measured with a part of their first batches."""

import math
import multiprocessing
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch

from lra import record
from lra.batches import batches, cuts, predict
from lra.console import Preparation
from lra.errors import UserError
from lra.files import digest
from lra.fit import accumulate
from lra.model import Model
from lra.run import device_of, initial, keep_memory, threads_at_hand
from lra.settings import Settings, System, assemble
from lra.signals import ASKING
from lra.tasks import Place, Task

SECONDS = 15  # for all measurements together
FORWARD = 1 / 3  # of training
GOLDEN = (math.sqrt(5) - 1) / 2  # its multiples, modulo 1, are spread evenly, however many there are


@dataclass(frozen=True, kw_only=True)
class Work:
    """A cell of a sweep, and how many of its runs are to be done."""

    settings: Settings
    system: System
    runs: int

    @property
    def tokens(self) -> int:
        """Of one training, padding included; an upper bound where padding is masked."""
        recipe, facts = self.system.recipe, self.system.builder.facts
        return recipe.steps * recipe.batch_size * facts.documents * facts.max_len


def seconds_per_run(works: list[Work]) -> list[float | None]:
    """Of training and evaluation; None for cells that could not be measured in time, which are spread over all.

    It happens in a child, which leaves nothing in this process and is killed when time is up.
    """
    tasks = _prepared(works)
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_measure, args=(works, tasks, sender), daemon=True)
    child.start()
    sender.close()
    found: list[float | None] = [None] * len(works)
    end = time.monotonic() + SECONDS
    try:
        with suppress(EOFError):  # all are measured, or it was killed for want of memory
            while receiver.poll(max(0.0, end - time.monotonic())):
                place, seconds = receiver.recv()
                found[place] = seconds
    finally:
        child.kill()
        child.join()
    return found


def _prepared(works: list[Work]) -> list[Task | None]:
    """The task of each; None where its data cannot be had, which its runs will say."""
    tasks: dict[str, Task | None] = {}
    for work in works:
        key = digest(work.settings.task)
        if key not in tasks:
            tasks[key] = None
            with Preparation(work.system.builder.facts.name) as progress, suppress(UserError, OSError):
                tasks[key] = work.system.builder.build(Place.of(work.settings, progress))
    return [tasks[digest(work.settings.task)] for work in works]


def _measure(works: list[Work], tasks: list[Task | None], sender: Connection) -> None:
    for number in ASKING:
        signal.signal(number, signal.SIG_DFL)
    keep_memory()
    for place in sorted(range(len(works)), key=lambda place: place * GOLDEN % 1):
        if tasks[place] is None:
            continue
        try:
            seconds = _seconds(works[place], tasks[place], SECONDS / len(works))
        except Exception:  # a system that fails says so when it is run
            continue
        sender.send((place, seconds))


def _seconds(work: Work, task: Task, share: float) -> float:
    """Of one run, measured in about `share` seconds: with its model where that is cheap, else with one block of it and
    one example, since every block costs the same."""
    recipe, depth = work.system.recipe, work.settings.model["depth"]
    torch.set_num_threads(work.settings.threads or threads_at_hand())
    trained = recipe.steps * recipe.batch_size
    looks = -(-recipe.steps // recipe.eval_every)
    evaluated = looks * len(task.val) + min(looks, 2) * len(task.test)
    one = depth * _again(_training, _model(work, task, 1), work, task, 1)
    examples = int(share / one / 4)
    if examples <= 1:
        return one * (trained + FORWARD * evaluated)
    whole = (_model(work, task, depth), work, task, examples)
    return trained * _again(_training, *whole) + evaluated * _again(_evaluation, *whole)


def _again(measure: Callable[..., float], *arguments: Any) -> float:
    """The second time, since the first is slower."""
    measure(*arguments)
    return measure(*arguments)


def _model(work: Work, task: Task, depth: int) -> Model:
    settings = replace(work.settings, model={**work.settings.model, "depth": depth})
    return initial(assemble(settings), task, settings.seed).to(device_of(settings.device))


def _training(model: Model, work: Work, task: Task, most: int) -> float:
    """Seconds per example, on `most` of the first batch."""
    settings, recipe = work.settings, work.system.recipe
    _, batch = next(batches(len(task.train), recipe, settings.seed))
    clock, examples = record.Stopwatch(), batch[:most]
    model.train()
    model.redraw(settings.seed, 0)
    accumulate(
        model, task.train, examples, recipe.micro_batch, seed=settings.seed, step=0, precision=settings.precision
    )
    return clock.read() / len(examples)


@torch.inference_mode()
def _evaluation(model: Model, work: Work, task: Task, most: int) -> float:
    """Likewise, on `most` of a batch of evaluation."""
    size = work.system.recipe.eval_batch
    clock, examples = record.Stopwatch(), np.arange(min(len(task.val), size, most))
    model.eval()
    for places, length in cuts(model, task.val, examples, size):
        predict(model, task.val, examples[places], length, work.settings.precision)[0].sum().item()
    return clock.read() / len(examples)
