"""Hooks on layers whose products are also computed in one piece with others'."""

from torch import nn


def hooked(*layers: nn.Module) -> bool:
    """Whether somebody waits for what one of the layers reads or gives: it must then be called by itself."""
    return any(layer._forward_hooks or layer._forward_pre_hooks for layer in layers)
