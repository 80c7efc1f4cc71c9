"""Counters of a step: operations (a multiplication and its addition are two), and bytes saved for backward."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count


def counter() -> FlopCounterMode:
    """Return a counter of FLOPs in products, convolutions and Fourier transforms."""
    return FlopCounterMode(display=False, custom_mapping=FORMULAS)


def _fused(query: torch.Size, key: torch.Size, value: torch.Size, *_: Any, **__: Any) -> int:
    return sdpa_flop_count(query, key, value)


def _fused_backward(grad: torch.Size, query: torch.Size, key: torch.Size, value: torch.Size, *_: Any, **__: Any) -> int:
    return sdpa_backward_flop_count(grad, query, key, value)


def _batched(first: torch.Size, other: torch.Size, *_: Any, **__: Any) -> int:
    """FLOPs of [B, M, K] times [B, K, N]; the counter's own formula fails if the type of the result is given."""
    return 2 * first.numel() * other[-1]


def _fourier(x: torch.Size, axes: Sequence[int], *_: Any, **__: Any) -> int:
    """5 n log2(n) FLOPs for each transform of n numbers, as of radix 2."""
    return round(5 * x.numel() * math.log2(math.prod(x[axis] for axis in axes)))


def _fourier_of_real(x: torch.Size, axes: Sequence[int], *_: Any, **__: Any) -> int:
    return _fourier(x, axes) // 2


def _fourier_to_real(_x: torch.Size, axes: Sequence[int], *_: Any, out_shape: torch.Size, **__: Any) -> int:
    return _fourier(out_shape, axes) // 2


FORMULAS = {  # those of fused attention on accelerators are known to torch's counter
    torch.ops.aten.bmm: _batched,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _fused,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: _fused_backward,
    torch.ops.aten._fft_c2c: _fourier,
    torch.ops.aten._fft_r2c: _fourier_of_real,
    torch.ops.aten._fft_c2r: _fourier_to_real,
}


@contextmanager
def saved_tensors(excluded: Iterable[Tensor]) -> Iterator[Callable[[], int]]:
    """Yield a function that returns the bytes which the operations inside keep for the backward pass.

    Each storage counts once, those of `excluded` not at all. Meta tensors have storages of the same size.
    """
    excluded_storages = {tensor.untyped_storage()._cdata for tensor in excluded}
    kept: dict[int, tuple[StorageWeakRef, int]] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in excluded_storages:
            kept[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield lambda: sum(size for storage, size in kept.values() if not storage.expired())
