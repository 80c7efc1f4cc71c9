"""GMM-PRF: positive random features with frequencies from one learned Gaussian per head.

Omega = exp(sigma / 2) w + mu with w ~ N(0, I), diagonal; with t = x' + y',
E k(x, y) = exp(mu . t + |exp(sigma / 2) t|^2 / 2 - |x'|^2 - |y'|^2), which is exp(-|x' - y'|^2 / 2) for mu = sigma = 0.
O(L D M) time, M = m features.

Source:
    Chowdhury et al. 2022.
"""

import torch
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor, nn

from lra.attention import Card, Shape
from lra.ops.random_features import Prf, Spectrum


class GmmPrf(Prf):
    """Attention with GMM-PRF features.

    Args:
        samples: m.
        redraw_every: training steps per draw.
        eps: added to the denominator.
    """

    card = Card(
        paper="Chowdhury et al. 2022, On Learning the Transformer Kernel",
        formula="φ(Q) (φ(K)ᵀ V) / φ(Q) Σφ(K), φ = exp(x'(e^½σ w + μ) − |x'|²), x' = x / Dh^¼",
        time="L D M, M features",
        linear=True,
        oracle="the closed-form kernel over many draws; the explicit L x L weights",
    )

    def __init__(self, shape: Shape, *, samples: PositiveInt, redraw_every: PositiveInt, eps: PositiveFloat) -> None:
        spectrum = Gaussian(shape.heads, shape.head_dim, samples)
        super().__init__(shape, spectrum, redraw_every=redraw_every, eps=eps)


class Gaussian(Spectrum):
    """exp(sigma / 2) w + mu.

    Initialised as in the released code: sigma [H, Dh] by Xavier's rule, mu within +-1 / sqrt(Dh).
    """

    def __init__(self, heads: int, head_dim: int, samples: int) -> None:
        super().__init__(torch.randn(head_dim, samples), samples)
        bound = head_dim**-0.5
        self.sigma = nn.Parameter(nn.init.xavier_uniform_(torch.empty(heads, head_dim)))
        self.mu = nn.Parameter(nn.init.uniform_(torch.empty(heads, head_dim), -bound, bound))

    def frequencies(self) -> Tensor:
        """Return Omega [H, Dh, m]."""
        return (self.sigma / 2).exp().unsqueeze(-1) * self.noise + self.mu.unsqueeze(-1)

    @property
    def parameter_count(self) -> int:
        heads, head_dim = self.mu.shape
        return 2 * heads * head_dim
