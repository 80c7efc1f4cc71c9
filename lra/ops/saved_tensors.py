"""What autograd keeps for the backward pass."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef


@contextmanager
def saved_tensors(excluded: Iterable[Tensor]) -> Iterator[Callable[[], int]]:
    """Gives a function that says how many bytes the operations inside keep as long as their results live: each storage
    once, those of `excluded` left out. Tensors without data have storages of the same size."""
    excluded_storages = {tensor.untyped_storage()._cdata for tensor in excluded}
    kept: dict[int, tuple[StorageWeakRef, int]] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in excluded_storages:
            kept[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield lambda: sum(size for storage, size in kept.values() if not storage.expired())
