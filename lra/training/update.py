"""Training step: the gradient of a batch, in micro-batches, and AdamW.

The host never waits for an accelerator: the loss of a step is read later. Until then `broken` of the optimiser
prevents updates in a step with a loss or gradient that is not finite, and in those after it. With complex weights the
host waits, since torch has no fused AdamW for them.
"""

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lra.config.settings import Precision
from lra.core.errors import UserError
from lra.data import Split
from lra.model.model import Model
from lra.ops import dropout, products
from lra.ops.device import AsyncNumbers
from lra.training import distributed
from lra.training.batches import MicroBatch, Tokens, micro_batches, predict, summed_loss
from lra.training.recipe import Recipe


class Diverged(Exception):
    """The loss or the gradient of a step is not finite; the weights are those before it."""


@dataclass(frozen=True, kw_only=True)
class Update:
    """A started update. `numbers`: loss, real and computed tokens, gradient norm."""

    step: int
    lr: float
    numbers: AsyncNumbers

    def look(self) -> tuple[float, Tokens]:
        """Return the loss and the tokens. Raises `Diverged` if the loss or the gradient is not finite."""
        loss, real, computed, norm = self.numbers.read()
        if not math.isfinite(loss + norm):
            raise Diverged(
                f"the loss of step {self.step} is {loss}, its gradient {norm:.3g} (learning rate {self.lr:.3g})"
            )
        return loss, Tokens(real=int(real), computed=int(computed))


def make_optimizer(model: Model, recipe: Recipe) -> torch.optim.AdamW:
    """Create AdamW over the weights that are not frozen, with a group for each weight decay and `factor` of the rate.

    A step of `update` changes nothing while `broken`, a tensor on the device, is 1.
    """
    group_of = model.group_by_parameter(recipe.groups or ())
    groups: dict[tuple[float, float], list[torch.nn.Parameter]] = defaultdict(list)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            factor, decay = recipe.rate_factor_and_decay(name, group_of.get(name))
            groups[factor * recipe.depth_factor(name, len(model.blocks)), decay].append(parameter)
    options = [{"params": held, "factor": factor, "weight_decay": decay} for (factor, decay), held in groups.items()]
    fused = not any(parameter.is_complex() for parameter in model.parameters())
    optimizer = torch.optim.AdamW(options, lr=0.0, betas=tuple(recipe.betas), eps=recipe.eps, fused=fused)
    optimizer.broken = torch.zeros((), dtype=torch.float32, device=next(model.parameters()).device)
    return optimizer


def compile_blocks(model: Model) -> None:
    """Compile each block. Noise is then hashed, on a CPU, too."""
    torch._dynamo.config.specialize_float = True  # settings such as eps are constants of a graph
    torch._dynamo.config.recompile_limit = 32  # training and evaluation, padded and packed, all tokens and the CLS
    torch._dynamo.config.fail_on_recompile_limit_hit = True  # a run would go on uncompiled
    torch._functorch.config.backward_pass_autocast = "off"  # backward passes of full-precision parts, too
    try:
        torch.compile(torch.neg)(next(model.parameters()).detach())
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(f"train.compile: no compiler for torch.compile ({reason}); use train.compile=false") from None
    for module in model.modules():
        if isinstance(module, dropout.Keyed):
            module.hashed = True
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
    parts: Iterable[MicroBatch] | None = None,
) -> Update:
    """Start one training step on examples [batch_size] of a split.

    Args:
        optimizer: of `make_optimizer`.
        last: see `Recipe.learning_rate`.
        parts: micro-batches, if they have been read already.
    """
    if not model.training:
        model.train()
    model.redraw(seed, step)
    for parameter in model.every_parameter:
        parameter.grad = None
    totals = accumulate(
        model, split, examples, recipe.micro_batch, seed=seed, step=step, precision=precision,
        parts=parts,
    )  # fmt: skip
    lr = recipe.learning_rate(step, last)
    gradients = [parameter.grad for parameter in model.every_parameter if parameter.grad is not None]
    norm = torch.nn.utils.get_total_norm(gradients)
    numbers = torch.cat([totals, norm.double().view(1)])
    optimizer.broken = torch.maximum(optimizer.broken, numbers.sum() * 0 != 0)  # 1 if one is not finite
    if recipe.clip_norm is not None:
        torch.nn.utils.clip_grads_with_norm_(model.every_parameter, recipe.clip_norm, norm)
    for group in optimizer.param_groups:
        group["lr"] = lr * group["factor"]
    if optimizer.defaults["fused"]:
        optimizer.found_inf = optimizer.broken
        optimizer.step()
    elif not optimizer.broken:
        optimizer.step()
    return Update(step=step, lr=lr, numbers=AsyncNumbers(numbers))


def accumulate(
    model: Model,
    split: Split,
    examples: np.ndarray,
    micro_batch: int,
    *,
    seed: int,
    step: int,
    precision: Precision,
    parts: Iterable[MicroBatch] | None = None,
) -> Tensor:
    """Add the gradient of the mean loss over `examples` to the parameters; return [loss, real tokens, computed tokens].

    It does not depend on `micro_batch` or on the number of ranks: the loss of a micro-batch is divided by the
    predictions of the batch, and dropout is keyed by document.
    """
    device = model.every_parameter[0].device
    predictions = len(split.predictions(examples))
    total, real, computed = torch.zeros((), dtype=torch.float64, device=device), 0, 0
    for part in micro_batches(model, split, examples, micro_batch, precision) if parts is None else parts:
        dropout.set_keys(model, seed=seed, step=step, rows=part.rows)
        with products.of_micro_batch(part.tokens.size, model.dim):
            logits, labels = predict(model, part, precision)
            loss = summed_loss(logits, labels) / predictions
            loss.backward()
        total += loss.detach()
        real, computed = real + part.real, computed + part.tokens.size
    distributed.add_gradients(model.every_parameter)
    totals = torch.stack([total, total.new_full((), real), total.new_full((), computed)])
    distributed.all_reduce_sum_(totals)
    return totals
