"""Initialisations shared by the option `init: released` of several attentions."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from lra.core.errors import UserError

CUT_OFF = 0.87962566103423978  # deviation of a standard normal between -2 and 2


@torch.no_grad()
def draw_linear(draw: Callable[[Tensor], object], *modules: nn.Module) -> None:
    """Initialise linear layers in place by `draw`, with zero biases; other modules (nn.Identity) are left alone."""
    for module in modules:
        if isinstance(module, nn.Linear):
            draw(module.weight)
            if module.bias is not None:
                module.bias.zero_()


def normal(deviation: float) -> Callable[[Tensor], object]:
    """Return an initialiser that draws normal numbers with this standard deviation."""
    return lambda weight: nn.init.normal_(weight, std=deviation)


def orthogonal(gain: float) -> Callable[[Tensor], object]:
    """Return an initialiser that draws `gain` times a matrix with orthonormal rows, or columns if they are fewer."""
    return lambda weight: nn.init.orthogonal_(weight, gain=gain)


def draw_truncated(tensor: Tensor, deviation: float) -> Tensor:
    """Draw, in place, normal numbers cut off at two standard deviations, with the standard deviation `deviation`."""
    uncut = deviation / CUT_OFF
    return nn.init.trunc_normal_(tensor, std=uncut, a=-2 * uncut, b=2 * uncut)


def check_ends(option: str, least: float, most: float) -> None:
    """Raise UserError if an attention's option `{option}_min` is above `{option}_max`."""
    if least > most:
        raise UserError(f"attention.{option}_min={least}: expected at most attention.{option}_max={most}")
