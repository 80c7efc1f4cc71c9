"""Generative-PRF: positive random features with frequencies that a small network computes from noise.

omega = G(noise) with noise ~ N(0, I), |omega_i| < 1, shared by the heads. O(L D M) time, M = m features.

Source:
    Chowdhury et al. 2022.
"""

from typing import Annotated

from pydantic import Field, PositiveFloat, PositiveInt

from lra.attention import Card, Shape
from lra.ops.random_features import Generator, Prf


class GenerativePrf(Prf):
    """Attention with Generative-PRF features.

    Args:
        samples: m.
        noise_width: input width of G in units of Dh.
        hidden_widths: hidden widths of G in units of Dh.
        redraw_every: training steps per draw.
        eps: added to the denominator.
    """

    card = Card(
        paper="Chowdhury et al. 2022, On Learning the Transformer Kernel",
        formula="φ(Q) (φ(K)ᵀ V) / φ(Q) Σφ(K), φ = exp(x' G(noise) − |x'|²), x' = x / Dh^¼",
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
        redraw_every: PositiveInt,
        eps: PositiveFloat,
    ) -> None:
        spectrum = Generator(shape.head_dim, samples=samples, noise_width=noise_width, hidden_widths=hidden_widths)
        super().__init__(shape, spectrum, redraw_every=redraw_every, eps=eps)
