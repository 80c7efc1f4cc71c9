"""Linear attention with learned random-feature kernels: GMM, FastFood and Generative, each as RKS and as PRF.

RKS stands for random kitchen sinks, PRF for positive random features. With x' = x Dh^(-1/4) and frequencies Omega
[Dh, m], a learned function of random noise, the weight of key k for query q is the kernel K(q, k) = phi(q) . phi(k).
E is the mean over the noise:

RKS  phi(x) = [cos(x' Omega), sin(x' Omega)] / sqrt(m), and a constant s:  E K = E cos(omega . (q' - k')) + s^2
PRF  phi(x) = exp(x' Omega - |x'|^2) / sqrt(m):  E K = exp(-|q' - k'|^2 / 2) for omega ~ N(0, I)

GMM-RKS has 2 m frequencies, but its features are also divided by sqrt(m), so its E cos counts twice. The memory is
O(L H M) for M features: M is 4 m + 1 (GMM-RKS), 2 m + 1 (other RKS) or m (PRF). FastFood has m = Dh, or the next power
of two. An RKS kernel may be negative; s keeps most sums of weights positive.

Common options: `samples` is m, `smoothing` is s, `redraw_every` is the number of training steps between two draws of
noise, and `eps` is added to the denominator.
"""

import math
from abc import abstractmethod
from collections import OrderedDict
from dataclasses import replace
from itertools import pairwise
from typing import Annotated, Literal

import numpy as np
import torch
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt
from scipy.linalg import hadamard
from torch import Tensor, nn

from lra.mixers import MixerConfig, MixerInfo
from lra.mixers._kernel import EVAL_DRAW, KernelAttention, exponentials
from lra.ops.device import to_device

EVERY_DRAW = f"{EVAL_DRAW}, and a draw may serve several training steps (released: every forward pass draws)"
LOG_SHIFTS = "exponents are shifted by maxima, then {eps:g} is added to the denominator (released: 1e-6, no shifts)"
RKS = "φ(Q) (φ(K)ᵀ V) / φ(Q) Σφ(K), φ = [[cos, sin]({angles}) / √{{samples}}, {{smoothing:g}}], x' = x / Dh^¼"
PRF = "φ(Q) (φ(K)ᵀ V) / φ(Q) Σφ(K), φ = exp({angles} − |x'|²), x' = x / Dh^¼"
CLOSED_FORM = "the closed-form kernel over many draws; the explicit L x L weights"
FASTFOOD = "rows N(0, I) over many draws; the explicit product of matrices"
Samples = Annotated[int, Field(ge=2)]


def spectral_info(formula: str, angles: str, reference: str, complexity: str = "L D M, M features") -> MixerInfo:
    """Return the `info` of a class; `formula` is RKS or PRF, and `angles` is the text for x' Omega in it."""
    paper = "Chowdhury et al. 2022, On Learning the Transformer Kernel"
    return MixerInfo(
        paper=paper,
        formula=formula.format(angles=angles),
        complexity=complexity,
        linear_memory=True,
        reference=reference,
    )


class Spectrum(nn.Module):
    """Base class of learned frequency distributions: parametrised functions that map random noise to frequencies.

    Attributes:
        samples: m, the number of frequencies (in `Mixture`, half their number).
        deviations: differences from the released code, for `info`.
    """

    deviations: tuple[str, ...] = ()

    noise: Tensor

    def __init__(self, noise: Tensor, samples: int) -> None:
        super().__init__()
        self.samples = samples
        self.register_buffer("noise", noise)

    def draw(self, rng: np.random.Generator) -> None:
        """Set `noise` to a new tensor, because the backward pass of an earlier call may still read the old one."""
        self.noise = to_device(torch.from_numpy(self.sample(rng)).to(self.noise.dtype), self.noise.device)

    def sample(self, rng: np.random.Generator) -> np.ndarray:
        """Return new noise of the shape of `noise`."""
        return rng.standard_normal(self.noise.shape)

    @abstractmethod
    def frequencies(self) -> Tensor:
        """Return Omega [Dh, m], or [H, Dh, m] with frequencies per head; `Mixture` has 2 m instead of m."""


class Spectral(KernelAttention, abstract=True):
    """Base class of linear attentions whose feature map has random frequencies.

    Args:
        redraw_every: number of training steps between two draws.
        settings: further values, besides `samples` and `size`, that replace names in braces in `info.formula`.
    """

    commutes = True

    def __init__(
        self, config: MixerConfig, spectrum: Spectrum, *, redraw_every: int, eps: float, **settings: float
    ) -> None:
        super().__init__(config, eps=eps)
        formula = self.info.formula.format(samples=spectrum.samples, size=spectrum.samples, **settings)
        self.info = replace(self.info, formula=formula, deviations=(EVERY_DRAW, *spectrum.deviations))
        self.spectrum = spectrum
        self.redraw_every = redraw_every

    def draw(self, rng: np.random.Generator) -> None:
        self.spectrum.draw(rng)


