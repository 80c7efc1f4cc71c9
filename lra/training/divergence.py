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
from lra.training.batches import micro_batches, predict
from lra.training.losses import summed_loss


class Diverged(Exception):
    """The loss or the gradient of a step was not finite; the weights are those before it."""


def cause_of(
    model: Model, split: Split, examples: np.ndarray, size: int, *, seed: int, step: int, precision: Precision
) -> str:
    """Where the numbers of a step went wrong; every rank gives the same."""
    broken, largest = _activations(model, split, examples, size, seed=seed, step=step, precision=precision)
    broken, largest = distributed.first_from_any_rank(broken), distributed.first_from_any_rank(largest)
    if broken is not None:
        return broken
    gradients = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    for name, gradient in gradients.items():
        if not gradient.isfinite().all():
            return f"the gradient of {name} is not finite; {largest}"
    norms = {name: gradient.double().norm().item() for name, gradient in gradients.items()}
    name = max(norms, key=norms.__getitem__)
    return f"every gradient is finite, the largest is that of {name} with a norm of {norms[name]:.3g}; {largest}"


@torch.no_grad()
def _activations(
    model: Model, split: Split, examples: np.ndarray, size: int, *, seed: int, step: int, precision: Precision
) -> tuple[str | None, str | None]:
    """The first part of a batch with a loss that is not finite, and the first values there that are not, if there are
    any; and the largest values of the batch.

    A hook at every module notes them; compiled blocks run uncompiled, since inside of these none is called.
    """
    sizes: dict[str, float] = {}
    largest, where = -1.0, None

    def note(name: str) -> Callable:
        def hook(_module: torch.nn.Module, _inputs: tuple, output: Any) -> None:
            if isinstance(output, Tensor):
                sizes[name] = output.abs().max().item()

        return hook

    with ExitStack() as hooks, torch.compiler.set_stance("force_eager"):
        for name, module in model.named_modules():
            if name:
                hooks.enter_context(module.register_forward_hook(note(name)))
        for number, part in enumerate(micro_batches(model, split, examples, size)):
            dropout.set_keys(model, seed=seed, step=step, rows=part.rows)
            sizes.clear()
            logits, labels = predict(model, part, precision)
            broken = [name for name, value in sizes.items() if not math.isfinite(value)]
            name = broken[0] if broken else max(sizes, key=sizes.__getitem__)
            told = f"in micro-batch {number}, {name} gives values up to {sizes[name]:.3g}"
            if not summed_loss(logits, labels).isfinite():
                return told, None
            if sizes[name] > largest:
                largest, where = sizes[name], told
    return None, where
