"""One run on several processes: every rank takes its share of each batch, and all hold the same weights.

Rank 0 leads: it alone writes and prints. The process group is torch's own; where there is none, there is one rank, and
the functions below do nothing. CPU tensors meet over gloo, those on an accelerator over NCCL.
"""

import logging
import multiprocessing
import os
import re
import signal
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from datetime import timedelta
from multiprocessing import resource_tracker
from types import FrameType
from typing import Any, TypeVar

import numpy as np
import torch
from torch import distributed
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from lra.core.errors import UserError
from lra.core.signals import ASKING, INTERRUPTED, Paused, hand_on
from lra.core.subprocesses import die_with_parent

PATIENCE = timedelta(hours=2)  # how long ranks wait for each other; a rank that dies is noticed at once
QUIET = (  # loggers of the launcher, which would say again what the run says itself
    "torch.distributed.elastic",
    "torch.distributed.elastic.agent.server.api",
    "torch.multiprocessing.spawn",
)
TORCHRUN_VARIABLES = ("WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
SLURM_VARIABLES = (
    "SLURM_STEP_NUM_TASKS",
    "SLURM_PROCID",
    "SLURM_LOCALID",
    "SLURM_STEP_NODELIST",
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "SLURM_STEP_TASKS_PER_NODE",
)
Value = TypeVar("Value")


class Lost(RuntimeError):
    """Another rank has died; that rank has printed its own error."""


def started_with() -> int:
    """How many ranks torchrun, srun or `launch` started, this one included.

    Raises UserError where the environment tells how many there are, but not which of them this is.
    """
    for name, needed in ((TORCHRUN_VARIABLES[0], TORCHRUN_VARIABLES), (SLURM_VARIABLES[0], SLURM_VARIABLES)):
        number = os.environ.get(name)
        if not number:
            continue
        if not number.isdecimal() or int(number) < 1:
            raise UserError(f"{name}={number}: expected the number of processes; unset it where there is only this one")
        missing = [other for other in needed if int(number) > 1 and other not in os.environ]
        if missing and not all(other in os.environ for other in SLURM_VARIABLES):
            raise UserError(
                f"{name}={number} says that this is one of {number} processes, but {', '.join(missing)} are not set: "
                f"start with torchrun or srun, or unset {name}"
            )
        return int(number)
    return 1


def count() -> int:
    return distributed.get_world_size() if distributed.is_initialized() else 1


def rank() -> int:
    return distributed.get_rank() if distributed.is_initialized() else 0


def is_main() -> bool:
    """Whether this process is the one that writes."""
    return rank() == 0


def local() -> tuple[int, int]:
    """The number of this rank on its machine, and how many there are."""
    if count() == 1:
        return 0, 1
    return int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])


def share(places: np.ndarray) -> np.ndarray:
    """Those of `places` that this rank takes: every `count`-th, so that sorted ones are dealt out evenly."""
    return places[rank() :: count()]


def all_reduce_sum(*values: float) -> list[float]:
    """The sums over all ranks, the same on each, in float64."""
    if count() == 1:
        return [float(value) for value in values]
    totals = torch.tensor(values, dtype=torch.float64)
    all_reduce_sum_(totals)
    return totals.tolist()


def all_reduce_min(number: int) -> int:
    """The least number that a rank has."""
    return int(min(all_reduce_sum(*(number * (other == rank()) for other in range(count())))))


def all_reduce_sum_(values: torch.Tensor) -> None:
    """Replace `values` by their sum over all ranks."""
    if count() == 1:
        return
    try:
        distributed.all_reduce(values)
    except RuntimeError as error:
        raise Lost("another rank was lost") from error


def add_gradients(parameters: Iterable[torch.nn.Parameter]) -> None:
    """Replace every gradient by its sum over all ranks; every rank must have one for the same parameters."""
    if count() == 1:
        return
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    all_reduce_sum_(flat)
    for gradient, total in zip(gradients, flat.split([gradient.numel() for gradient in gradients]), strict=True):
        gradient.copy_(total.view_as(gradient))


def first_from_any_rank(value: Value | None) -> Value | None:
    """What the first rank that has anything has; every rank gets the same."""
    if count() == 1 or all_reduce_sum(value is not None) == [0]:
        return value
    values: list[Value | None] = [None] * count()
    distributed.all_gather_object(values, value)
    return next(given for given in values if given is not None)


class Gate:
    """The other ranks wait here until the leader trains. It is a context manager of the leader, which may not train."""

    def __init__(self) -> None:
        self._open = False

    def open(self) -> None:
        """Called by the leader."""
        self._open = True
        all_reduce_sum(1)

    def wait(self) -> bool:
        """Called by the others; whether there is something to train."""
        return all_reduce_sum(0) == [1]

    def __enter__(self) -> "Gate":
        return self

    def __exit__(self, *_: object) -> None:
        if is_main() and not self._open:
            all_reduce_sum(0)


