"""The optimiser of every run: torch's fused AdamW."""

from collections import defaultdict

import torch

from lra.model.model import Model
from lra.training.recipe import Recipe


def make_optimizer(model: Model, recipe: Recipe) -> torch.optim.AdamW:
    """Create AdamW over the weights that are not frozen.

    There is a group for each weight decay and each `factor` of the learning rate. A step changes nothing while the
    optimiser's `found_inf` is 1, which a fused step reads where the weights are.
    """
    group_of = model.group_by_parameter(recipe.groups or ())
    groups: dict[tuple[float, float], list[torch.nn.Parameter]] = defaultdict(list)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            factor, decay = recipe.rate_factor_and_decay(name, group_of.get(name))
            groups[factor * recipe.depth_factor(name, len(model.blocks)), decay].append(parameter)
    optimizer = torch.optim.AdamW(
        [
            {"params": parameters, "factor": factor, "weight_decay": decay}
            for (factor, decay), parameters in groups.items()
        ],
        lr=0.0,
        betas=tuple(recipe.betas),
        eps=recipe.eps,
        fused=True,
    )
    optimizer.found_inf = torch.zeros((), dtype=torch.float32, device=next(model.parameters()).device)
    return optimizer


def set_learning_rate(optimizer: torch.optim.AdamW, lr: float) -> None:
    """Set the learning rate of each group to `lr` times its factor."""
    for group in optimizer.param_groups:
        group["lr"] = lr * group["factor"]
