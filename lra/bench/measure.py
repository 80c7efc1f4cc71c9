"""Time and peak memory of steps, measured side by side in one process."""

from collections.abc import Callable, Hashable, Mapping
from typing import TypeVar

import torch
from torch.profiler import profile, record_function
from torch.utils.benchmark import Timer

Name = TypeVar("Name", bound=Hashable)
ALLOCATION, MEASURED = "[memory]", "measured step"  # events of a profile


def seconds_in_turns(steps: Mapping[Name, Callable[[], object]], rounds: int) -> dict[Name, list[float]]:
    """Time every step once a round, in alternating order, so that drifts of the machine affect all alike.

    Args:
        steps: The steps by name. Before each timed call a step runs twice to warm up.
        rounds: Timed calls of each step.

    Returns:
        Seconds of wall time by name, one value a round; an accelerator is synchronised.
    """
    threads = torch.get_num_threads()
    timers = {name: Timer("step()", globals={"step": step}, num_threads=threads) for name, step in steps.items()}
    seconds: dict[Name, list[float]] = {name: [] for name in timers}
    for number in range(rounds):
        for name in list(timers) if number % 2 == 0 else reversed(list(timers)):
            seconds[name].append(timers[name].timeit(1).median)
    return seconds


def peak_memory(step: Callable[[], object], device: str) -> int:
    """Return the bytes of tensors at the peak of a step, beyond those that live between steps."""
    step()
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step()
        return torch.cuda.max_memory_allocated() - before
    with profile(profile_memory=True) as profiler:
        step()  # its end frees tensors of the step before, of which this profile knows no size
        with record_function(MEASURED):
            step()
    total = before = peak = 0
    for event in sorted(profiler.profiler.kineto_results.events(), key=lambda event: event.start_ns()):
        if event.name() == MEASURED:
            before = peak = total
        elif event.name() == ALLOCATION:
            total += event.nbytes()
            peak = max(peak, total)
    return peak - before