@contextmanager
def joined(device: str) -> Iterator[None]:
    """Meet the other ranks, on `device` (cpu or cuda); all but the leader are silent. Nothing where this process is
    alone."""
    if started_with() == 1:
        yield
        return
    _from_slurm(os.environ)
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    distributed.init_process_group("cpu:gloo,cuda:nccl" if device == "cuda" else "gloo", timeout=PATIENCE)
    try:
        if is_main():
            yield
        else:
            with open(os.devnull, "w") as nothing, redirect_stdout(nothing), redirect_stderr(nothing):
                yield
    finally:  # also after an exception, of which the others hear at once when they next meet
        distributed.destroy_process_group()


def _from_slurm(environment: dict[str, str]) -> None:
    """torchrun's variables from those of SLURM's srun, where torchrun's are not there."""
    if "RANK" in environment:
        return
    host = re.match(r"([^\[,]+)(?:\[(\d+))?", environment["SLURM_STEP_NODELIST"])
    number = 7 * int(environment["SLURM_JOB_ID"]) + int(environment["SLURM_STEP_ID"])
    on_each = re.match(r"\d+", environment["SLURM_STEP_TASKS_PER_NODE"])
    environment |= {
        "RANK": environment["SLURM_PROCID"],
        "WORLD_SIZE": environment["SLURM_STEP_NUM_TASKS"],
        "LOCAL_RANK": environment["SLURM_LOCALID"],
        "LOCAL_WORLD_SIZE": on_each[0],
        "MASTER_ADDR": host[1] + (host[2] or ""),
        "MASTER_PORT": str(20_000 + number % 20_000),
    }


def launch(processes: int, work: Callable[..., Value], *arguments: Any) -> Value:
    """What `work(*arguments)` returns on rank 0 of so many new processes.

    They end with this process, whatever ends it. A signal that asks to stop is handed on to them; they save their state
    and return, however long that takes, and then Paused is raised. Raises RuntimeError, which names the rank, where one
    failed or was killed.
    """
    for name in QUIET:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    if multiprocessing.get_start_method() not in multiprocessing.get_all_start_methods():
        multiprocessing.set_start_method("spawn", force=True)  # a worker of joblib hands on one that is only its own
    _start_tracker()
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=processes,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        local_addr="localhost",
        max_restarts=0,
        signals_to_handle="",  # its handlers leave ranks 30 s to save their state, and then kill them
        logs_specs=DefaultLogsSpecs(log_dir=os.devnull),  # no folder that a process that is killed would leave
    )
    with _handed_on() as asked:
        try:
            result = elastic_launch(config, _child)(os.getpid(), work, *arguments)[0]
        except ChildFailedError as error:
            if not asked:
                number, failure = error.get_first_failure()
                how = failure.signal_name() if failure.exitcode < 0 else f"exit code {failure.exitcode}"
                raise RuntimeError(f"rank {number} of {processes} ended with {how}") from None
        except Paused:  # asked before there was a process
            pass
    if asked:
        hand_on(asked[0])
        raise Paused.by(asked[0])
    return result


@contextmanager
def _handed_on() -> Iterator[list[int]]:
    """Hand a signal that asks to stop on to the processes that are started meanwhile; the list gets its number.

    Ctrl-C has reached them by itself where it came from a terminal, and a second SIGINT stops them at once, so they are
    told of it by SIGTERM. Where there is none yet, Paused is raised at once, and after a second SIGINT
    KeyboardInterrupt.
    """
    asked: list[int] = []
    before = multiprocessing.active_children()

    def hear(number: int, _frame: FrameType | None) -> None:
        if asked:
            if number == signal.SIGINT:
                raise KeyboardInterrupt
            return
        asked.append(number)
        started = [child for child in multiprocessing.active_children() if child not in before]
        if not started:
            raise Paused.by(number)
        for child in started:
            with suppress(ProcessLookupError):
                os.kill(child.pid, signal.SIGTERM if number == signal.SIGINT else number)

    here = threading.current_thread() is threading.main_thread()
    handlers = {number: signal.signal(number, hear) for number in ASKING} if here else {}
    try:
        yield asked
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _child(parent: int, work: Callable[..., Value], *arguments: Any) -> Value:
    die_with_parent(parent)
    try:
        result = work(*arguments)
    except KeyboardInterrupt:
        os._exit(INTERRUPTED)  # the launcher takes it for a good end, and waits for a result for ever
    for number in ASKING:  # what ends it now, with nothing left to do, lets the launcher wait for it for ever
        signal.signal(number, signal.SIG_IGN)
    return result


def _start_tracker() -> None:
    """Start Python's process that clears up semaphores, without a terminal: after a rank was killed it would print a
    traceback for every semaphore that it finds."""
    standard_error = os.dup(2)
    with open(os.devnull, "w") as nothing:
        os.dup2(nothing.fileno(), 2)
        try:
            resource_tracker.ensure_running()
        finally:
            os.dup2(standard_error, 2)
            os.close(standard_error)
