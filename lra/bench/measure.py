"""How time, memory and work are measured.

Machines are shared and noisy: subjects take turns, each in a process of its own, and what counts is the ratio within
a turn. What is counted of them is counted before, in other processes. A subject that runs out of memory is a result,
not a crash.
"""

import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Callable, Hashable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.profiler import record_function
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from lra.errors import UserError
from lra.run import release_memory

GIB = 1 << 30
MEASURED, OUT_OF_MEMORY = "measured", "out of memory"
PRELOADED = ["lra.bench.models", "torch._dynamo"]  # PyTorch imports the latter when it needs it
ALLOCATION, AGAIN = "[memory]", "again"  # events of a profile: of tensors' memory taken or given back, and our own
QUIET = {"KINETO_LOG_LEVEL": "99", "TORCH_CPP_LOG_LEVEL": "ERROR"}  # a profile's words about itself, on stderr
PRODUCT = {"cpu": (1024, 10), "cuda": (8192, 10)}  # size and times of the products that show what the machine can do

Name = TypeVar("Name", bound=Hashable)
Result = dict[str, Any]
Subject = tuple[Callable[..., "Work"], tuple]
"""What builds a work in its process, and from what."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """What a process measures: `step(turn)`.

    `forward`: the forward pass in it, of `module`, where what it keeps is of interest. `distinct`: after so many turns
    the amount of work repeats. `facts`: what is known without measuring.
    """

    step: Callable[[int], object]
    device: str
    module: nn.Module
    forward: Callable[[], Tensor] | None = None
    distinct: int = 1
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Place:
    """Where work is measured. `memory_limit`: GiB that it may take beyond its weights and inputs."""

    device: str
    threads: int
    memory_limit: float | None


class OutOfMemory(Exception):
    """The work needs more memory than there is, or than it may have."""


class Worker:
    """A process that builds one work and answers questions about it; a context manager."""

    def __init__(self, place: Place, build: Callable[..., Work], *arguments: Any) -> None:
        for name, value in QUIET.items():
            os.environ.setdefault(name, value)
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=_serve, args=(other, place, build, arguments), daemon=True)
        self._process.start()
        other.close()

    def ask(self, question: Callable[..., Any], *arguments: Any) -> Any:
        """`question(work, *arguments)`, answered there. Raises OutOfMemory, or UserError where the build does."""
        try:
            self._pipe.send((question, arguments))
            error, answer = self._pipe.recv()
        except (EOFError, ConnectionError):
            self._process.join()
            if self._process.exitcode == -signal.SIGKILL:
                raise OutOfMemory("killed by the system") from None
            raise RuntimeError(f"a measuring process ended with exit code {self._process.exitcode}") from None
        if error is not None:
            raise error(answer)
        return answer

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End the process, whatever it does."""
        self._pipe.close()
        self._process.terminate()
        self._process.join()


def _serve(pipe: Connection, place: Place, build: Callable[..., Work], arguments: tuple) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent stops, and closes the pipe
    torch.set_num_threads(place.threads)
    work = None
    with suppress(EOFError, ConnectionError):  # until the parent is gone
        while True:
            question, rest = pipe.recv()
            try:
                if work is None:
                    work = build(*arguments)
                    _limit_memory(place)
                answer = None, question(work, *rest)
            except Exception as error:
                answer = _told(error)
            pipe.send(answer)


def _told(error: Exception) -> tuple[type[Exception], str]:
    if isinstance(error, UserError):
        return UserError, str(error)
    if is_out_of_memory(error):
        return OutOfMemory, str(error).splitlines()[0]
    return RuntimeError, "".join(traceback.format_exception(error))


