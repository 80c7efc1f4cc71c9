"""A training step measured here, on made-up documents of the greatest length: it needs no data."""

import json
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import torch

from lra.config.settings import Settings
from lra.core.console import say
from lra.core.subprocesses import results_from_child
from lra.runs.build import Job, System
from lra.runs.describe import describe
from lra.runs.device import PeakMemory, device_of, keep_memory, threads_at_hand
from lra.runs.initial_weights import draw_model
from lra.runs.memory import memory
from lra.runs.micro_batch import by_tokens
from lra.runs.stand_in import stand_in
from lra.training.adamw import make_optimizer
from lra.training.update import update

SECONDS = 10  # that measuring a step may take


@dataclass(frozen=True, kw_only=True)
class StepCost:
    """Seconds of a whole step, as those of `examples` of its batch are; bytes of memory while these were at work, None
    where the system does not tell."""

    seconds: float
    memory: int | None
    examples: int


def tell(job: Job, alone: bool) -> None:
    """Print the facts of a run as JSON; of one that is `alone` also what a step takes here, measured."""
    facts = {"run_folder": str(job.folder), **describe(job.system), **memory(job.system, job.settings.precision)}
    if alone:
        cost = step_cost(job.settings, job.system, SECONDS)
        facts["measured"] = cost and {
            "step_seconds": cost.seconds,
            "peak_memory_bytes": cost.memory,
            "examples": cost.examples,
        }
        say(f"{job.title}: {in_words(cost, job.system)}")
    print(json.dumps(facts, indent=1))


def in_words(cost: StepCost | None, system: System) -> str:
    """What a step takes, and of how much of its batch that is known."""
    recipe = by_tokens(system.recipe, system.builder.facts)
    batch = f"{recipe.batch_size} examples of the greatest length"
    if cost is None:
        return f"{SECONDS} s did not suffice to measure a step: not one of its {batch}"
    memory = "" if cost.memory is None else f" and {cost.memory / 2**30:.2g} GiB"
    said = f"a step takes {cost.seconds:.2g} s{memory} here, with {batch}"
    if cost.examples == recipe.batch_size:
        return said
    least = ", and the memory is more" if memory and cost.examples < recipe.micro_batch else ""
    return f"{said}; {SECONDS} s did not suffice for more than {cost.examples} of them, so the time is reckoned{least}"


def step_cost(settings: Settings, system: System, seconds: float) -> StepCost | None:
    """The cost of a step with the largest part of a batch that could be measured in so many seconds: all of it, a
    micro-batch, or one example. None where there was no time for one."""
    cost = None
    with suppress(ChildProcessError):  # the next part of the batch wanted more memory than there is
        for cost in results_from_child(_measure, settings, system, seconds=seconds):  # noqa: B007
            pass
    return cost


def _measure(send: Callable[[StepCost], None], settings: Settings, system: System) -> None:
    """Send the cost with one example, a micro-batch and the batch, each twice, since the first time is slower."""
    facts = system.builder.facts
    recipe = by_tokens(system.recipe, facts)
    keep_memory()
    torch.set_num_threads(settings.threads or threads_at_hand())
    device = device_of(settings.device)
    memory = PeakMemory(device)
    with suppress(Exception):  # a system that fails says so when it is run
        model = draw_model(system, facts, settings.seed).to(device)
        optimizer = make_optimizer(model, recipe)
        split = stand_in(facts, recipe.batch_size, settings.seed)
        for examples in sorted({1, min(recipe.micro_batch, recipe.batch_size), recipe.batch_size}):
            for step in range(2):
                began = time.monotonic()
                part = np.arange(examples)
                asked = update(
                    model, optimizer, split, part, recipe, seed=settings.seed, step=step, precision=settings.precision
                )
                asked.numbers.read()  # an accelerator has done it by then
                whole = (time.monotonic() - began) * recipe.batch_size / examples
                send(StepCost(seconds=whole, memory=memory.read(), examples=examples))
