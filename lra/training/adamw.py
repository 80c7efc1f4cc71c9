"""The optimiser of every run: AdamW, asked for in as few operations as it takes.

`torch.optim.AdamW.step` sorts all weights anew at every step, which takes this machine longer than the model's own
operations of a small layer. What is computed is the same, to the last bit.
"""

from collections import defaultdict

import torch
from torch import Tensor

from lra.model.model import Model
from lra.training.recipe import Recipe


class AdamW(torch.optim.AdamW):
    """AdamW over the weights that are not frozen, in groups of one weight decay, one `factor` of the learning rate and
    one type. It does nothing while its `found_inf` is 1, which is looked at where the weights are."""

    def __init__(self, model: Model, recipe: Recipe) -> None:
        group_of = model.group_by_parameter(recipe.groups or ())
        groups: dict[tuple[float, float, torch.dtype], list[torch.nn.Parameter]] = defaultdict(list)
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                factor, decay = recipe.rate_factor_and_decay(name, group_of.get(name))
                factor *= recipe.depth_factor(name, len(model.blocks))
                groups[factor, decay, parameter.dtype].append(parameter)
        super().__init__(
            [
                {"params": parameters, "factor": factor, "weight_decay": decay}
                for (factor, decay, _), parameters in groups.items()
            ],
            lr=0.0,
            betas=tuple(recipe.betas),
            eps=recipe.eps,
            fused=True,
        )
        self.found_inf = torch.zeros((), dtype=torch.float32, device=next(model.parameters()).device)

    @torch.no_grad()
    def step_at(self, lr: float) -> None:
        """What `step` does, at this learning rate."""
        for group in self.param_groups:
            weights = [weight for weight in group["params"] if weight.grad is not None]
            if not weights:
                continue
            kept = [self.state[weight] or self._begun(weight) for weight in weights]
            steps = [of_weight["step"] for of_weight in kept]
            torch._foreach_add_(steps, 1)
            torch._fused_adamw_(
                weights,
                [weight.grad for weight in weights],
                [of_weight["exp_avg"] for of_weight in kept],
                [of_weight["exp_avg_sq"] for of_weight in kept],
                [],
                steps,
                lr=lr * group["factor"],
                beta1=group["betas"][0],
                beta2=group["betas"][1],
                weight_decay=group["weight_decay"],
                eps=group["eps"],
                amsgrad=False,
                maximize=False,
                grad_scale=None,
                found_inf=self.found_inf,
            )
            torch._foreach_sub_(steps, [self.found_inf] * len(steps))

    def _begun(self, weight: torch.nn.Parameter) -> dict[str, Tensor]:
        """What is kept of a weight, before its first step."""
        step = torch.zeros((), dtype=torch.float32, device=weight.device)
        self.state[weight].update(step=step, exp_avg=torch.zeros_like(weight), exp_avg_sq=torch.zeros_like(weight))
        return self.state[weight]


def total_norm(gradients: list[Tensor]) -> Tensor:
    """The L2 norm of all gradients together, as `torch.nn.utils.get_total_norm` gives it, which sorts them before."""
    return torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