class Rks(Spectral, abstract=True):
    """Linear attention with random kitchen sinks: features that are cosines, sines and a constant."""

    def __init__(
        self, config: MixerConfig, spectrum: Spectrum, *, smoothing: float, redraw_every: int, eps: float
    ) -> None:
        super().__init__(config, spectrum, redraw_every=redraw_every, eps=eps, smoothing=smoothing)
        self.smoothing = smoothing

    def features(self, q: Tensor, k: Tensor, key_mask: Tensor | None) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        omega = self.spectrum.frequencies()
        q, k = (rks(scaled(x), omega, self.spectrum.samples, self.smoothing) for x in (q, k))
        return q, k


class Prf(Spectral, abstract=True):
    """Linear attention with positive random features.

    The features are rescaled by factors that cancel in the output and prevent underflow for large x.
    """

    def __init__(self, config: MixerConfig, spectrum: Spectrum, *, redraw_every: int, eps: float) -> None:
        super().__init__(config, spectrum, redraw_every=redraw_every, eps=eps)
        self.info = replace(self.info, deviations=(*self.info.deviations, LOG_SHIFTS.format(eps=eps)))

    def features(self, q: Tensor, k: Tensor, key_mask: Tensor | None) -> tuple[Tensor, ...]:  # type: ignore[override]
        omega = self.spectrum.frequencies()
        log_q, log_k = log_prf(scaled(q), omega), log_prf(scaled(k), omega)
        if key_mask is not None:
            log_k = log_k.masked_fill(~key_mask[:, None, :, None], -torch.inf)
        return exponentials(log_q, log_k, self.causal)


class GmmRks(Rks):
    """RKS with the 2 m frequencies Sigma^T w + mu and Sigma^T w - mu, w ~ N(0, I).

    They follow a learned Gaussian per head and its mirror image.

    E K(q, k) = 2 exp(-|Sigma d|^2 / 2) cos(mu . d) + s^2 with d = q' - k'. The factor 2 is there because the features
    are divided by sqrt(m), as in the released code, not by sqrt(2 m).
    """

    info = spectral_info(RKS, "x'(Σᵀw ± μ)", CLOSED_FORM)

    def __init__(
        self,
        config: MixerConfig,
        *,
        samples: PositiveInt,
        smoothing: NonNegativeFloat,
        redraw_every: PositiveInt,
        eps: PositiveFloat,
    ) -> None:
        spectrum = Mixture(config.heads, config.head_dim, samples)
        super().__init__(config, spectrum, smoothing=smoothing, redraw_every=redraw_every, eps=eps)


class GmmPrf(Prf):
    """PRF with frequencies exp(sigma / 2) w + mu, w ~ N(0, I): one learned diagonal Gaussian per head.

    E K(q, k) = exp(mu . t + |exp(sigma / 2) t|^2 / 2 - |q'|^2 - |k'|^2) with t = q' + k'.
    """

    info = spectral_info(PRF, "x'(e^½σ w + μ)", CLOSED_FORM)

    def __init__(
        self, config: MixerConfig, *, samples: PositiveInt, redraw_every: PositiveInt, eps: PositiveFloat
    ) -> None:
        spectrum = Gaussian(config.heads, config.head_dim, samples)
        super().__init__(config, spectrum, redraw_every=redraw_every, eps=eps)


class FastfoodRks(Rks):
    """RKS with the frequencies V^T = (S H G P H B)^T / sqrt(N) of a learned FastFood matrix, shared by the heads.

    Args:
        init: initial values of S, G and B; see `FastFood`.
    """

    info = spectral_info(RKS, "SHGPHB x' / √{size}", FASTFOOD, complexity="L D Dh")

    def __init__(
        self,
        config: MixerConfig,
        *,
        init: Literal["classic", "released"],
        smoothing: NonNegativeFloat,
        redraw_every: PositiveInt,
        eps: PositiveFloat,
    ) -> None:
        spectrum = FastFood(config.head_dim, init)
        super().__init__(config, spectrum, smoothing=smoothing, redraw_every=redraw_every, eps=eps)


class FastfoodPrf(Prf):
    """PRF with the frequencies of `FastfoodRks`; the released code has such a class, but its constructor fails."""

    info = spectral_info(PRF, "SHGPHB x' / √{size}", FASTFOOD, complexity="L D Dh")

    def __init__(
        self,
        config: MixerConfig,
        *,
        init: Literal["classic", "released"],
        redraw_every: PositiveInt,
        eps: PositiveFloat,
    ) -> None:
        super().__init__(config, FastFood(config.head_dim, init), redraw_every=redraw_every, eps=eps)


