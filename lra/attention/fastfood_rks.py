"""FastFood-RKS: random kitchen sinks with the frequencies of a learned FastFood matrix.

Omega = V^T, V = S H G P H B / sqrt(N) shared by the heads; S, G, B learned, P drawn; N = Dh, or the next power of two.
O(L D Dh) time, 2 N + 1 features.

Source:
    Chowdhury et al. 2022.
"""

from typing import Literal

from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt

from lra.attention import Card, Shape
from lra.ops.random_features import FastFood, Rks


class FastfoodRks(Rks):
    """Attention with FastFood-RKS features.

    Args:
        init: of S, G, B, see `FastFood`.
        smoothing: s.
        redraw_every: training steps per draw.
        eps: added to the denominator.
    """

    card = Card(
        paper="Chowdhury et al. 2022, On Learning the Transformer Kernel",
        formula="φ(Q) (φ(K)ᵀ V) / φ(Q) Σφ(K), φ = [[cos, sin](SHGPHB x' / √{size}) / √{size}, {smoothing:g}], "
        "x' = x / Dh^¼",
        time="L D Dh",
        linear=True,
        oracle="the closed-form kernel over many draws; the explicit product of matrices",
    )

    def __init__(
        self,
        shape: Shape,
        *,
        init: Literal["classic", "released"],
        smoothing: NonNegativeFloat,
        redraw_every: PositiveInt,
        eps: PositiveFloat,
    ) -> None:
        spectrum = FastFood(shape.head_dim, init)
        super().__init__(shape, spectrum, smoothing=smoothing, redraw_every=redraw_every, eps=eps)
