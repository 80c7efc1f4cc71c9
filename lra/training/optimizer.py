"""Create AdamW for a recipe, and update the weights by a gradient.

The host does not wait for an accelerator: the loss of a step is read later. The optimiser's tensor `broken` is set in a
step with a loss or gradient that is not finite, and prevents the update in this step and in all later ones. Fused AdamW
reads `broken` on the device. Torch has no fused AdamW for complex weights; with such weights the host waits and reads
`broken` before each update.
"""

import math
from collections import defaultdict
from dataclasses import dataclass

import torch
from torch import Tensor

from lra.core.errors import UserError
from lra.network.model import Model
from lra.ops import dropout
from lra.ops.device import AsyncNumbers
from lra.training.batches import Tokens
from lra.training.recipe import Recipe


class Diverged(Exception):
    """Raised if the loss or the gradient of a step is not finite; the weights stay those before that step."""


@dataclass(frozen=True, kw_only=True)
class Update:
    """An update that the device may not have finished."""

    step: int
    lr: float
    numbers: AsyncNumbers  # [4]: loss, tokens without padding, tokens with padding, gradient norm

    def read(self) -> tuple[float, Tokens]:
        """Return the loss and the tokens. Raises `Diverged` if the loss or the gradient is not finite."""
        loss, real, computed, norm = self.numbers.read()
        if not math.isfinite(loss + norm):
            raise Diverged(
                f"the loss of step {self.step} is {loss}, its gradient {norm:.3g} (learning rate {self.lr:.3g})"
            )
        return loss, Tokens(real=int(real), computed=int(computed))


def make_optimizer(model: Model, recipe: Recipe) -> torch.optim.AdamW:
    """Return AdamW over the trainable weights, with a group for each pair of weight decay and learning-rate `factor`.

    The optimizer gets a tensor `broken` on the device. `update` sets it to 1 at the first loss or gradient that is not
    finite, and changes no weights from then on.
    """
    group_of = model.group_by_parameter(recipe.groups or ())
    groups: dict[tuple[float, float], list[torch.nn.Parameter]] = defaultdict(list)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            factor, decay = recipe.rate_factor_and_decay(name, group_of.get(name))
            groups[factor * recipe.depth_factor(name, len(model.blocks)), decay].append(parameter)
    options = [{"params": held, "factor": factor, "weight_decay": decay} for (factor, decay), held in groups.items()]
    # Fused AdamW is one kernel for all weights of a group, and can skip a step on the device by `found_inf`.
    fused = not any(parameter.is_complex() for parameter in model.parameters())
    # lr=0.0 is a placeholder: `update` sets the rate of each step.
    optimizer = torch.optim.AdamW(options, lr=0.0, betas=tuple(recipe.betas), eps=recipe.eps, fused=fused)
    optimizer.broken = torch.zeros((), dtype=torch.float32, device=next(model.parameters()).device)
    return optimizer


def update(
    model: Model, optimizer: torch.optim.AdamW, totals: Tensor, recipe: Recipe, *, step: int, last: int | None = None
) -> Update:
    """Run one AdamW step and return its `Update`, which an accelerator may not have finished.

    A step with a loss or gradient that is not finite, and every later step, leave the weights unchanged.

    Args:
        optimizer: from `make_optimizer`.
        totals: [3], mean loss and two token counts from `compute_gradient`.
        step: index of the update, from 0.
        last: number of steps of the run, for the cooldown of the learning rate; None: `recipe.steps`.
    """
    gradients = [parameter.grad for parameter in model.every_parameter if parameter.grad is not None]
    norm = torch.nn.utils.get_total_norm(gradients)
    numbers = torch.cat([totals, norm.double().view(1)])
    # 0 times NaN or infinity is NaN, which differs from 0; `broken` stays 1 from then on.
    optimizer.broken = torch.maximum(optimizer.broken, numbers.sum() * 0 != 0)
    if recipe.clip_norm is not None:
        torch.nn.utils.clip_grads_with_norm_(model.every_parameter, recipe.clip_norm, norm)
    lr = recipe.learning_rate(step, last)
    for group in optimizer.param_groups:
        group["lr"] = lr * group["factor"]
    if optimizer.defaults["fused"]:
        optimizer.found_inf = optimizer.broken  # fused AdamW skips the step if this is 1
        optimizer.step()
    elif not optimizer.broken:
        optimizer.step()
    return Update(step=step, lr=lr, numbers=AsyncNumbers(numbers))


def compile_blocks(model: Model) -> None:
    """Compile each block.

    On a CPU, dropout then hashes its noise, as on an accelerator, instead of drawing the indices of values to drop.
    """
    from torch._functorch import config as autograd_config

    torch._dynamo.config.specialize_float = True  # compile float settings, such as eps, as constants
    # Maximum number of graphs per block. Training, evaluation, packed batches and CLS outputs need different graphs.
    torch._dynamo.config.recompile_limit = 32
    torch._dynamo.config.fail_on_recompile_limit_hit = True  # otherwise the run would continue uncompiled
    autograd_config.backward_pass_autocast = "off"  # else the backward pass of full-precision parts would use bf16
    try:
        # Compile a small function now: without a compiler the first step would fail with a traceback of Inductor.
        torch.compile(torch.neg)(next(model.parameters()).detach())
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(f"train.compile: no compiler for torch.compile ({reason}); use train.compile=false") from None
    for module in model.modules():
        if isinstance(module, dropout.Keyed):
            module.hashed = True
    for block in model.blocks:
        block.compile(dynamic=True if model.blocks[0].mixer.one_graph else None)