class GenerativeRks(Rks):
    """RKS with frequencies omega = G(noise), noise ~ N(0, I), |omega_i| < 1; the heads share the small network G.

    Args:
        noise_width: input width of G, as a multiple of Dh.
        hidden_widths: widths of the hidden layers of G, as multiples of Dh.
    """

    info = spectral_info(RKS, "x' G(noise)", "the explicit L x L weights; G layer by layer")

    def __init__(
        self,
        config: MixerConfig,
        *,
        samples: Samples,
        noise_width: PositiveFloat,
        hidden_widths: list[PositiveFloat],
        smoothing: NonNegativeFloat,
        redraw_every: PositiveInt,
        eps: PositiveFloat,
    ) -> None:
        spectrum = Generator(config.head_dim, samples=samples, noise_width=noise_width, hidden_widths=hidden_widths)
        super().__init__(config, spectrum, smoothing=smoothing, redraw_every=redraw_every, eps=eps)


class GenerativePrf(Prf):
    """PRF with the frequencies of `GenerativeRks` and its arguments except `smoothing`."""

    info = spectral_info(PRF, "x' G(noise)", "the explicit L x L weights; G layer by layer")

    def __init__(
        self,
        config: MixerConfig,
        *,
        samples: Samples,
        noise_width: PositiveFloat,
        hidden_widths: list[PositiveFloat],
        redraw_every: PositiveInt,
        eps: PositiveFloat,
    ) -> None:
        spectrum = Generator(config.head_dim, samples=samples, noise_width=noise_width, hidden_widths=hidden_widths)
        super().__init__(config, spectrum, redraw_every=redraw_every, eps=eps)


class Mixture(Spectrum):
    """Frequencies Sigma^T w + mu and Sigma^T w - mu, w ~ N(0, I).

    Initialised as in the released code: Sigma [H, Dh, Dh] by Xavier's uniform rule for the whole tensor, whose fan-in
    is Dh^2, and mu [H, Dh] uniform within +-1 / Dh. These values are small, so the kernel is almost constant at first.
    """

    def __init__(self, heads: int, head_dim: int, samples: int) -> None:
        super().__init__(torch.randn(head_dim, samples), samples)
        self.sigma = nn.Parameter(nn.init.xavier_uniform_(torch.empty(heads, head_dim, head_dim)))
        self.mu = nn.Parameter(nn.init.uniform_(torch.empty(heads, head_dim), -1 / head_dim, 1 / head_dim))

    def frequencies(self) -> Tensor:
        """Return Omega [H, Dh, 2 m]."""
        centred, mu = self.sigma.transpose(-2, -1) @ self.noise, self.mu.unsqueeze(-1)  # [H, Dh, m] and [H, Dh, 1]
        return torch.cat([centred + mu, centred - mu], dim=-1)


class Gaussian(Spectrum):
    """Frequencies exp(sigma / 2) w + mu, w ~ N(0, I).

    Initialised as in the released code: sigma [H, Dh] by Xavier's uniform rule, mu [H, Dh] uniform within
    +-1 / sqrt(Dh).
    """

    def __init__(self, heads: int, head_dim: int, samples: int) -> None:
        super().__init__(torch.randn(head_dim, samples), samples)
        bound = head_dim**-0.5
        self.sigma = nn.Parameter(nn.init.xavier_uniform_(torch.empty(heads, head_dim)))
        self.mu = nn.Parameter(nn.init.uniform_(torch.empty(heads, head_dim), -bound, bound))

    def frequencies(self) -> Tensor:
        """Return Omega [H, Dh, m]."""
        return (self.sigma / 2).exp().unsqueeze(-1) * self.noise + self.mu.unsqueeze(-1)


