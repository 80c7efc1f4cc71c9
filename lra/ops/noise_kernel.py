"""Dropout in one pass over the data, in Triton: it reads a value, hashes its number, and writes it scaled or zero."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from lra.ops.noise import Noise

BLOCK = 1024  # numbers of a program
LEADS = 4  # rows and heads of a program, which share the first half of the hash


def drop(x: Tensor, noise: Noise, scale: float, out: Tensor | None = None) -> Tensor:
    """x scale, but zero where `noise` drops it; `out` may be x itself, if it is contiguous."""
    x = x.contiguous()
    out = torch.empty_like(x) if out is None else out
    leads = len(noise.words)
    size = x.numel() // max(leads, 1)
    if size == 0:
        return out
    tables = [x.new_empty(0) if table is None else table for table in (noise.columns, noise.runs, noise.first)]
    sizes = leads, size, x.numel(), noise.inner[0], noise.inner[-1], noise.most, noise.drops
    options = {"SCALE": scale, "WIDE": wide(x), "NUMBERING": noise.numbering, "BLOCK": BLOCK, "LEADS": LEADS}
    options["enable_fp_fusion"] = False  # there is nothing to fuse, but Triton 3.9 warns where nobody says
    launch(_drop, (-(-size // BLOCK), -(-leads // LEADS)), x, out, noise.words, *tables, *sizes, **options)
    return out


def launch(kernel: triton.JITFunction, grid: tuple[int, ...], x: Tensor, *arguments: object, **options: object) -> None:
    """Start a kernel on the device of x, its first argument."""
    with torch.cuda.device_of(x):
        kernel[grid](x, *arguments, **options)


def wide(x: Tensor) -> tl.dtype:
    """What is computed in."""
    return tl.float64 if x.dtype == torch.float64 else tl.float32


@triton.jit
def _drop(
    x, out, words, column_numbers, run_of_column, first,
    leads, size, total, rows, columns, most, drops,
    SCALE: tl.constexpr, WIDE: tl.constexpr, NUMBERING: tl.constexpr, BLOCK: tl.constexpr, LEADS: tl.constexpr,
):  # fmt: skip
    """x, out [leads, size], words [leads]; the numbers are those of `numbers_of`, the hash that of `_kept`."""
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    here = place < size
    number = place
    if NUMBERING != "order":
        i, j = place // columns, place % columns
        if NUMBERING == "pairs":
            number = tl.where(j <= i, i * i + j, tl.where(j < rows, j * j + j + 1 + i, j * rows + i))
        elif NUMBERING == "channels":
            number = j
        elif NUMBERING == "columns":
            number = j * most + i
        else:
            run = tl.load(run_of_column + j, mask=here, other=0)
            number = i * most + tl.load(column_numbers + j, mask=here, other=0)
            number += tl.load(first + run * (size // columns) + i, mask=here, other=0)
    hashed = mix(number.to(tl.uint64))
    factor = tl.full((1,), SCALE, WIDE)
    for turn in tl.static_range(LEADS):
        lead = tl.program_id(1).to(tl.int64) * LEADS + turn
        at = place + lead * size
        there = here & (at < total)
        value = tl.load(x + at, mask=there, other=0).to(WIDE) * factor
        value = tl.where(kept(hashed, words, lead, leads, drops), value, 0)
        tl.store(out + at, value.to(out.dtype.element_ty), mask=there)


@triton.jit
def kept(hashed, words, lead, leads, drops):
    """Which values of row or head `lead` are kept, by the first half of the hash of their numbers."""
    word = tl.load(words + tl.minimum(lead, leads - 1)).to(tl.uint64)
    return (mix(hashed ^ word) & 65535).to(tl.int32) >= drops


@triton.jit
def mix(x):
    """`dropout._mix` of uint64."""
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    return x ^ (x >> 31)
