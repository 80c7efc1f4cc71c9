"""Choose the library for fp32 matrix products on a CPU: MKL (the default) or oneDNN (faster on some AMD CPUs).

With oneDNN a training step of the text task at the published width takes 0.64 times as long on Zen 5 (family 26), and
0.98 to 1.02 times as long on Zen 4 (family 25).

PyTorch hands fp32 products to oneDNN if `torch.backends.mkldnn.matmul.fp32_precision` is "bf16". The setting permits
bf16 products of fp32 matrices, which oneDNN has only for CPUs with AMX. On other CPUs oneDNN computes in fp32, and
`lacks` compares one product with float64 to verify this. The setting applies to the whole process, so it is on only
during a micro-batch.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Literal

import torch

from lra.core.errors import UserError

Library = Literal["mkl", "onednn"]

WORTH = 1 << 26  # minimum tokens * width^2 of a micro-batch for oneDNN, which generates code for every new shape
BOUND = 3e-6  # maximum relative error of an fp32 product of matrices [SIZE, SIZE]; a bf16 product has 2e-3
SIZE = 384

ZEN_5 = ("AuthenticAMD", "26")  # vendor and family in /proc/cpuinfo

_library: Library = "mkl"


def choose(asked: Literal["auto", "mkl", "onednn"]) -> Library:
    """Return the library to use; `auto` selects oneDNN on Zen 5 if it computes in fp32 there, else MKL.

    Raises:
        UserError: `asked` is onednn, but oneDNN does not compute fp32 products in fp32 here.
    """
    cpu = _cpu()
    if asked == "mkl" or (asked == "auto" and (cpu.get("vendor_id"), cpu.get("cpu family")) != ZEN_5):
        return "mkl"
    reason = lacks()
    if reason and asked == "onednn":
        raise UserError(
            f"products=onednn: expected oneDNN to compute fp32 products in fp32, found {reason}; use products=mkl"
        )
    return "mkl" if reason else "onednn"


def entry(device: str) -> dict[str, str]:
    """Return the record's entry `products`, the library in use; an empty dict if the run is not on a CPU."""
    return {"products": _library} if device == "cpu" else {}


@contextmanager
def using(library: Library) -> Iterator[None]:
    """Use this library for large micro-batches inside the `with` block."""
    global _library
    before, _library = _library, library
    try:
        yield
    finally:
        _library = before


@contextmanager
def of_micro_batch(tokens: int, width: int) -> Iterator[None]:
    """Use the library set by `using` inside the `with` block if `tokens * width**2` is at least `WORTH`, else MKL."""
    if _library == "mkl" or tokens * width**2 < WORTH:
        yield
        return
    with _onednn():
        yield


@contextmanager
def _onednn() -> Iterator[None]:
    setting = torch.backends.mkldnn.matmul
    before = setting.fp32_precision
    setting.fp32_precision = "bf16"
    try:
        yield
    finally:
        setting.fp32_precision = before


@cache
def lacks() -> str:
    """Return the reason why oneDNN cannot be used on this CPU; empty if it can."""
    if not torch.backends.mkldnn.is_available():
        return "a PyTorch without oneDNN"
    if "amx_tile" in _cpu().get("flags", "").split():
        return "a CPU with AMX, where it rounds to bf16"
    with _onednn():
        error = product_error()
    return "" if error < BOUND else f"a relative error of {error:.1g} in a product"


def product_error() -> float:
    """Return the relative error of one fp32 product, compared with the product in float64."""
    draws = torch.Generator().manual_seed(0)
    a, b = (torch.randn(SIZE, SIZE, generator=draws) for _ in range(2))
    exact = a.double() @ b.double()
    return ((a @ b - exact).norm() / exact.norm()).item()


def _cpu() -> dict[str, str]:
    """Return the fields of /proc/cpuinfo for the first processor; empty on systems other than Linux."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text(encoding="utf-8").partition("\n\n")[0].splitlines() if path.exists() else []
    return {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
