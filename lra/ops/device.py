"""Handle differences between devices: asynchronous copies, autocast, and deterministic sums on CUDA."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def is_asynchronous(device: torch.device) -> bool:
    """Return True if computations on the device finish after the calls that start them."""
    return device.type == "cuda"


def to_device(host: Tensor, device: torch.device) -> Tensor:
    """Return a host tensor on the device: on a CPU the tensor itself, on CUDA an asynchronous copy.

    PyTorch keeps the pinned memory of that copy until the copy has finished.
    """
    return host.pin_memory().to(device, non_blocking=True) if is_asynchronous(device) else host.to(device)


class AsyncNumbers:
    """Numbers [n] on a device that the host reads; on CUDA the constructor starts an asynchronous copy to the host."""

    def __init__(self, numbers: Tensor) -> None:
        self._numbers, self._arrived = numbers, None
        if is_asynchronous(numbers.device):
            self._numbers = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
            self._numbers.copy_(numbers, non_blocking=True)
            self._arrived = torch.cuda.Event()
            self._arrived.record()

    def read(self) -> list[float]:
        """Wait for the copy, but not for work that was started after it, and return the numbers."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return self._numbers.tolist()


def full_precision(device: torch.device) -> AbstractContextManager:
    """Return a context manager that disables autocast, for sums, exponentials and transforms that bf16 would round."""
    if device.type == "meta":  # `torch.autocast` does not accept this type
        return nullcontext()
    return torch.autocast(device.type, enabled=False)


def autocast_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype of matrix products of x.

    It is autocast's dtype if autocast is on and x is neither in fp64 nor on the meta device, else the dtype of x.
    """
    if x.is_meta or x.dtype == torch.float64 or not torch.is_autocast_enabled(x.device.type):
        return x.dtype
    return torch.get_autocast_dtype(x.device.type)


def cumulative_sum(x: Tensor, dim: int) -> Tensor:
    """Return the cumulative sum along `dim`.

    On CUDA it is a product with a triangular matrix of ones, because `cumsum` of floats is not deterministic there.
    """
    if x.device.type != "cuda":
        return x.cumsum(dim)
    ones = x.new_ones(x.shape[dim], x.shape[dim]).tril()
    with full_precision(x.device):
        return torch.tensordot(ones, x, ([1], [dim])).movedim(0, dim)


def at_least_float32(x: Tensor) -> Tensor:
    """Return x in fp32 if it is in bf16 or fp16, else x itself."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