def is_out_of_memory(error: Exception) -> bool:
    """Whether an allocation failed."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)


def _limit_memory(place: Place) -> None:
    if place.memory_limit is None:
        return
    limit = int(place.memory_limit * GIB)
    if place.device == "cuda":
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, (torch.cuda.memory_allocated() + limit) / total))
        return
    import resource

    lines = Path("/proc/self/status").read_text().splitlines()
    own = 1024 * int(next(line for line in lines if line.startswith("VmData:")).split()[1])
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (own + limit, hard))


def take_turns(subjects: Mapping[Name, Callable[[int], float]], rounds: int) -> dict[Name, list[float]]:
    """Seconds of each subject in each round, after one round that does not count; every other round runs backwards.

    A subject that runs out of memory drops out, and is not in the result.
    """
    found: dict[Name, list[float]] = {name: [] for name in subjects}
    for number in range(-1, rounds):
        order = list(found) if number % 2 == 0 else list(reversed(found))
        for name in order:
            try:
                taken = subjects[name](max(number, 0))
            except OutOfMemory:
                del found[name]
                continue
            if number >= 0:
                found[name].append(taken)
    return found


def seconds(work: Work, steps: int, turn: int) -> float:
    """Of one step, the mean of so many: on a CPU those of this process (all its threads), on an accelerator those of
    its events."""
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


def _repeat(work: Work, steps: int, turn: int) -> None:
    for number in range(steps):
        work.step(turn * steps + number)


def ratio(seconds: list[float], reference: list[float]) -> tuple[float, float, float]:
    """Median, smallest and largest of the ratios of the rounds."""
    ratios = [one / other for one, other in zip(seconds, reference, strict=True)]
    return median(ratios), min(ratios), max(ratios)


def allocated(work: Work) -> int:
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


def saved(work: Work) -> int | None:
    """What the forward pass keeps for the backward pass in bytes, each storage once, without the module's own."""
    if work.forward is None:
        return None
    known = {value.untyped_storage().data_ptr() for value in work.module.state_dict().values()}
    seen: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            seen[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        work.forward()
    return sum(seen.values())


def flops(work: Work) -> float:
    """Operations of a step (the mean of distinct ones) in products and convolutions; a multiplication and its
    addition are two."""
    with FlopCounterMode(display=False, custom_mapping=FUSED_ON_CPU) as counter:
        for turn in range(work.distinct):
            work.step(turn)
    return counter.get_total_flops() / work.distinct


def _fused(query: torch.Size, key: torch.Size, value: torch.Size, *_: Any, **__: Any) -> int:
    return sdpa_flop_count(query, key, value)


def _fused_backward(grad: torch.Size, query: torch.Size, key: torch.Size, value: torch.Size, *_: Any, **__: Any) -> int:
    return sdpa_backward_flop_count(grad, query, key, value)


FUSED_ON_CPU = {  # those of accelerators are known to torch's counter
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _fused,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: _fused_backward,
}


def facts(work: Work) -> dict[str, Any]:
    return work.facts


def product(size: int, times: int, precision: str, device: str) -> Work:
    """`times` products of two square matrices."""
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    one, two = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))

    def step(turn: int) -> None:
        for _ in range(times):
            one @ two

    return Work(step=step, device=device, module=nn.Module())


def count(subject: Subject, place: Place) -> Result:
    """What is known of a subject without timing it, or that it runs out of memory."""
    build, arguments = subject
    with Worker(place, build, *arguments) as worker:
        try:
            return {
                "status": MEASURED,
                "allocated_bytes": worker.ask(allocated),
                "flops": worker.ask(flops),
                "saved_bytes": worker.ask(saved),
                **worker.ask(facts),
            }
        except OutOfMemory as error:
            return {"status": OUT_OF_MEMORY, "reason": str(error)}


def side_by_side(
    subjects: Mapping[Name, Subject],
    place: Place,
    rounds: int,
    precision: str,
    steps: Callable[[Name], int] = lambda name: 1,
) -> dict[Name, Result]:
    """Every measure of each subject; a turn is so many of its steps.

    `ratio` compares its time with that of the first, `share` its operations per second with those of a product of
    large matrices: median, smallest and largest of the rounds.
    """
    found = {title: count(subject, place) for title, subject in subjects.items()}
    measured = {title: subjects[title] for title, result in found.items() if result["status"] == MEASURED}
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
            found[title] = {"status": OUT_OF_MEMORY, "reason": "while it was timed"}
            continue
        share = ratio(taken["product"], taken[title])
        found[title] |= {
            "seconds": taken[title],
            "ratio": ratio(taken[title], taken[first]) if first in taken else None,
            "share": [value * found[title]["flops"] / best for value in share],
            "best_flops_per_second": best / median(taken["product"]),
        }
    return found
