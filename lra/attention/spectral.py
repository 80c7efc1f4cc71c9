"""Linear attention with learned random-feature kernels: GMM, FastFood and Generative, each as RKS and as PRF.

A spectrum gives the frequencies Omega as a learned function of drawn noise; `lra.ops.kernel_attention` has the feature
maps, random kitchen sinks (RKS) and positive random features (PRF), and the FastFood and Generative spectra.
O(L D M) time for M features: 4 m + 1 (GMM-RKS), 2 m + 1 (other RKS) or m (PRF), where FastFood has m = Dh, or the next
power of two. Options of all: m (samples), the constant s of RKS (smoothing), the training steps that a draw serves
(redraw_every), and eps, which is added to the denominator.
"""

from typing import Annotated, Literal

import torch
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor, nn

from lra.attention import Card, Shape
from lra.ops.kernel_attention import FastFood, Generator, Prf, Rks, Spectrum

RKS = "φ(Q) (φ(K)ᵀ V) / φ(Q) Σφ(K), φ = [[cos, sin]({angles}) / √{{samples}}, {{smoothing:g}}], x' = x / Dh^¼"
PRF = "φ(Q) (φ(K)ᵀ V) / φ(Q) Σφ(K), φ = exp({angles} − |x'|²), x' = x / Dh^¼"
CLOSED_FORM = "the closed-form kernel over many draws; the explicit L x L weights"
FASTFOOD = "rows N(0, I) over many draws; the explicit product of matrices"
Samples = Annotated[int, Field(ge=2)]


def spectral_card(formula: str, angles: str, oracle: str, time: str = "L D M, M features") -> Card:
    """Return the card of a class, given RKS or PRF."""
    paper = "Chowdhury et al. 2022, On Learning the Transformer Kernel"
    return Card(paper=paper, formula=formula.format(angles=angles), time=time, linear=True, oracle=oracle)


class GmmRks(Rks):
    """RKS with frequencies Sigma^T w +- mu, w ~ N(0, I): a learned Gaussian per head and its mirror image.

    E k(x, y) = 2 exp(-|Sigma d|^2 / 2) cos(mu . d) + s^2 with d = x' - y', in the released code's normalisation.
    """

    card = spectral_card(RKS, "x'(Σᵀw ± μ)", CLOSED_FORM)

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


class GmmPrf(Prf):
    """PRF with frequencies exp(sigma / 2) w + mu, w ~ N(0, I): one learned diagonal Gaussian per head.

    With t = x' + y', E k(x, y) = exp(mu . t + |exp(sigma / 2) t|^2 / 2 - |x'|^2 - |y'|^2), which is
    exp(-|x' - y'|^2 / 2) for mu = sigma = 0.
    """

    card = spectral_card(PRF, "x'(e^½σ w + μ)", CLOSED_FORM)

    def __init__(self, shape: Shape, *, samples: PositiveInt, redraw_every: PositiveInt, eps: PositiveFloat) -> None:
        spectrum = Gaussian(shape.heads, shape.head_dim, samples)
        super().__init__(shape, spectrum, redraw_every=redraw_every, eps=eps)


class FastfoodRks(Rks):
    """RKS with the frequencies V^T = (S H G P H B)^T / sqrt(N) of a learned FastFood matrix, shared by the heads.

    Args:
        init: of S, G and B, see `FastFood`.
    """

    card = spectral_card(RKS, "SHGPHB x' / √{size}", FASTFOOD, time="L D Dh")

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


class FastfoodPrf(Prf):
    """PRF with the frequencies of `FastfoodRks`; the released class fails in its constructor, and this follows its
    forward pass.

    Args:
        init: of S, G and B, see `FastFood`.
    """

    card = spectral_card(PRF, "SHGPHB x' / √{size}", FASTFOOD, time="L D Dh")

    def __init__(
        self, shape: Shape, *, init: Literal["classic", "released"], redraw_every: PositiveInt, eps: PositiveFloat
    ) -> None:
        super().__init__(shape, FastFood(shape.head_dim, init), redraw_every=redraw_every, eps=eps)


class GenerativeRks(Rks):
    """RKS with frequencies G(noise), noise ~ N(0, I), of a small network G, shared by the heads; |omega_i| < 1.

    Args:
        noise_width: input width of G in units of Dh.
        hidden_widths: hidden widths of G in units of Dh.
    """

    card = spectral_card(RKS, "x' G(noise)", "the explicit L x L weights; G layer by layer")

    def __init__(
        self,
        shape: Shape,
        *,
        samples: Samples,
        noise_width: PositiveFloat,
        hidden_widths: list[PositiveFloat],
        smoothing: NonNegativeFloat,
        redraw_every: PositiveInt,
        eps: PositiveFloat,
    ) -> None:
        spectrum = Generator(shape.head_dim, samples=samples, noise_width=noise_width, hidden_widths=hidden_widths)
        super().__init__(shape, spectrum, smoothing=smoothing, redraw_every=redraw_every, eps=eps)


class GenerativePrf(Prf):
    """PRF with the frequencies of `GenerativeRks`; see there for the arguments."""

    card = spectral_card(PRF, "x' G(noise)", "the explicit L x L weights; G layer by layer")

    def __init__(
        self,
        shape: Shape,
        *,
        samples: Samples,
        noise_width: PositiveFloat,
        hidden_widths: list[PositiveFloat],
        redraw_every: PositiveInt,
        eps: PositiveFloat,
    ) -> None:
        spectrum = Generator(shape.head_dim, samples=samples, noise_width=noise_width, hidden_widths=hidden_widths)
        super().__init__(shape, spectrum, redraw_every=redraw_every, eps=eps)


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
