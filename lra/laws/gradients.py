"""Laws of gradients: they reach input and weights, and equal finite differences."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.func import functional_call

from lra.laws.trial import Broken, Trial, trained, values
from lra.ops.mixer import Attention, Mixer

PROJECTIONS = ("query", "key", "value")
STEPS, TOLERANCE = (1e-6, 1e-4), 5e-3  # short steps cross few kinks; long ones suit a mixer that computes in float32


def graph(trial: Trial) -> bool:
    *_, x = trial.inputs(2)
    mixer = trained(trial.mixer(), [0, 1])
    given = x.clone().requires_grad_()
    y = mixer(given)
    weights = {name: weight for name, weight in mixer.named_parameters() if weight.requires_grad}
    wanted = {"the input": given, **weights}
    if not y.requires_grad:
        raise Broken("outputs have no gradient", "detach, .data, no_grad or numpy")
    gradients = torch.autograd.grad((y * values(*y.shape, seed=2)).sum(), list(wanted.values()), allow_unused=True)
    lost = [name for name, gradient in zip(wanted, gradients, strict=True) if gradient is None]
    cut = [name for name in lost if name == "the input" or _matters(trial, x, y.detach(), name)]
    if cut:
        raise Broken(f"no gradient reaches {', '.join(cut)}", "detach, .data, no_grad or numpy")
    unread = [part for part in PROJECTIONS if f"{part}.weight" in lost]
    if isinstance(mixer, Attention) and unread:
        named = " and ".join(part[0] for part in unread)
        trial.note = f"attend ignores {named}: subclass Mixer, which has no projections that nothing trains"
    return True


@torch.no_grad()
def _matters(trial: Trial, x: Tensor, y: Tensor, name: str) -> bool:
    """Return True if the outputs y depend on this weight."""
    mixer = trained(trial.mixer(), [0, 1])
    weight = mixer.get_parameter(name)
    weight += values(*weight.shape, seed=2)
    return trial.difference(y, mixer(x.clone())) > 0


def differences(trial: Trial) -> bool:
    """Compare gradients with finite differences in one random direction of the input and of each weight."""
    for x in trial.inputs(2):
        mixer = trial.mixer()
        weights = {name: weight.detach() for name, weight in mixer.named_parameters() if weight.requires_grad}
        for name, value in {"the input": x, **weights}.items():
            total = _total_along(mixer, x, name, value)
            at = torch.zeros((), dtype=torch.float64, requires_grad=True)
            y = total(at)
            slope = torch.autograd.grad(y, at, allow_unused=True)[0] if y.requires_grad else None
            exact = 0.0 if slope is None else slope.item()
            measured = [_slope(total, step) for step in STEPS]
            least = 1e-3 * abs(y.item()) + 1e-6
            if all(abs(exact - other) > TOLERANCE * max(least, abs(other)) for other in measured):
                raise Broken(f"by {name} the gradient is {exact:.3g}, by finite differences {measured[-1]:.3g}")
    return True


def _total_along(mixer: Mixer, x: Tensor, name: str, value: Tensor) -> Callable[[Tensor | float], Tensor]:
    """Random weighted sum of the outputs, as a function of the step in a random direction."""
    direction, factors = values(*value.shape, seed=3), values(*x.shape, seed=4)

    def total(by: Tensor | float) -> Tensor:
        there = value + by * direction
        moved = (mixer, {}, (there,)) if name == "the input" else (mixer, {name: there}, (x.clone(),))
        return (functional_call(*moved) * factors).sum()

    return total


@torch.no_grad()
def _slope(total: Callable[[float], Tensor], step: float) -> float:
    return (total(step) - total(-step)).item() / (2 * step)
