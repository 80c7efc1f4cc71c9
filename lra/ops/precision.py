"""Types under autocast, and regions without it."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def full_precision(device: torch.device) -> AbstractContextManager:
    """Disable autocast, for sums, exponentials and transforms that need more digits than bf16 has."""
    if not torch.amp.is_autocast_available(device.type):
        return nullcontext()
    return torch.autocast(device.type, enabled=False)


def autocast_dtype(x: Tensor) -> torch.dtype:
    """Return the type in which products of x are computed."""
    if x.is_meta or x.dtype == torch.float64:
        return x.dtype
    if torch.is_autocast_enabled(x.device.type):
        return torch.get_autocast_dtype(x.device.type)
    return x.dtype


def at_least_float32(x: Tensor) -> Tensor:
    """Convert half precision to fp32; fp32 and fp64 are unchanged."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
