"""An accelerator that takes no time: this CPU, for a model so small that its arithmetic is nothing.

Training goes the way that it goes on an accelerator: the next batch is read ahead, and copies wait for nobody. An
operation costs what asking for it costs; blocks are not compiled. Operations over whole lists of parameters, each of
which an accelerator does in one kernel, do nothing. What a driver does is left out: to start a
kernel, and to keep memory pinned.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

import torch
from torch import Tensor, nn

from lra.training.batches import OVERHEAD

HEAD_DIM, LENGTH = 2, 64  # of the small model; it is longer than wide, as those of the papers are
OF_LISTS = ("torch._foreach_add_", "torch._foreach_sub_", "torch._foreach_mul_", "torch._fused_adamw_")


class Arrived:
    """`async_copy.AsyncNumbers` of the numbers of a step, which are made up: kernels have computed nothing."""

    def __init__(self, numbers: Tensor) -> None:
        self._numbers = torch.ones_like(numbers)

    def read(self) -> list[float]:
        """At once."""
        return self._numbers.tolist()


def copied(host: Tensor, device: torch.device) -> Tensor:
    """`async_copy.to_device`: what the copy into pinned memory costs."""
    return host.clone().to(device)


def shrunk(model: dict[str, object]) -> dict[str, object]:
    """The keys of `model` for one of as many layers and parameters, of next to no width."""
    dim = HEAD_DIM * model["heads"]
    return {**model, "dim": dim, "qkv_dim": dim, "mlp_dim": dim}


def shorten(model: nn.Module) -> None:
    """Let a model read the beginnings of its documents alone, however long these are."""
    model.register_forward_pre_hook(lambda _, given: (given[0][:, :LENGTH], *given[1:]))


@contextmanager
def cpu_as_accelerator(width: int, small: int) -> Iterator[None]:
    """Within, a model of a small width is trained on the CPU as one of this width is on an accelerator."""
    zero = torch.zeros(())

    def nothing(*_: object, **__: object) -> None:
        pass

    others = {
        "lra.training.fit.is_asynchronous": lambda _: True,
        "lra.training.batches.to_device": copied,
        "lra.ops.dropout.to_device": copied,
        "lra.ops.packing.to_device": copied,
        "lra.training.update.AsyncNumbers": Arrived,
        "lra.ops.gram.on_cpu": lambda _: False,
        "lra.ops.dropout.Dropout.draws_places": lambda *_: False,
        "torch._foreach_norm": lambda tensors, *_: [zero] * len(tensors),
        **dict.fromkeys(OF_LISTS, nothing),
    }
    with ExitStack() as stack:
        for name, other in others.items():
            stack.enter_context(patch(name, other))
        stack.enter_context(patch.dict(OVERHEAD, cpu=OVERHEAD["cuda"] // width * small))
        yield
