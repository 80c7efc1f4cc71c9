"""What autocast does to a tensor, and where it is kept out."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def full_precision(device: torch.device) -> AbstractContextManager:
    """No autocast inside: for sums, exponentials and transforms that bf16 would spoil."""
    if not torch.amp.is_autocast_available(device.type):
        return nullcontext()
    return torch.autocast(device.type, enabled=False)


def autocast_dtype(x: Tensor) -> torch.dtype:
    """What products of x are computed in."""
    if x.is_meta or x.dtype == torch.float64:
        return x.dtype
    if torch.is_autocast_enabled(x.device.type):
        return torch.get_autocast_dtype(x.device.type)
    return x.dtype


def at_least_float32(x: Tensor) -> Tensor:
    """Half precision to fp32; fp32 and fp64 as they are."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
