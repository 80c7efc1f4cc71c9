"""The passes of `fused` in Triton. Each reads its tensors once and writes its results once; what would lie in memory
between two plain operations, masks above all, stays in registers.

A pass that drops values hashes their numbers, which go by `order`, as `noise_kernel` does. Rows of the same place in
several examples are read by one program, since they share the first half of the hash.

Legend: B examples, N rows of each, T = B N, C columns; `noise.words` [B]. T is below 2³¹, T C need not be.
"""

from typing import Literal

import torch
import triton
import triton.language as tl
from torch import Tensor

from lra.ops.noise import Noise
from lra.ops.noise_kernel import LEADS, kept, launch, mix, wide

Activation = Literal["gelu", "relu"]

ROWS, COLUMNS = 8, 128  # of a program of `activate`
VALUES = 1024  # of an example in a program of `join`, in whole rows
SUMMED = 64  # rows of all examples that a program of `join_backward` adds up


def activate(x: Tensor, bias: Tensor | None, noise: Noise | None, activation: Activation) -> Tensor:
    """activation(x + bias), but zero where `noise` drops it: x [T, C], bias [C]."""
    out = torch.empty_like(x)
    if x.numel():
        grid, arguments, options = _tiles(x, bias, noise, activation)
        launch(_activate, grid, x, out, *arguments, **options)
    return out


def activate_backward(
    grad: Tensor, x: Tensor, bias: Tensor | None, noise: Noise | None, activation: Activation
) -> Tensor | None:
    """`grad` [T, C] of what `activate` gives becomes, in place, that of x; returns that of the bias."""
    if x.numel() == 0:
        return None if bias is None else torch.zeros_like(bias)
    grid, arguments, options = _tiles(x, bias, noise, activation)
    sums = x.new_empty(grid[0] * grid[2] if bias is not None else 0, x.shape[1], dtype=_dtype(x))
    launch(_activate_backward, grid, grad, x, grad, sums, *arguments, **options)
    return None if bias is None else sums.sum(dim=0).to(bias.dtype)


