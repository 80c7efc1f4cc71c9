"""One training step: the gradient of a batch, in parts, and the optimiser."""

import math
from collections import defaultdict
from collections.abc import Callable

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from lra.config.settings import Precision
from lra.core import dropout
from lra.core.errors import UserError
from lra.model.model import Model
from lra.tasks import Split
from lra.training import ranks
from lra.training.batches import Tokens, cuts, predict
from lra.training.divergence import Diverged, cause_of
from lra.training.recipe import Recipe

OnCut = Callable[[], None]
"""Called before each micro-batch where there is one rank, since the others may have fewer. It may raise, because the
step begins again and drops the gradients that it has added up."""


def compile_blocks(model: Model) -> None:
    """torch.compile each block. Noise is drawn outside of what is compiled; lengths that vary share one graph."""
    torch._dynamo.config.recompile_limit = 64  # each block in training and evaluation, and for all tokens and the CLS
    try:
        torch.compile(torch.neg)(next(model.parameters()).detach())
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(
            f"train.compile=true: torch.compile does not work here ({reason}); it needs a C++ compiler, and "
            "on an accelerator Triton; or use train.compile=false"
        ) from None
    for module in model.modules():
        if isinstance(module, dropout.Dropout):
            module.draw, module.as_mask = torch.compiler.disable(module.draw), True
    for block in model.blocks:
        block.compile()


def adamw(model: Model, recipe: Recipe) -> torch.optim.AdamW:
    """The optimiser of every run, of what is not frozen, in groups of one `factor` of the learning rate that `update`
    sets."""
    groups: dict[float, list[torch.nn.Parameter]] = defaultdict(list)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            groups[recipe.depth_factor(name, len(model.blocks))].append(parameter)
    return torch.optim.AdamW(
        [{"params": parameters, "factor": factor} for factor, parameters in groups.items()],
        lr=0.0,
        betas=tuple(recipe.betas),
        eps=recipe.eps,
        weight_decay=recipe.weight_decay,
        fused=True,
    )


def update(
    model: Model,
    optimizer: torch.optim.Optimizer,
    split: Split,
    examples: np.ndarray,
    recipe: Recipe,
    *,
    seed: int,
    step: int,
    precision: Precision,
    on_cut: OnCut = lambda: None,
) -> tuple[float, Tokens]:
    """One training step on `examples`; returns its loss and the tokens read. Raises `Diverged`."""
    model.train()
    model.redraw(seed, step)
    optimizer.zero_grad(set_to_none=True)
    loss, seen = accumulate(
        model, split, examples, recipe.micro_batch, seed=seed, step=step, precision=precision, on_cut=on_cut
    )
    lr = recipe.learning_rate(step)
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    norm = torch.nn.utils.get_total_norm(gradients)
    if not math.isfinite(loss + norm.item()):
        cause = cause_of(model, split, examples, recipe.micro_batch, seed=seed, step=step, precision=precision)
        raise Diverged(f"the loss of step {step} is {loss}, its gradient {norm:.3g} (learning rate {lr:.3g}); {cause}")
    if recipe.clip_norm is not None:
        torch.nn.utils.clip_grads_with_norm_(model.parameters(), recipe.clip_norm, norm)
    for group in optimizer.param_groups:
        group["lr"] = lr * group["factor"]
    optimizer.step()
    return loss, seen


def accumulate(
    model: Model,
    split: Split,
    examples: np.ndarray,
    micro_batch: int,
    *,
    seed: int,
    step: int,
    precision: Precision,
    on_cut: OnCut = lambda: None,
) -> tuple[float, Tokens]:
    """Add the gradient of the mean loss over `examples` to the parameters; returns that loss and the tokens read.

    The sum over a micro-batch is divided by the size of the whole batch, and dropout is keyed by example and does not
    move with padding: the gradient does not depend on `micro_batch`, nor on how many ranks share the batch.
    """
    device = next(model.parameters()).device
    total, tokens = torch.zeros((), dtype=torch.float64, device=device), Tokens()
    for places, length in cuts(model, split, examples, micro_batch):
        if ranks.count() == 1:
            on_cut()
        rows = (places[:, None] * split.documents + np.arange(split.documents)).flatten()
        dropout.set_keys(model, seed=seed, step=step, rows=rows.tolist())
        logits, labels = predict(model, split, examples[places], length, precision)
        loss = cross_entropy(logits, labels, reduction="sum") / (len(labels) // len(places) * len(examples))
        loss.backward()
        total += loss.detach()
        tokens += Tokens(real=int(split.lengths(examples[places]).sum()), computed=len(rows) * length)
    ranks.add_gradients(model.parameters())
    loss, real, computed = ranks.summed(total.item(), tokens.real, tokens.computed)
    return loss, Tokens(real=int(real), computed=int(computed))
