"""Optional interfaces of mixers; a class implements one by having its methods."""

from typing import Protocol, Self, runtime_checkable

from torch import Tensor


@runtime_checkable
class Follows(Protocol):
    """A mixer that reads a memory of the mixer of the layer before."""

    def follow(self, earlier: Self) -> None:
        """Connect to `earlier`, the mixer of the layer before; called once by the model's constructor."""


@runtime_checkable
class HasWeights(Protocol):
    """An `Attention` whose outputs are weighted sums of values."""

    def weights(self, q: Tensor, k: Tensor, key_mask: Tensor | None) -> Tensor:
        """Return the weights [B, H, n, L] of q [B, H, n, Dh] and k [B, H, L, Dh], without causality."""


@runtime_checkable
class HasScores(Protocol):
    """An `Attention` in which the weight of token j for token i is a function of q_i . k_j."""

    def score_scale(self, length: int, key_mask: Tensor | None) -> Tensor | float:
        """Return the factor of q_i . k_j, a number or [B, 1, 1, 1]."""
