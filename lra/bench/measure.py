"""How time, memory and operations are measured.

Machines are shared and noisy. So subjects take turns, each in a process of its own, and what counts is the ratio within
a turn. Memory and operations are counted before, in other processes. A subject that runs out of memory is a result, not
a crash.
"""

import time
from collections.abc import Callable, Hashable, Mapping
from contextlib import ExitStack
from functools import partial
from operator import attrgetter
from statistics import median
from typing import Any, TypeVar

import torch
from torch import nn
from torch.profiler import record_function

from lra.bench.worker import BenchPlace, OutOfMemory, Worker, Workload
from lra.ops.saved_tensors import saved_tensors
from lra.runs.device import release_memory
from lra.runs.operations import counter

MEASURED, OUT_OF_MEMORY = "measured", "out of memory"
ALLOCATION, AGAIN = "[memory]", "again"  # events of a profile: of tensors' memory taken or given back, and our own
PRODUCT = {"cpu": (1024, 10), "cuda": (8192, 10)}  # size and times of the products that show what the machine can do

Name = TypeVar("Name", bound=Hashable)
Result = dict[str, Any]
Subject = tuple[Callable[..., Workload], tuple]
"""What builds a workload in its process, and from what."""


def take_turns(subjects: Mapping[Name, Callable[[int], float]], rounds: int) -> dict[Name, list[float]]:
    """Seconds of each subject in each round, after one round that does not count; every other round runs backwards.

    A subject that runs out of memory drops out, and is not in the result.
    """
    times: dict[Name, list[float]] = {name: [] for name in subjects}
    for number in range(-1, rounds):
        order = list(times) if number % 2 == 0 else list(reversed(times))
        for name in order:
            try:
                taken = subjects[name](max(number, 0))
            except OutOfMemory:
                del times[name]
                continue
            if number >= 0:
                times[name].append(taken)
    return times


def seconds(work: Workload, steps: int, turn: int) -> float:
    """The mean seconds of one of so many steps: on a CPU those of this process (all its threads), on an accelerator
    those of its events."""
    if work.device == "cuda":
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        _repeat(work, steps, turn)
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / 1000 / steps
    begun = time.process_time()
    _repeat(work, steps, turn)
    return (time.process_time() - begun) / steps


def _repeat(work: Workload, steps: int, turn: int) -> None:
    for number in range(steps):
        work.step(turn * steps + number)


def spread(values: list[float]) -> tuple[float, float, float]:
    """Median, smallest and largest."""
    return median(values), min(values), max(values)


def ratio(seconds: list[float], reference: list[float]) -> tuple[float, float, float]:
    """The spread of the ratios of the rounds."""
    return spread([taken / other for taken, other in zip(seconds, reference, strict=True)])


def allocated(work: Workload) -> int:
    """Bytes of tensors at the peak of a step beyond those that live between steps.

    What a process takes beside them, for holes and for libraries, is not in it. Nothing should be timed after it in
    the same process.
    """
    if work.device == "cuda":
        work.step(0)
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        work.step(0)
        return torch.cuda.max_memory_allocated() - before
    release_memory()  # the events of a profile would lie between kept blocks, and these no longer fit
    with torch.autograd.profiler.profile(profile_memory=True) as profiler:
        work.step(0)  # what it leaves behind is known by its size, and so is its end in the next
        with record_function(AGAIN):
            work.step(0)
    total = held = highest = 0
    for event in sorted(profiler.kineto_results.events(), key=lambda event: event.start_ns()):
        if event.name() == AGAIN:
            held = highest = total
        elif event.name() == ALLOCATION:
            total += event.nbytes()
            highest = max(highest, total)
    return highest - held


def saved(work: Workload) -> int | None:
    """What the forward pass keeps for the backward pass in bytes, each storage once, without the module's own."""
    if work.forward is None:
        return None
    with saved_tensors(work.module.state_dict().values()) as kept:
        result = work.forward()
    return kept() if result.requires_grad else 0


def flops(work: Workload) -> float:
    """Operations of a step, the mean of distinct ones."""
    with counter() as counted:
        for turn in range(work.distinct):
            work.step(turn)
    return counted.get_total_flops() / work.distinct


def product(size: int, times: int, precision: str, device: str) -> Workload:
    """`times` products of two square matrices."""
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    left, right = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))

    def step(turn: int) -> None:
        for _ in range(times):
            left @ right

    return Workload(step=step, device=device, module=nn.Module())


def count(subject: Subject, place: BenchPlace) -> Result:
    """What is known of a subject without timing it, or that it runs out of memory."""
    build, arguments = subject
    with Worker(place, build, *arguments) as worker:
        try:
            return {
                "status": MEASURED,
                "allocated_bytes": worker.ask(allocated),
                "flops": worker.ask(flops),
                "saved_bytes": worker.ask(saved),
                **worker.ask(attrgetter("facts")),
            }
        except OutOfMemory as error:
            return {"status": OUT_OF_MEMORY, "reason": str(error)}


def side_by_side(
    subjects: Mapping[Name, Subject],
    place: BenchPlace,
    rounds: int,
    precision: str,
    steps: Callable[[Name], int] = lambda name: 1,
) -> dict[Name, Result]:
    """Every measure of each subject; a turn is so many of its steps.

    `ratio` compares its time with that of the first, `share` its operations per second with those of a product of
    large matrices: median, smallest and largest of the rounds.
    """
    results = {title: count(subject, place) for title, subject in subjects.items()}
    measured = {title: subjects[title] for title, result in results.items() if result["status"] == MEASURED}
    with ExitStack() as stack:
        workers = {
            title: stack.enter_context(Worker(place, build, *arguments))
            for title, (build, arguments) in measured.items()
        }
        probe = stack.enter_context(Worker(place, product, *PRODUCT[place.device], precision, place.device))
        turns = {title: partial(worker.ask, seconds, steps(title)) for title, worker in workers.items()}
        taken = take_turns({**turns, "product": partial(probe.ask, seconds, 1)}, rounds)
        best = probe.ask(flops)
    first = next(iter(subjects))
    for title in measured:
        if title not in taken:
            results[title] = {"status": OUT_OF_MEMORY, "reason": "while it was timed"}
            continue
        share = ratio(taken["product"], taken[title])
        results[title] |= {
            "seconds": taken[title],
            "ratio": ratio(taken[title], taken[first]) if first in taken else None,
            "share": [value * results[title]["flops"] / best for value in share],
            "best_flops_per_second": best / median(taken["product"]),
        }
    return results
