"""Copies between the host and an accelerator that do not wait for earlier work, and types under autocast."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def is_asynchronous(device: torch.device) -> bool:
    """Return True if computations on the device finish after the calls that start them."""
    return device.type == "cuda"


def to_device(host: Tensor, device: torch.device) -> Tensor:
    """Copy a host tensor to the device, from pinned memory that PyTorch keeps until it has been read."""
    return host.pin_memory().to(device, non_blocking=True) if is_asynchronous(device) else host.to(device)


class AsyncNumbers:
    """Numbers [n] on a device whose copy to the host starts at construction."""

    def __init__(self, numbers: Tensor) -> None:
        self._numbers, self._arrived = numbers, None
        if is_asynchronous(numbers.device):
            self._numbers = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
            self._numbers.copy_(numbers, non_blocking=True)
            self._arrived = torch.cuda.Event()
            self._arrived.record()

    def read(self) -> list[float]:
        """Wait for this copy, but not for later work, and return the numbers."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return self._numbers.tolist()


def full_precision(device: torch.device) -> AbstractContextManager:
    """Return a context without autocast, for sums, exponentials and transforms that need more digits than bf16 has."""
    if device.type == "meta":  # has no autocast
        return nullcontext()
    return torch.autocast(device.type, enabled=False)


def autocast_dtype(x: Tensor) -> torch.dtype:
    """Return the type in which products of x are computed."""
    if x.is_meta or x.dtype == torch.float64 or not torch.is_autocast_enabled(x.device.type):
        return x.dtype
    return torch.get_autocast_dtype(x.device.type)


def cumulative_sum(x: Tensor, dim: int) -> Tensor:
    """Sum along `dim`; on CUDA, where `cumsum` of floats is not deterministic, by a product."""
    return triangular_sum(x, dim) if x.device.type == "cuda" else x.cumsum(dim)


def triangular_sum(x: Tensor, dim: int) -> Tensor:
    """Compute `cumsum` as a product with a triangular matrix of ones, which is fast for few positions."""
    ones = x.new_ones(x.shape[dim], x.shape[dim]).tril()
    with full_precision(x.device):
        return torch.tensordot(ones, x, ([1], [dim])).movedim(0, dim)


def at_least_float32(x: Tensor) -> Tensor:
    """Convert half precision to fp32; fp32 and fp64 are unchanged."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
