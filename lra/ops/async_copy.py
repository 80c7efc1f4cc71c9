"""Copies between this machine and an accelerator for which neither side waits.

A plain copy makes the host wait until the accelerator has done all that it was given before. Whatever training sends
there, or wants to know from there, goes through this module.
"""

import torch
from torch import Tensor


def is_asynchronous(device: torch.device) -> bool:
    """Whether what is computed there comes later than the call that asks for it."""
    return device.type == "cuda"


def to_device(host: Tensor, device: torch.device) -> Tensor:
    """A tensor of this machine on `device`: from pinned memory, which PyTorch keeps until it has been read."""
    return host.pin_memory().to(device, non_blocking=True) if is_asynchronous(device) else host.to(device)


class AsyncNumbers:
    """Numbers [n] of a device, on their way here since construction."""

    def __init__(self, numbers: Tensor) -> None:
        self._numbers, self._arrived = numbers, None
        if is_asynchronous(numbers.device):
            self._numbers = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
            self._numbers.copy_(numbers, non_blocking=True)
            self._arrived = torch.cuda.Event()
            self._arrived.record()

    def read(self) -> list[float]:
        """Waits for them, and for nothing that was asked for later."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return self._numbers.tolist()