class FastFood(Spectrum):
    """Frequencies V^T, where V = S H G P H B / sqrt(N) approximates a Gaussian matrix.

    H is the Hadamard matrix [N, N], with N = Dh or the next power of two. If N > Dh, x is padded with zeros, so the
    last columns of V are left out. S, G and B are learned diagonal matrices, and P is a random permutation. V is
    computed explicitly, because on a CPU this is faster than a fast Hadamard transform of x.

    Args:
        init: `classic` starts S, G, B as Le et al. draw them, so that each row of V is N(0, I) and the kernel is
            Gaussian at first; `released` starts them from N(0, 1 / N), so that V x is close to 0.

    Source:
        Le et al. 2013, Fastfood.
    """

    hadamard: Tensor

    def __init__(self, head_dim: int, init: Literal["classic", "released"]) -> None:
        size = 1 << (head_dim - 1).bit_length()
        super().__init__(torch.randperm(size), size)
        self.head_dim, self.size = head_dim, size
        if size != head_dim:
            self.deviations = (f"Dh = {head_dim} is no power of two, so V has size {size} and is divided by √{size}",)
        matrix = torch.tensor(hadamard(size), dtype=torch.get_default_dtype())
        self.register_buffer("hadamard", matrix, persistent=False)  # not saved: a function of the size
        s, g, b = torch.randn(3, size) * size**-0.5
        if init == "classic":
            g, b = torch.randn(size), torch.randint(2, (size,)) * 2.0 - 1.0
            s = torch.randn(size, size).norm(dim=1) / g.norm()
        self.s, self.g, self.b = nn.Parameter(s), nn.Parameter(g), nn.Parameter(b)

    def sample(self, rng: np.random.Generator) -> np.ndarray:
        return rng.permutation(self.size)

    def frequencies(self) -> Tensor:
        """Return the first Dh columns of V, transposed: [Dh, N]."""
        inner = self.g[:, None] * (self.hadamard * self.b)[self.noise]  # G P H B
        v = self.s[:, None] * (self.hadamard @ inner) * self.size**-0.5
        return v[:, : self.head_dim].T


class Generator(Spectrum):
    """Frequencies omega = G(noise) [m, Dh], where G is a network and the noise is [m, input width of G].

    A hidden layer of G is Linear, BatchNorm and LeakyReLU; the last layer is Linear and tanh. Widths are given as
    multiples of Dh. BatchNorm normalises over the m noise samples, which do not depend on examples. It has no running
    averages, so it is the same in training and evaluation.
    """

    deviations = ("in evaluation, too, the generator's batch norm is over the noise samples, without running averages",)

    def __init__(self, head_dim: int, *, samples: int, noise_width: float, hidden_widths: list[float]) -> None:
        widths = [max(1, int(width * head_dim)) for width in (noise_width, *hidden_widths)]
        super().__init__(torch.randn(samples, widths[0]), samples)
        hidden = []
        for inputs, outputs in pairwise(widths):
            norm = nn.BatchNorm1d(outputs, track_running_stats=False)
            parts = OrderedDict(linear=linear(inputs, outputs), norm=norm, activation=nn.LeakyReLU())
            hidden.append(nn.Sequential(parts))
        self.layers = nn.Sequential(*hidden, linear(widths[-1], head_dim), nn.Tanh())

    def frequencies(self) -> Tensor:
        """Return Omega [Dh, m], each value between -1 and 1."""
        return self.layers(self.noise).T


def linear(inputs: int, outputs: int) -> nn.Linear:
    layer = nn.Linear(inputs, outputs)
    nn.init.xavier_uniform_(layer.weight)
    return layer


def scaled(x: Tensor) -> Tensor:
    """Return x' = x Dh^(-1/4), so that q' . k' = q . k / sqrt(Dh)."""
    return x * x.shape[-1] ** -0.25


def rks(x: Tensor, omega: Tensor, samples: int, smoothing: float) -> Tensor:
    """Return [cos, sin](x Omega) / sqrt(samples) and `smoothing`, joined to [..., 2 n + 1]; Omega is [..., Dh, n]."""
    return _Waves.apply(x @ omega, samples**-0.5, smoothing)


class _Waves(torch.autograd.Function):
    """Map angles [..., n] to [cos * factor, sin * factor, constant] [..., 2 n + 1]; save only this result."""

    @staticmethod
    def forward(ctx, angles: Tensor, factor: float, constant: float) -> Tensor:
        last = torch.full_like(angles[..., :1], constant)
        waves = torch.cat([angles.cos() * factor, angles.sin() * factor, last], dim=-1)
        ctx.save_for_backward(waves)
        return waves

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None, None]:
        (waves,) = ctx.saved_tensors
        samples = waves.shape[-1] // 2
        # cos and sin contain the factor already.
        cos, sin = waves[..., :samples], waves[..., samples:-1]
        # The derivative of cos is -sin, that of sin is cos, and the constant has none.
        return torch.addcmul(grad[..., samples:-1] * cos, grad[..., :samples], sin, value=-1), None, None


def log_prf(x: Tensor, omega: Tensor) -> Tensor:
    """Return log phi(x) = x Omega - |x|^2 - log(m) / 2: [..., Dh] -> [..., m]."""
    return x @ omega - (x.square().sum(dim=-1, keepdim=True) + 0.5 * math.log(omega.shape[-1]))