def _tiles(x: Tensor, bias: Tensor | None, noise: Noise | None, activation: Activation) -> tuple[tuple, tuple, dict]:
    """The grid over row blocks, column blocks and examples, and what else both passes of `activate` are told."""
    leads, of_program = (1, 1) if noise is None else (len(noise.words), LEADS)
    rows, columns = len(x) // leads, x.shape[1]
    grid = (-(-rows // ROWS), -(-columns // COLUMNS), -(-leads // of_program))
    options = {"NOISE": noise is not None, "BIAS": bias is not None, "ACTIVATION": activation, "WIDE": wide(x)}
    options |= {"ROWS": ROWS, "COLUMNS": COLUMNS, "LEADS": of_program, "enable_fp_fusion": True}
    arguments = (_or_nothing(bias, x), *_words(noise, x), leads, rows, columns)
    return grid, arguments, options


def join(
    x: Tensor,
    branch: Tensor,
    extra: Tensor | None,
    noise: Noise | None,
    scale: float,
    norm: tuple[Tensor, Tensor, float] | None,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """stream = x + drop(scale branch) [+ extra], all [T, C], and its layer norm in `dtype`; norm: weight [C], bias [C]
    and epsilon. The third result, mean and rate of each row [2, T], is for `join_backward`."""
    stream = torch.empty_like(x, dtype=torch.result_type(x, branch))
    normed = moments = None
    weight, bias, eps = norm or (None, None, 0.0)
    if norm is not None:
        normed, moments = torch.empty_like(x, dtype=dtype), x.new_empty(2, len(x), dtype=_dtype(x))
    if x.numel():
        grid, arguments, options = _lines(x, noise, scale, norm is not None)
        tensors = [_or_nothing(tensor, x) for tensor in (extra, weight, bias, normed, moments)]
        launch(_join, grid, x, branch, stream, *tensors, *arguments, eps, **options, EXTRA=extra is not None)
    return stream, normed, moments


def join_backward(
    d_stream: Tensor | None,
    d_normed: Tensor | None,
    stream: Tensor,
    moments: Tensor | None,
    weight: Tensor | None,
    noise: Noise | None,
    scale: float,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """The gradients by x (and by `extra`), by the branch in `dtype`, by the weight and by the bias of the norm; one of
    the gradients by the two results of `join` may be missing."""
    d_x, d_branch = torch.empty_like(stream), torch.empty_like(stream, dtype=dtype)
    normed = d_normed is not None
    grid, arguments, options = _lines(stream, noise, scale, normed)
    positions = max(SUMMED // (options["ROWS"] * options["LEADS"]), 1)
    grid = (-(-grid[0] // positions), grid[1])
    sums = stream.new_empty(2, grid[0] * grid[1] if normed else 0, stream.shape[1], dtype=_dtype(stream))
    if stream.numel():
        tensors = [_or_nothing(tensor, stream) for tensor in (d_stream, d_normed, moments, weight)]
        options |= {"STREAM": d_stream is not None, "POSITIONS": positions}
        launch(_join_backward, grid, stream, d_x, d_branch, sums, *tensors, *arguments, **options)
    else:
        sums.zero_()
    return d_x, d_branch, *(sums.sum(dim=1).to(weight.dtype).unbind() if normed else (None, None))


def _lines(x: Tensor, noise: Noise | None, scale: float, norm: bool) -> tuple[tuple, tuple, dict]:
    """The grid over row blocks and examples, and what else both passes of `join` are told."""
    leads, of_program = (1, 1) if noise is None else (len(noise.words), LEADS)
    rows, columns = len(x) // leads, x.shape[1]
    padded = triton.next_power_of_2(columns)
    of_program_rows = max(VALUES // padded, 1)
    options = {"SCALE": scale, "NOISE": noise is not None, "NORM": norm, "WIDE": wide(x), "enable_fp_fusion": True}
    options |= {"ROWS": of_program_rows, "COLUMNS": padded, "LEADS": of_program}
    grid = (-(-rows // of_program_rows), -(-leads // of_program))
    return grid, (*_words(noise, x), leads, rows, columns), options


def _words(noise: Noise | None, x: Tensor) -> tuple[Tensor, int]:
    return (x.new_empty(0), 0) if noise is None else (noise.words, noise.drops)


def _or_nothing(tensor: Tensor | None, x: Tensor) -> Tensor:
    return x.new_empty(0) if tensor is None else tensor


def _dtype(x: Tensor) -> torch.dtype:
    """What is computed in."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


@triton.jit
def _activate(
    x, out, bias, words, drops, leads, rows, columns,
    NOISE: tl.constexpr, BIAS: tl.constexpr, ACTIVATION: tl.constexpr, WIDE: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, LEADS: tl.constexpr,
):  # fmt: skip
    """x, out [leads, rows, columns]."""
    place, inside, shift, _ = _tile(bias, rows, columns, BIAS, WIDE, ROWS, COLUMNS)
    hashed, values = place, tl.full((1, 1), leads, tl.int64) * rows * columns
    if NOISE:
        hashed = mix(place.to(tl.uint64))
    for turn in tl.static_range(LEADS):
        lead = tl.program_id(2).to(tl.int64) * LEADS + turn
        at = place + lead * rows * columns
        there = inside & (at < values)
        value, _ = _activation(tl.load(x + at, mask=there, other=0).to(WIDE) + shift, ACTIVATION, WIDE)
        if NOISE:
            value = tl.where(kept(hashed, words, lead, leads, drops), value, 0)
        tl.store(out + at, value.to(out.dtype.element_ty), mask=there)


@triton.jit
def _activate_backward(
    grad, x, out, sums, bias, words, drops, leads, rows, columns,
    NOISE: tl.constexpr, BIAS: tl.constexpr, ACTIVATION: tl.constexpr, WIDE: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, LEADS: tl.constexpr,
):  # fmt: skip
    """grad, x, out [leads, rows, columns]; sums [row blocks x example blocks, columns]."""
    place, inside, shift, column = _tile(bias, rows, columns, BIAS, WIDE, ROWS, COLUMNS)
    hashed, values = place, tl.full((1, 1), leads, tl.int64) * rows * columns
    if NOISE:
        hashed = mix(place.to(tl.uint64))
    total = tl.full((COLUMNS,), 0, WIDE)
    for turn in tl.static_range(LEADS):
        lead = tl.program_id(2).to(tl.int64) * LEADS + turn
        at = place + lead * rows * columns
        there = inside & (at < values)
        _, slope = _activation(tl.load(x + at, mask=there, other=0).to(WIDE) + shift, ACTIVATION, WIDE)
        value = tl.load(grad + at, mask=there, other=0).to(WIDE) * slope
        if NOISE:
            value = tl.where(kept(hashed, words, lead, leads, drops), value, 0)
        tl.store(out + at, value.to(out.dtype.element_ty), mask=there)
        total += tl.sum(value, axis=0)
    if BIAS:
        block = tl.program_id(2).to(tl.int64) * tl.num_programs(0) + tl.program_id(0)
        tl.store(sums + block * columns + column, total, mask=column < columns)


@triton.jit
def _tile(
    bias, rows, columns,
    BIAS: tl.constexpr, WIDE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """The places [ROWS, COLUMNS] of a program in an example, which of them there are, their bias and the columns."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1).to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)
    place = row[:, None] * columns + column[None, :]
    inside = (row < rows)[:, None] & (column < columns)[None, :]
    shift = tl.full((1, COLUMNS), 0, WIDE)
    if BIAS:
        shift += tl.load(bias + column, mask=column < columns, other=0).to(WIDE)[None, :]
    return place, inside, shift, column


@triton.jit
def _activation(x, ACTIVATION: tl.constexpr, WIDE: tl.constexpr):
    """The value and its derivative; not a number where x is none."""
    if ACTIVATION == "relu":
        return tl.where(x <= 0, 0, x), tl.where(x <= 0, 0, 1).to(WIDE)
    root_half = tl.full((1,), 0.7071067811865476, WIDE)
    density = tl.full((1,), 0.3989422804014327, WIDE)
    below = 0.5 * (1 + tl.erf(x * root_half))
    return x * below, below + x * density * tl.exp(-0.5 * x * x)


@triton.jit
def _join(
    x, branch, stream, extra, weight, bias, normed, moments, words, drops, leads, rows, columns, eps,
    SCALE: tl.constexpr, NOISE: tl.constexpr, EXTRA: tl.constexpr, NORM: tl.constexpr, WIDE: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, LEADS: tl.constexpr,
):  # fmt: skip
    """All [leads, rows, columns] but weight and bias [columns] and moments [2, leads, rows]."""
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, COLUMNS)[None, :]
    inside, factor = (row < rows) & (column < columns), tl.full((1, 1), SCALE, WIDE)
    hashed = row * columns + column
    if NOISE:
        hashed = mix(hashed.to(tl.uint64))
    for turn in tl.static_range(LEADS):
        lead = tl.program_id(1).to(tl.int64) * LEADS + turn
        line = lead * rows + row
        at, there = line * columns + column, inside & (line < leads * rows)
        value = tl.load(branch + at, mask=there, other=0).to(WIDE) * factor
        if NOISE:
            value = tl.where(kept(hashed, words, lead, leads, drops), value, 0)
        value += tl.load(x + at, mask=there, other=0).to(WIDE)
        if EXTRA:
            value += tl.load(extra + at, mask=there, other=0).to(WIDE)
        rounded = value.to(stream.dtype.element_ty)
        tl.store(stream + at, rounded, mask=there)
        if NORM:
            value = rounded.to(WIDE)
            mean = tl.sum(value, axis=1)[:, None] / columns
            off = tl.where(there, value - mean, 0)
            rate = 1 / tl.sqrt(tl.sum(off * off, axis=1)[:, None] / columns + eps)
            scaled = off * rate * tl.load(weight + column, mask=column < columns, other=0).to(WIDE)
            scaled += tl.load(bias + column, mask=column < columns, other=0).to(WIDE)
            tl.store(normed + at, scaled.to(normed.dtype.element_ty), mask=there)
            real = (row < rows) & (line < leads * rows)
            tl.store(moments + line, mean, mask=real)
            tl.store(moments + leads * rows + line, rate, mask=real)


@triton.jit
def _join_backward(
    stream, d_x, d_branch, sums, d_stream, d_normed, moments, weight, words, drops, leads, rows, columns,
    SCALE: tl.constexpr, NOISE: tl.constexpr, STREAM: tl.constexpr, NORM: tl.constexpr, WIDE: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, LEADS: tl.constexpr, POSITIONS: tl.constexpr,
):  # fmt: skip
    """The backward pass of `_join`; sums [2, programs, columns] are the gradients of the weight and of the bias."""
    column, factor = tl.arange(0, COLUMNS)[None, :], tl.full((1, 1), SCALE, WIDE)
    by_weight, by_bias = tl.full((ROWS, COLUMNS), 0, WIDE), tl.full((ROWS, COLUMNS), 0, WIDE)
    gain = tl.full((1, COLUMNS), 0, WIDE)
    if NORM:
        gain += tl.load(weight + column, mask=column < columns, other=0).to(WIDE)
    for position in range(POSITIONS):
        row = (tl.program_id(0).to(tl.int64) * POSITIONS + position) * ROWS + tl.arange(0, ROWS)[:, None]
        hashed = row * columns + column
        if NOISE:
            hashed = mix(hashed.to(tl.uint64))
        for turn in tl.static_range(LEADS):
            lead = tl.program_id(1).to(tl.int64) * LEADS + turn
            line = lead * rows + row
            real = (row < rows) & (line < leads * rows)
            at, there = line * columns + column, real & (column < columns)
            value = tl.full((ROWS, COLUMNS), 0, WIDE)
            if STREAM:
                value += tl.load(d_stream + at, mask=there, other=0).to(WIDE)
            if NORM:
                mean = tl.load(moments + line, mask=real, other=0)
                rate = tl.load(moments + leads * rows + line, mask=real, other=0)
                unit = tl.where(there, (tl.load(stream + at, mask=there, other=0).to(WIDE) - mean) * rate, 0)
                given = tl.load(d_normed + at, mask=there, other=0).to(WIDE)
                by_weight += given * unit
                by_bias += given
                given *= gain
                along = tl.sum(given * unit, axis=1)[:, None] / columns
                value += (given - tl.sum(given, axis=1)[:, None] / columns - unit * along) * rate
            tl.store(d_x + at, value.to(d_x.dtype.element_ty), mask=there)
            value *= factor
            if NOISE:
                value = tl.where(kept(hashed, words, lead, leads, drops), value, 0)
            tl.store(d_branch + at, value.to(d_branch.dtype.element_ty), mask=there)
    if NORM:
        program = tl.program_id(1).to(tl.int64) * tl.num_programs(0) + tl.program_id(0)
        programs = tl.num_programs(0) * tl.num_programs(1)
        place = program * columns + tl.arange(0, COLUMNS)
        real = tl.arange(0, COLUMNS) < columns
        tl.store(sums + place, tl.sum(by_weight, axis=0), mask=real)
        tl.store(sums + programs * columns + place, tl.sum(by_bias, axis=0), mask=real)
