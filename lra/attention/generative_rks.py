"""Generative-RKS: random kitchen sinks with frequencies that a small network computes from noise.

omega = G(noise) with noise ~ N(0, I), |omega_i| < 1, shared by the heads. O(L D M) time, M = 2 m + 1 features.

Source:
    Chowdhury et al. 2022.
"""

from typing import Annotated

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from lra.attention import Card, Shape
from lra.ops.random_features import Generator, Rks


class GenerativeRks(Rks):
    """Attention with Generative-RKS features.

    Args:
        samples: m.
        noise_width: input width of G in units of Dh.
        hidden_widths: hidden widths of G in units of Dh.
        smoothing: s.
        redraw_every: training steps per draw.
        eps: added to the denominator.
    """

    card = Card(
        paper="Chowdhury et al. 2022, On Learning the Transformer Kernel",
        formula="φ(Q) (φ(K)ᵀ V) / φ(Q) Σφ(K), φ = [[cos, sin](x' G(noise)) / √{samples}, {smoothing:g}], x' = x / Dh^¼",
        time="L D M, M features",
        linear=True,
        oracle="the explicit L x L weights; G layer by layer",
    )

    def __init__(
        self,
        shape: Shape,
        *,
        samples: Annotated[int, Field(ge=2)],
        noise_width: PositiveFloat,
        hidden_widths: list[PositiveFloat],
        smoothing: NonNegativeFloat,
        redraw_every: PositiveInt,
        eps: PositiveFloat,
    ) -> None:
        spectrum = Generator(shape.head_dim, samples=samples, noise_width=noise_width, hidden_widths=hidden_widths)
        super().__init__(shape, spectrum, smoothing=smoothing, redraw_every=redraw_every, eps=eps)
