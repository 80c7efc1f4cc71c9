"""How time and memory are measured.

Machines are shared and noisy: subjects take turns in one process, and what counts is the ratio within a turn.
"""

import time
from collections.abc import Callable, Mapping
from statistics import median

import torch
from torch import Tensor

from lra.record import PeakMemory

Step = Callable[[], object]


def take_turns(subjects: Mapping[str, Step], rounds: int, device: str) -> dict[str, list[float]]:
    """Seconds of each subject in each round, after one round that does not count.

    On a CPU the seconds of this process (all its threads), on an accelerator those of its events.
    """
    clock = _events if device == "cuda" else _process
    for step in subjects.values():
        step()
    seconds: dict[str, list[float]] = {name: [] for name in subjects}
    for turn in range(rounds):
        order = list(subjects) if turn % 2 == 0 else list(reversed(subjects))
        for name in order:
            seconds[name].append(clock(subjects[name]))
    return seconds


def ratio(seconds: list[float], reference: list[float]) -> tuple[float, float, float]:
    """Median, smallest and largest of the ratios of the rounds."""
    ratios = [one / other for one, other in zip(seconds, reference, strict=True)]
    return median(ratios), min(ratios), max(ratios)


def peak_bytes(step: Step, device: str) -> int | None:
    """What the first call of `step` needs at its peak beyond what is there before; in a fresh process on a CPU."""
    memory = PeakMemory(device)
    before = torch.cuda.memory_allocated() if device == "cuda" else memory.read()
    step()
    after = memory.read()
    return None if before is None or after is None else after - before


def saved_bytes(forward: Callable[[], Tensor], own: torch.nn.Module) -> int:
    """What `forward` keeps for the backward pass, each storage once, without the tensors of `own`."""
    known = {value.untyped_storage().data_ptr() for value in own.state_dict().values()}
    seen: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            seen[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        forward()
    return sum(seen.values())


def _process(step: Step) -> float:
    start = time.process_time()
    step()
    return time.process_time() - start


def _events(step: Step) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    step()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1000
