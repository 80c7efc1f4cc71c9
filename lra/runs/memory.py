"""What a training step keeps in memory, counted on tensors without data."""

from collections.abc import Callable
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode

from lra.config.settings import Precision
from lra.data import TaskSpec
from lra.model.model import Model
from lra.ops import gram
from lra.ops.dropout import Dropout, set_keys
from lra.ops.precision import at_least_float32
from lra.ops.saved_tensors import saved_tensors
from lra.runs.build import System
from lra.runs.stand_in import stand_in
from lra.training.batches import predict, read
from lra.training.losses import summed_loss

ACCELERATORS = (24, 40, 80, 141)  # GB, of 10⁹ bytes


def memory(system: System, precision: Precision) -> dict[str, Any]:
    """Bytes that a token of the greatest length keeps for the backward pass, and the largest micro-batch that fits
    into accelerators: its activations beside the weights, their gradients, AdamW's two means, and whatever of the
    activations does not grow with the batch, as weights in bf16. What a single operation needs while it is at work is
    not counted.

    An activation is what autograd saves, each storage once, without weights and tokens. Counted is what an accelerator
    keeps: no noise, since a compiled block makes it again (a CPU keeps 8 bytes for each value that is dropped); softmax
    without dropout by a fused scaled_dot_product_attention, which keeps its arguments, its output and a number for each
    row, wherever the one of CPUs takes the arguments: an accelerator without such a kernel keeps the weights, too.
    Under bf16 softmax is of fp32.
    """
    with torch.device("meta"):  # some first weights are drawn by their values, which fake tensors refuse
        model = system.model(system.builder.facts).train()
    with FakeTensorMode(allow_non_fake_inputs=True), patch.object(gram, "on_cpu", lambda _: False):
        model.to_empty(device="cpu")
        model.redraw(0, 0)
        for module in model.modules():
            if isinstance(module, Dropout):
                module.hashed, module.forward = True, partial(_weightless, module)
        few, more = (_activations(model, system.builder.facts, precision, examples) for examples in (2, 3))
    each = more - few
    rest = few - 2 * each + sum(value.nbytes for value in model.state_dict().values())
    rest += 3 * sum(weight.nbytes for weight in model.parameters() if weight.requires_grad)
    return {
        "saved_bytes_per_token": round(each / (model.documents * model.max_len)),
        "micro_batch_that_fits": {f"{size} GB": max(0, (size * 10**9 - rest) // each) for size in ACCELERATORS},
    }


def _activations(model: Model, facts: TaskSpec, precision: Precision, examples: int) -> int:
    """Bytes of a pass over so many examples of the greatest length."""
    part = read(stand_in(facts, examples, seed=0), np.arange(examples), np.arange(examples), facts.max_len)
    set_keys(model, seed=0, step=0, rows=part.rows)
    with saved_tensors(model.state_dict().values()) as saved, _FullSoftmax():
        loss = summed_loss(*predict(model, part, precision))
    kept = saved()
    del loss
    return kept


def _weightless(dropout: Dropout, x: Tensor, *_: object, **__: object) -> Tensor:
    """Dropout that keeps nothing."""
    return x * 1.0 if dropout.drops else x


class _FullSoftmax(TorchFunctionMode):
    """Softmax in fp32 under autocast, as that of accelerators has it and that of CPUs has not."""

    def __torch_function__(self, function: Callable, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if function.__name__ == "softmax" and torch.is_autocast_enabled("cpu"):
            args = (at_least_float32(args[0]), *args[1:])
        return function(*args, **(kwargs or {}))
