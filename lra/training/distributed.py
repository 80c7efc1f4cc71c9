"""Run data-parallel ranks: each process computes its part of every batch, and all have equal weights.

torchrun starts the ranks; without it there is one rank, which exchanges nothing. Rank 0 alone writes and prints.
Tensors on a CPU are reduced over gloo, those on an accelerator over NCCL.
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from datetime import timedelta
from typing import TypeVar

import numpy as np
import torch
from torch import distributed

from lra.core.errors import UserError
from lra.core.signals import Paused

PATIENCE = timedelta(hours=2)  # maximum wait for another rank; a rank that dies is noticed at once
# Environment variables that torchrun sets
VARIABLES = ("WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
Value = TypeVar("Value")


class Lost(RuntimeError):
    """Raised if another rank has died. That rank has printed its own error."""


def started_with() -> int:
    """Return the number of ranks that torchrun started. Raises UserError if its variables are incomplete."""
    number = os.environ.get("WORLD_SIZE", "1")
    if number == "1":
        return 1
    missing = [name for name in VARIABLES if name not in os.environ]
    if missing or not number.isdecimal():
        wanted = f"{', '.join(missing)} set as well" if missing else "a whole number"
        raise UserError(f"WORLD_SIZE={number}: expected {wanted}; use torchrun, or unset WORLD_SIZE")
    return int(number)


def count() -> int:
    return distributed.get_world_size() if distributed.is_initialized() else 1


def rank() -> int:
    return distributed.get_rank() if distributed.is_initialized() else 0


def is_main() -> bool:
    """Return True on the rank that writes and prints."""
    return rank() == 0


def count_here() -> int:
    """Return the number of ranks on this machine."""
    return int(os.environ["LOCAL_WORLD_SIZE"]) if count() > 1 else 1


def shard(examples: np.ndarray) -> np.ndarray:
    """Return this rank's part: every `count()`-th example, which balances ranks if examples are sorted by length."""
    return examples[rank() :: count()]


def all_reduce_sum(*values: float) -> list[float]:
    """Return the sum of each value over all ranks, in float64."""
    if count() == 1:
        return [float(value) for value in values]
    totals = torch.tensor(values, dtype=torch.float64)  # counts are exact up to 2**53
    all_reduce_sum_(totals)
    return totals.tolist()


def all_reduce_min(number: int) -> int:
    """Return the minimum of `number` over all ranks."""
    # The only reduction here is a sum, so each rank sets one element of a vector.
    return int(min(all_reduce_sum(*(number * (other == rank()) for other in range(count())))))


def all_reduce_sum_(values: torch.Tensor) -> None:
    """Replace `values` by their sum over all ranks."""
    if count() == 1:
        return
    try:
        distributed.all_reduce(values)
    except RuntimeError as error:
        raise Lost("another rank was lost") from error  # gloo raises RuntimeError, NCCL a subclass of it


def add_gradients(parameters: Iterable[torch.nn.Parameter]) -> None:
    """Replace every gradient by its sum over all ranks; the same parameters must have gradients on every rank."""
    if count() == 1:
        return
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    # Reduce one flat vector, because each reduction has a latency. Complex gradients become pairs of real numbers.
    gradients = [torch.view_as_real(gradient) if gradient.is_complex() else gradient for gradient in gradients]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    all_reduce_sum_(flat)
    for gradient, total in zip(gradients, flat.split([gradient.numel() for gradient in gradients]), strict=True):
        gradient.copy_(total.view_as(gradient))


def first_from_any_rank(value: Value | None) -> Value | None:
    """Return, on every rank, the value of the first rank whose value is not None; None if no rank has one."""
    if count() == 1 or all_reduce_sum(value is not None) == [0]:
        return value
    # Objects travel by pickle and cost two collectives, so the sum above first asks whether any rank has a value.
    values: list[Value | None] = [None] * count()
    distributed.all_gather_object(values, value)
    return next(given for given in values if given is not None)


def pause_all(requested: Paused | None) -> None:
    """Raise `Paused` on every rank if any rank was asked to pause."""
    if (pause := first_from_any_rank(requested)) is not None:
        raise pause


@contextmanager
def joined(device: str) -> Iterator[None]:
    """Join the process group of torchrun, if there is one, on `device` (cpu or cuda); only rank 0 prints."""
    if started_with() == 1:
        yield
        return
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    distributed.init_process_group("cpu:gloo,cuda:nccl" if device == "cuda" else "gloo", timeout=PATIENCE)
    try:
        if is_main():
            yield
        else:
            with open(os.devnull, "w", encoding="utf-8") as nothing, redirect_stdout(nothing), redirect_stderr(nothing):
                yield
    finally:  # also after an exception, which the others notice at their next reduction
        distributed.destroy_process_group()
