"""One training step: the gradient of a batch, in parts, and the optimiser.

Nothing here waits for an accelerator. The numbers of a step are looked at later; until then the optimiser itself sees
to it that a loss or a gradient that is not finite moves nothing: not in that step, and not in those after it.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lra.config.settings import Precision
from lra.core.errors import UserError
from lra.data import Split
from lra.model.model import Model
from lra.ops import dropout
from lra.ops.async_copy import AsyncNumbers
from lra.training import distributed
from lra.training.adamw import set_learning_rate
from lra.training.batches import MicroBatch, Tokens, micro_batches, predict
from lra.training.divergence import Diverged, cause_of
from lra.training.losses import summed_loss
from lra.training.recipe import Recipe

OnMicroBatch = Callable[[int, int], None]
"""Called before each micro-batch, where there is one rank, since the others may have fewer, with the examples of the
step that are done, and all of them. It may raise, because the step begins again and drops the gradients that it has
added up."""


@dataclass(frozen=True, kw_only=True)
class Update:
    """An update that was asked for, the `step`-th from 0 on. `numbers`: loss, real tokens and computed ones, norm of
    the gradient."""

    step: int
    lr: float
    numbers: AsyncNumbers
    cause: Callable[[], str]

    def look(self) -> tuple[float, Tokens]:
        """Its loss and the tokens read. Raises `Diverged` where a number is not finite, so that it moved nothing."""
        loss, real, computed, norm = self.numbers.read()
        if not math.isfinite(loss + norm):
            numbers = f"the loss of step {self.step} is {loss}, its gradient {norm:.3g} (learning rate {self.lr:.3g})"
            raise Diverged(f"{numbers}; {self.cause()}")
        return loss, Tokens(real=int(real), computed=int(computed))


def compile_blocks(model: Model) -> None:
    """Compile each block; noise is then hashed, on a CPU, too.

    Lengths that vary share one graph or a few, but in mixers that take one for each, whose batches are padded to few
    lengths. From the limit below on, nothing more is compiled.
    """
    torch._dynamo.config.recompile_limit = 64  # training and evaluation, padded and packed, all tokens and the CLS
    try:
        torch.compile(torch.neg)(next(model.parameters()).detach())
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(
            f"train.compile: torch.compile does not work here ({reason}); it needs a C++ compiler, and on an "
            "accelerator Triton; or use train.compile=false"
        ) from None
    for module in model.modules():
        if isinstance(module, dropout.Keyed):
            module.hashed = True
    model.few_lengths = model.masks_padding and not model.blocks[0].mixer.one_graph
    for block in model.blocks:
        block.compile(dynamic=True if model.blocks[0].mixer.one_graph else None)


def update(
    model: Model,
    optimizer: torch.optim.AdamW,
    split: Split,
    examples: np.ndarray,
    recipe: Recipe,
    *,
    seed: int,
    step: int,
    precision: Precision,
    last: int | None = None,
    on_micro_batch: OnMicroBatch = lambda *_: None,
    parts: Iterable[MicroBatch] | None = None,
) -> Update:
    """Ask for one training step on `examples`, whose `parts` may have been read before; `last`: as of
    `Recipe.learning_rate`."""
    batch = {"seed": seed, "step": step, "precision": precision}

    def gradient(parts: Iterable[MicroBatch] | None, on_micro_batch: OnMicroBatch) -> Tensor:
        if not model.training:
            model.train()
        model.redraw(seed, step)
        for parameter in model.every_parameter:
            parameter.grad = None
        return accumulate(
            model, split, examples, recipe.micro_batch, **batch, on_micro_batch=on_micro_batch, parts=parts
        )

    def cause() -> str:
        gradient(None, lambda *_: None)  # once more: it was clipped, and that of a later step may have taken its place
        return cause_of(model, split, examples, recipe.micro_batch, **batch)

    told, lr = gradient(parts, on_micro_batch), recipe.learning_rate(step, last)
    gradients = [parameter.grad for parameter in model.every_parameter if parameter.grad is not None]
    norm = torch.nn.utils.get_total_norm(gradients)
    numbers = torch.cat([told, norm.double().view(1)])
    optimizer.found_inf = torch.maximum(optimizer.found_inf, numbers.sum() * 0 != 0)  # where one is not finite
    if recipe.clip_norm is not None:
        torch.nn.utils.clip_grads_with_norm_(model.every_parameter, recipe.clip_norm, norm)
    set_learning_rate(optimizer, lr)
    optimizer.step()
    return Update(step=step, lr=lr, numbers=AsyncNumbers(numbers), cause=cause)


def accumulate(
    model: Model,
    split: Split,
    examples: np.ndarray,
    micro_batch: int,
    *,
    seed: int,
    step: int,
    precision: Precision,
    on_micro_batch: OnMicroBatch = lambda *_: None,
    parts: Iterable[MicroBatch] | None = None,
) -> Tensor:
    """Add the gradient of the mean loss over `examples` to the parameters; returns [3] that loss, the real tokens that
    were read, and those computed.

    The sum over a micro-batch is divided by the predictions of the whole batch, and dropout is keyed by example and
    does not move with padding: the gradient does not depend on `micro_batch`, nor on how many ranks share the batch.
    """
    device = model.every_parameter[0].device
    predictions = len(split.predictions(examples))
    total, real, computed = torch.zeros((), dtype=torch.float64, device=device), 0, 0
    done = 0
    for part in micro_batches(model, split, examples, micro_batch) if parts is None else parts:
        if distributed.count() == 1:
            on_micro_batch(done, len(examples))
        dropout.set_keys(model, seed=seed, step=step, rows=part.rows)
        logits, labels = predict(model, part, precision)
        loss = summed_loss(logits, labels) / predictions
        loss.backward()
        total += loss.detach()
        done += len(part.places)
        real, computed = real + part.real, computed + part.tokens.size
    distributed.add_gradients(model.every_parameter)
    told = torch.stack([total, total.new_full((), real), total.new_full((), computed)])
    distributed.all_reduce_sum_(told)
    return told
