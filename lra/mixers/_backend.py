"""Run recurrences over positions in chunks, in PyTorch or by the Triton kernels of flash-linear-attention.

The kernels need CUDA and float32. They compute a float32 product as three TF32 products, which together round about as
much as one float32 product, and they tune their tile sizes on the device.
Legend: as in `lra.ops.scan`; B documents, H heads.
"""

import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module, metadata
from typing import Any, Literal

import torch
from torch import Tensor, nn

from lra.core.errors import UserError

Backend = Literal["torch", "fla"]

KERNELS = {  # module in fla.ops -> its function, and one keyword for each input of a `Scan`, in the order of the inputs
    "simple_gla": ("chunk_simple_gla", ("q", "k", "v", "g")),
    "gla": ("chunk_gla", ("q", "k", "v", "g")),
    "gated_delta_rule": ("chunk_gated_delta_rule", ("q", "k", "v", "beta", "g")),
    "generalized_delta_rule": ("chunk_dplr_delta_rule", ("q", "a", "b", "v", "gk", "k")),
}


@dataclass(frozen=True)
class Scan:
    """Recurrence computed by a chunked form in PyTorch or by a kernel of flash-linear-attention.

    Args:
        kernel: a key of KERNELS.
        backend: the backend to use; None: the kernel where it works, else PyTorch.
    """

    kernel: str
    backend: Backend | None

    def __call__(self, chunks: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        """Compute the recurrence and return its outputs [B, H, L, N].

        Args:
            chunks: the chunked form, called as `chunks(*inputs)`.
            inputs: one tensor per keyword in `KERNELS[self.kernel]`, in that order: [B, H, L, .], or [B, H, L] or
                [H, L] for one number per head and position; B and H may be 1, except in `v`.
        """
        if self.on(inputs[0].device.type, inputs[0].dtype) == "torch":
            return chunks(*inputs)
        _, keywords = KERNELS[self.kernel]
        by_keyword = dict(zip(keywords, inputs, strict=True))
        sizes = by_keyword["v"].shape[:3]
        laid_out = {keyword: x.expand(*sizes, *x.shape[3:]).transpose(1, 2) for keyword, x in by_keyword.items()}
        return function(self.kernel)(**laid_out, scale=1.0)[0].transpose(1, 2)

    def on(self, device: str, dtype: torch.dtype = torch.float32) -> Backend:
        """Return the backend used on this device for this dtype; raise UserError if `backend` does not work there."""
        if self.backend == "torch" or device == "meta":
            return "torch"
        lacks = missing(self.kernel) if device == "cuda" else ""
        if device == "cuda" and dtype == torch.float32 and not lacks:
            return "fla"
        if self.backend is None:
            return "torch"
        found = f"{device}, {str(dtype).removeprefix('torch.')}"
        if lacks:
            found += f" and {lacks}"
        raise UserError(
            f"attention.backend=fla: expected cuda, float32 and flash-linear-attention, found {found}; pip install "
            "flash-linear-attention and use device=cuda, or use attention.backend=null"
        )

    def describe(self, device: str) -> str:
        """Return the backend used on this device and, if it is fla, its version, as text for the record."""
        return "torch" if self.on(device) == "torch" else f"fla {version()}"


def scan_of(mixer: nn.Module) -> Scan | None:
    """Return the `Scan` in the mixer's attribute `scan`, or None if there is none."""
    scan = getattr(mixer, "scan", None)
    return scan if isinstance(scan, Scan) else None


def function(kernel: str) -> Callable[..., tuple[Tensor, Any]]:
    """Import and return the library's function for this kernel."""
    os.environ.setdefault("TRITON_F32_DEFAULT", "tf32x3")  # read when a kernel is compiled; Triton's default is tf32
    warnings.filterwarnings("ignore", r"\s*ChunkDeltaRuleFunction does not support float32 on some platforms")
    name, _ = KERNELS[kernel]
    return getattr(import_module(f"fla.ops.{kernel}"), name)


def missing(kernel: str) -> str:
    """Return the reason why this kernel cannot be used on this CUDA device; empty if it can."""
    if not version():
        return "no flash-linear-attention"
    if kernel != "gated_delta_rule":
        return ""
    facts = import_module("fla.utils")
    if facts.IS_NVIDIA_HOPPER and facts.TRITON_ABOVE_3_4_0 and not facts.TRITON_ABOVE_3_7_1:  # fla issue 640
        return f"Triton {metadata.version('triton')} on a Hopper GPU, where its gradient is wrong (fixed in 3.7.1)"
    return ""


@cache
def version() -> str | None:
    """Return the version of flash-linear-attention, or None if it cannot be imported."""
    try:
        import_module("fla.ops")
        return metadata.version("fla-core")
    except ImportError:
        return None
