"""A process that builds one workload, and measures it when it is asked."""

import multiprocessing
import os
import resource
import signal
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lra.core.errors import UserError

GIB = 1 << 30
PRELOADED = ["lra.bench.models", "torch._dynamo"]  # PyTorch imports the latter when it needs it
QUIET = {"KINETO_LOG_LEVEL": "99", "TORCH_CPP_LOG_LEVEL": "ERROR"}  # a profile's words about itself, on stderr


@dataclass(frozen=True, kw_only=True)
class Workload:
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
class BenchPlace:
    """Where work is measured. `memory_limit`: GiB that it may take beyond its weights and inputs."""

    device: str
    threads: int
    memory_limit: float | None


class OutOfMemory(Exception):
    """The work needs more memory than there is, or than it may have."""


class Worker:
    """A process that builds one work and answers questions about it; a context manager."""

    def __init__(self, place: BenchPlace, build: Callable[..., Workload], *arguments: Any) -> None:
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
        """End the process, whatever it does."""
        self._pipe.close()
        self._process.terminate()
        self._process.join()


def _serve(pipe: Connection, place: BenchPlace, build: Callable[..., Workload], arguments: tuple) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent stops, and closes the pipe
    torch.set_num_threads(place.threads)
    work = None
    with suppress(EOFError, ConnectionError):  # until the parent is gone
        while True:
            question, rest = pipe.recv()
            try:
                if work is None:
                    work = build(*arguments)
                    limit_memory(place)
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
    told = ("can't allocate memory", "Resource temporarily unavailable")  # the latter where there is none for a thread
    return isinstance(error, RuntimeError) and any(part in str(error) for part in told)


def limit_memory(place: BenchPlace) -> None:
    """Let this process take the limit beyond what it has. Raises UserError where no system holds it to that."""
    if place.memory_limit is None:
        return
    limit = int(place.memory_limit * GIB)
    if place.device == "cuda":
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, (torch.cuda.memory_allocated() + limit) / total))
        return
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        raise UserError(
            f"memory_limit={place.memory_limit}: only Linux holds a process to it; say memory_limit=null"
        ) from None
    taken = 1024 * int(next(line for line in lines if line.startswith("VmData:")).split()[1])
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (taken + limit, hard))
