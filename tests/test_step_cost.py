"""Kernels and bytes of a packed training step in bf16 on an accelerator, counted on fake tensors.

Eager, every operation that is no view is a kernel, which reads its inputs and writes its outputs once; the norms of
all gradients are one. Clipping and AdamW, which return nothing, are not counted. Compiled is an estimate: a pointwise
operation, fill, cast, gather, concatenation or reduction joins a kernel of such operations whose result it reads,
unless another kernel must run between them. Inductor lowers gathers (`index`, `embedding`) and concatenations of up to
8 tensors as pointwise operations. A reduction over rows ends a kernel; products and scatters stay alone. A fused kernel
reads what it did not write, and writes what others read, except masks: the partitioner of AOTAutograd computes them
again in the backward pass. All blocks count as one graph; at the boundary of a block the stream is in fact read again.
"""

from contextlib import nullcontext

import numpy as np
import pytest
import torch
from support import composed
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lra.attention import softmax as flash
from lra.config.settings import settings_of
from lra.data import Split
from lra.ops import packing
from lra.ops.dropout import Keyed
from lra.runs.build import assemble
from lra.runs.initial_weights import draw_model
from lra.training import batches
from lra.training.update import make_optimizer, update

BATCH = 32
OVER_ROWS = {"sum", "mean", "amax"}
FUSED = OVER_ROWS | {
    "native_layer_norm", "native_layer_norm_backward", "_softmax", "_log_softmax", "_log_softmax_backward_data",
    "_to_copy", "clone", "copy_", "fill_", "zero_", "arange", "zeros", "ones", "full", "new_zeros", "new_full",
    "zeros_like", "ones_like", "constant_pad_nd", "cat", "stack", "index", "index_select", "embedding",
}  # fmt: skip
NO_KERNEL = {"detach", "_unsafe_view", "scalar_tensor"}
NORM = "linalg_vector_norm"


class Kernel:
    """One or several fused operations, with the bytes of the storages that they read and write.

    `level` is the number of kernels before it in a chain, `was_read` True if another kernel reads its result.
    """

    def __init__(self, level: int) -> None:
        self.level, self.open, self.was_read = level, True, False
        self.reads: dict[int, int] = {}
        self.writes: dict[int, int] = {}


class Counter(TorchDispatchMode):
    """Collects the kernels of all operations inside, fused by the rule above if `fuses`."""

    def __init__(self, *, fuses: bool) -> None:
        super().__init__()
        self.fuses = fuses
        self.kernels: dict[Kernel, None] = {}
        self.writer: dict[int, Kernel] = {}  # of each storage
        self.norm: Kernel | None = None
        self.alive: list[object] = []  # keeps the addresses of storages distinct

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        name, inputs, outputs = func.overloadpacket.__name__, self._storages((args, kwargs)), self._storages(out)
        if outputs and not func.is_view and "empty" not in name and name not in NO_KERNEL:
            self._add(inputs, outputs, name in FUSED or torch.Tag.pointwise in func.tags, name)
        return out

    def _storages(self, values: object) -> dict[int, int]:
        """Bytes of each storage that is read or written; an expanded view has those of its storage."""
        sizes = {}
        for x in tree_leaves(values):
            if isinstance(x, Tensor):
                self.alive.append(x.untyped_storage())
                recomputed = self.fuses and x.dtype == torch.bool
                sizes[self.alive[-1]._cdata] = 0 if recomputed else min(x.nbytes, x.untyped_storage().nbytes())
        return sizes

    def _add(self, reads: dict[int, int], writes: dict[int, int], fusable: bool, name: str) -> None:
        fusable &= self.fuses
        before = [self.writer[storage] for storage in reads if storage in self.writer]
        level = max((kernel.level + (not (fusable and kernel.open)) for kernel in before), default=0)
        joined = [
            kernel
            for kernel in dict.fromkeys(before)
            if fusable and kernel.open and (kernel.level == level or not kernel.was_read)
        ]
        if name == NORM and self.norm is not None:
            joined = [self.norm]
        kernel = joined[0] if joined else Kernel(level)
        kernel.level = level
        self.norm = kernel if name == NORM else self.norm
        self.kernels[kernel] = None
        for other in before:
            other.was_read |= other not in joined
        for other in joined[1:]:
            kernel.reads |= other.reads
            kernel.writes |= other.writes
            self.writer |= dict.fromkeys(other.writes, kernel)
            del self.kernels[other]
        kernel.reads |= reads
        kernel.writes |= writes
        kernel.open = fusable and name not in OVER_ROWS
        self.writer |= dict.fromkeys(writes, kernel)

    @property
    def bytes(self) -> int:
        """Bytes read and written."""
        readers: dict[int, set[Kernel]] = {}
        for kernel in self.kernels:
            for storage in kernel.reads:
                readers.setdefault(storage, set()).add(kernel)
        total = 0
        for kernel in self.kernels:
            inner = kernel.writes if self.fuses else {}
            total += sum(size for storage, size in kernel.reads.items() if storage not in inner)
            total += sum(
                size
                for storage, size in kernel.writes.items()
                if not self.fuses or readers.get(storage, set()) - {kernel}
            )
        return total


def count(task: str, system: str, shortest: int, longest: int, *, fuses: bool, patch: pytest.MonkeyPatch) -> Counter:
    """Count a step on one packed batch, whose lengths are a geometric series."""
    words = ("protocol=strict", "precision=bf16", f"train.micro_batch={BATCH}")
    system = assemble(settings_of(composed(f"task={task}", f"system={system}", *words)))
    facts, lengths = system.builder.facts, np.geomspace(shortest, longest, BATCH).round().astype(int)
    offsets = np.append(0, lengths.cumsum())
    tokens, labels = np.ones(offsets[-1], np.uint16), np.zeros(BATCH, int)
    split = Split(tokens=tokens, offsets=offsets, index=np.arange(BATCH), labels=labels)
    for module in (batches, packing):
        patch.setattr(module, "is_asynchronous", lambda _: True)
    patch.setattr(flash, "has_flash", lambda *_: True)
    counter = Counter(fuses=fuses)
    with FakeTensorMode(allow_non_fake_inputs=True):
        model = draw_model(system, facts, 1).train()
        for module in model.modules():
            if isinstance(module, Keyed):
                module.hashed = True
        optimizer = make_optimizer(model, system.recipe)
        for step, mode in enumerate((nullcontext(), counter)):  # the first creates the state of the optimiser
            with mode:
                update(model, optimizer, split, np.arange(BATCH), system.recipe, seed=1, step=step, precision="bf16")
    return counter


@pytest.mark.parametrize(
    ("task", "system", "lengths", "eager", "compiled"),  # at most so many kernels and GB
    [
        ("text", "simple", (220, 4000), (640, 33), (225, 9.3)),
        ("text", "transformer", (220, 4000), (500, 31), (220, 8.5)),
        ("listops", "simple", (460, 2000), (920, 86), (315, 24)),
    ],
)
def test_kernels_and_bytes_of_a_packed_step(
    task: str,
    system: str,
    lengths: tuple[int, int],
    eager: tuple[int, float],
    compiled: tuple[int, float],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Lengths have the mean and the maximum of real batches: 41,400 tokens of text, 33,100 of ListOps."""
    for fuses, (kernels, gigabytes) in ((False, eager), (True, compiled)):
        counted = count(task, system, *lengths, fuses=fuses, patch=monkeypatch)
        assert 0.9 * kernels < len(counted.kernels) <= kernels
        assert 0.9 * gigabytes < counted.bytes / 1e9 <= gigabytes
