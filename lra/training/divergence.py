"""Find the layer or the gradient in which the numbers of a step first went wrong."""

import math
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lra.config.settings import Precision
from lra.data import Split
from lra.model.model import Model
from lra.ops import dropout
from lra.training import distributed
from lra.training.batches import MicroBatch, micro_batches, predict, summed_loss


class Diverged(Exception):
    """The loss or the gradient of a step is not finite; the weights are those before it."""


def cause_of(
    model: Model, split: Split, examples: np.ndarray, size: int, *, seed: int, step: int, precision: Precision
) -> str:
    """Describe where the numbers of a step first went wrong; the same on every rank.

    Args:
        model: with the gradients of the step.
        split: of the examples.
        examples: [batch_size] of the step.
        size: of a micro-batch.
        seed: of the run.
        step: from 0 on.
        precision: of the run.
    """
    broken = _first_not_finite(model, split, examples, size, seed=seed, step=step, precision=precision)
    broken = distributed.first_from_any_rank(broken)
    if broken is not None:
        return broken
    gradients = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    for name, gradient in gradients.items():
        if not gradient.isfinite().all():
            return f"the gradient of {name} is not finite"
    norms = {name: gradient.double().norm().item() for name, gradient in gradients.items()}
    name = max(norms, key=norms.__getitem__)
    return f"every gradient is finite, the largest is that of {name} with a norm of {norms[name]:.3g}"


@torch.no_grad()
def _first_not_finite(
    model: Model, split: Split, examples: np.ndarray, size: int, *, seed: int, step: int, precision: Precision
) -> str | None:
    """Describe the first module whose output is not finite, or if the loss is not, the one with the largest output."""
    for number, part in enumerate(micro_batches(model, split, examples, size, precision)):
        dropout.set_keys(model, seed=seed, step=step, rows=part.rows)
        loss, outputs = _loss_and_outputs(model, part, precision)
        broken = [name for name, value in outputs.items() if not math.isfinite(value)]
        if broken or not math.isfinite(loss):
            name = broken[0] if broken else max(outputs, key=outputs.__getitem__)
            return f"in micro-batch {number}, {name} gives values up to {outputs[name]:.3g}"
    return None


def _loss_and_outputs(model: Model, part: MicroBatch, precision: Precision) -> tuple[float, dict[str, float]]:
    """Return the loss, and the largest absolute value of each module's output in the order of computation.

    Compiled blocks run uncompiled, since hooks are not called inside of them.
    """
    outputs: dict[str, float] = {}

    def note(name: str) -> Callable:
        def hook(_module: torch.nn.Module, _inputs: tuple, output: Any) -> None:
            if isinstance(output, Tensor):
                outputs[name] = output.abs().max().item()

        return hook

    with ExitStack() as hooks, torch.compiler.set_stance("force_eager"):
        for name, module in model.named_modules():
            if name:
                hooks.enter_context(module.register_forward_hook(note(name)))
        loss = summed_loss(*predict(model, part, precision)).item()
    return loss, outputs
