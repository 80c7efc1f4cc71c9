"""What a mixer may offer beyond the contract, and who asks for it. A class offers it by having the methods."""

from typing import Protocol, Self, runtime_checkable

from torch import Tensor


@runtime_checkable
class Follows(Protocol):
    """Reads a memory that the mixer of the layer before hands on."""

    def follow(self, earlier: Self) -> None:
        """The model calls it once, when it is made; `earlier`: the mixer of the layer before."""


@runtime_checkable
class HasWeights(Protocol):
    """An `Attention` whose outputs are sums of values, each with a weight."""

    def weights(self, q: Tensor, k: Tensor, key_mask: Tensor | None) -> Tensor:
        """q [B, H, n, Dh], k [B, H, L, Dh] -> [B, H, n, L], whose product with v is `attend` without causality."""


@runtime_checkable
class HasScores(Protocol):
    """An `Attention` in which the weight of token j for token i is a function of q_i . k_j: the probe measures it."""

    def score_scale(self, length: int, key_mask: Tensor | None) -> Tensor | float:
        """What q_i . k_j is multiplied by, a number or [B, 1, 1, 1]."""
