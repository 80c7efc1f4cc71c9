"""FastFood-PRF: positive random features with the frequencies of a learned FastFood matrix.

Omega = V^T, V = S H G P H B / sqrt(N) shared by the heads; S, G, B learned, P drawn; N = Dh, or the next power of two.
O(L D Dh) time, N features. The released class fails in its constructor; this follows its forward pass.

Source:
    Chowdhury et al. 2022.
"""

from typing import Literal

from pydantic import PositiveFloat, PositiveInt

from lra.attention import Card, Shape
from lra.ops.random_features import FastFood, Prf


class FastfoodPrf(Prf):
    """Attention with FastFood-PRF features.

    Args:
        init: of S, G, B, see `FastFood`.
        redraw_every: training steps per draw.
        eps: added to the denominator.
    """

    card = Card(
        paper="Chowdhury et al. 2022, On Learning the Transformer Kernel",
        formula="φ(Q) (φ(K)ᵀ V) / φ(Q) Σφ(K), φ = exp(SHGPHB x' / √{size} − |x'|²), x' = x / Dh^¼",
        time="L D Dh",
        linear=True,
        oracle="the closed-form kernel over many draws; the explicit product of matrices",
    )

    def __init__(
        self, shape: Shape, *, init: Literal["classic", "released"], redraw_every: PositiveInt, eps: PositiveFloat
    ) -> None:
        super().__init__(shape, FastFood(shape.head_dim, init), redraw_every=redraw_every, eps=eps)
