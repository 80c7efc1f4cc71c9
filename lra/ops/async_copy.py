"""Asynchronous copies between the host and an accelerator.

A plain copy blocks the host until the accelerator has finished all earlier work. All transfers in training go through
this module instead.
"""

import torch
from torch import Tensor


def is_asynchronous(device: torch.device) -> bool:
    """Return True if computations on the device finish after the calls that start them."""
    return device.type == "cuda"


def to_device(host: Tensor, device: torch.device) -> Tensor:
    """Copy a host tensor to the device, from pinned memory that PyTorch keeps until it has been read."""
    return host.pin_memory().to(device, non_blocking=True) if is_asynchronous(device) else host.to(device)


class AsyncNumbers:
    """Numbers [n] of a device, copied to the host since construction."""

    def __init__(self, numbers: Tensor) -> None:
        self._numbers, self._arrived = numbers, None
        if is_asynchronous(numbers.device):
            self._numbers = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
            self._numbers.copy_(numbers, non_blocking=True)
            self._arrived = torch.cuda.Event()
            self._arrived.record()

    def read(self) -> list[float]:
        """Wait for these numbers alone and return them."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return self._numbers.tolist()
