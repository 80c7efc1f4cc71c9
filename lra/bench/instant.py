"""An accelerator that takes no time: PyTorch's meta device, whose tensors have no values, in its place.

Training goes the way that it goes on an accelerator: the next batch is read ahead, copies wait for nobody, kernels do
what has one. An operation costs its dispatch alone. What a driver does to start it, and to pin memory, is left out.
"""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

import torch
from torch import Tensor

from lra.ops.dropout import kernel
from lra.ops.fused import kernels
from lra.training.batches import OVERHEAD


class Arrived:
    """`async_copy.Awaited` of the numbers of a step: the loss and the norm are made up."""

    def __init__(self, numbers: Tensor) -> None:
        self._numbers = torch.ones(numbers.shape, dtype=numbers.dtype)

    def read(self) -> list[float]:
        """At once."""
        return self._numbers.tolist()


@contextmanager
def meta_as_accelerator() -> Iterator[None]:
    """Within, the meta device is one that `async_copy` knows, and on which a model can be trained in fp32."""
    autocast = torch.autocast
    with ExitStack() as stack:
        for module in ("ops.async_copy", "training.fit", "training.evaluate"):
            stack.enter_context(patch(f"lra.{module}.runs_behind", lambda device: device.type == "meta"))
        stack.enter_context(patch.object(Tensor, "pin_memory", Tensor.clone))
        stack.enter_context(patch.dict(OVERHEAD, meta=OVERHEAD["cuda"]))
        stack.enter_context(patch.object(torch, "autocast", lambda _, *given, **named: autocast("cpu", *given, **named)))
        stack.enter_context(patch("lra.training.update.Awaited", Arrived))
        fused = sys.modules["torch.optim.optimizer"]  # torch.optim has an attribute of this name, too
        stack.enter_context(patch.object(fused, "_get_fused_kernels_supported_devices", lambda: ["meta"]))
        yield


@contextmanager
def instant_kernels() -> Iterator[None]:
    """Within, kernels take no time, and what has one uses it on the meta device, too; nothing where Triton is missing."""
    with ExitStack() as stack:
        if kernel() is not None:
            stack.enter_context(patch("lra.ops.dropout.has_kernel", lambda _: True))
            for module in (kernel(), kernels()):
                stack.enter_context(patch.object(module, "launch", lambda *_, **__: None))
        yield
