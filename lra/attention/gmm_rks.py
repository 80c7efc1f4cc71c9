"""GMM-RKS: random kitchen sinks with frequencies from a learned Gaussian mixture.

Omega = Sigma^T w +- mu with w ~ N(0, I), one Gaussian per head and its mirror image, which makes the kernel real:
E k(x, y) = 2 exp(-|Sigma d|^2 / 2) cos(mu . d) + s^2 with d = x' - y', in the released code's normalisation.
O(L D M) time, M = 4 m + 1 features.

Source:
    Chowdhury et al. 2022.
"""

import torch
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor, nn

from lra.attention import Card, Shape
from lra.ops.random_features import Rks, Spectrum


class GmmRks(Rks):
    """Attention with GMM-RKS features.

    Args:
        samples: m.
        smoothing: s.
        redraw_every: training steps per draw.
        eps: added to the denominator.
    """

    card = Card(
        paper="Chowdhury et al. 2022, On Learning the Transformer Kernel",
        formula="φ(Q) (φ(K)ᵀ V) / φ(Q) Σφ(K), φ = [[cos, sin](x'(Σᵀw ± μ)) / √{samples}, {smoothing:g}], x' = x / Dh^¼",
        time="L D M, M features",
        linear=True,
        oracle="the closed-form kernel over many draws; the explicit L x L weights",
    )

    def __init__(
        self,
        shape: Shape,
        *,
        samples: PositiveInt,
        smoothing: NonNegativeFloat,
        redraw_every: PositiveInt,
        eps: PositiveFloat,
    ) -> None:
        spectrum = Mixture(shape.heads, shape.head_dim, samples)
        super().__init__(shape, spectrum, smoothing=smoothing, redraw_every=redraw_every, eps=eps)


class Mixture(Spectrum):
    """Sigma^T w +- mu.

    Initialised as in the released code: Sigma [H, Dh, Dh] by Xavier's rule for the whole tensor, with fan-in Dh^2, and
    mu within +-1 / Dh, so that the kernel starts flat.
    """

    def __init__(self, heads: int, head_dim: int, samples: int) -> None:
        super().__init__(torch.randn(head_dim, samples), samples)
        self.sigma = nn.Parameter(nn.init.xavier_uniform_(torch.empty(heads, head_dim, head_dim)))
        self.mu = nn.Parameter(nn.init.uniform_(torch.empty(heads, head_dim), -1 / head_dim, 1 / head_dim))

    def frequencies(self) -> Tensor:
        """Return Omega [H, Dh, 2 m]."""
        centred, mu = self.sigma.transpose(-2, -1) @ self.noise, self.mu.unsqueeze(-1)
        return torch.cat([centred + mu, centred - mu], dim=-1)

    @property
    def parameter_count(self) -> int:
        heads, head_dim = self.mu.shape
        return heads * head_dim * (head_dim + 1)
