"""First weights, beside those that PyTorch draws: what `init: released` of several attentions shares."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from lra.core.errors import UserError

CUT_OFF = 0.87962566103423978  # deviation of a standard normal between -2 and 2


@torch.no_grad()
def draw_linear(draw: Callable[[Tensor], object], *modules: nn.Module) -> None:
    """The weights of linear layers by `draw`, in place, and biases of zero; other modules, as the identity that stands
    for a projection, stay as they are."""
    for module in modules:
        if isinstance(module, nn.Linear):
            draw(module.weight)
            if module.bias is not None:
                module.bias.zero_()


def normal(deviation: float) -> Callable[[Tensor], object]:
    return lambda weight: nn.init.normal_(weight, std=deviation)


def orthogonal(gain: float) -> Callable[[Tensor], object]:
    """`gain` times a matrix whose rows, or columns where they are fewer, are orthogonal and of length 1."""
    return lambda weight: nn.init.orthogonal_(weight, gain=gain)


def draw_truncated(tensor: Tensor, deviation: float) -> Tensor:
    """Normal numbers, cut off at two deviations of the uncut ones so that their own deviation is this; in place."""
    uncut = deviation / CUT_OFF
    return nn.init.trunc_normal_(tensor, std=uncut, a=-2 * uncut, b=2 * uncut)


def check_ends(option: str, least: float, most: float) -> None:
    """Raises UserError where an attention's `{option}_min` is above its `{option}_max`, between which it begins."""
    if least > most:
        raise UserError(f"attention.{option}_min={least}: expected at most attention.{option}_max={most}")
