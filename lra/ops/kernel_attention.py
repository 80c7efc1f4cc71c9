"""Linear attention with feature maps, fixed or random: phi(q) . phi(k) instead of exp(q . k).

Katharopoulos et al. 2020, eq. 5-6: y_i = phi(q_i) S / (phi(q_i) . z), S = sum_j phi(k_j) v_j, z = sum_j phi(k_j).
Legend: M features, N width of the values.

Random features (Chowdhury et al. 2022, On Learning the Transformer Kernel): with x' = x Dh^-1/4 and frequencies
Omega [Dh, m] whose distribution is learned, the weight of a key is k(q', k'):

RKS  phi(x) = [cos(x' Omega), sin(x' Omega)] / sqrt(m), and a constant s:  E k = E cos(omega . (q' - k')) + s^2
PRF  phi(x) = exp(x' Omega - |x'|^2) / sqrt(m):  E k = exp(-|q' - k'|^2 / 2) for omega ~ N(0, I)

Time O(L D M) and memory O(L H M). An RKS kernel may be negative; s keeps most sums of weights positive.
"""

import math
from abc import abstractmethod
from collections import OrderedDict
from dataclasses import replace
from itertools import pairwise
from typing import Literal

import numpy as np
import torch
from pydantic import NonNegativeFloat
from torch import Tensor, nn
from torch.nn.functional import pad

from lra.ops.async_copy import to_device
from lra.ops.mixer import Attention, Shape, without_padding
from lra.ops.packing import Packed
from lra.ops.precision import at_least_float32, full_precision
from lra.ops.scan import causal_product

EVAL_DRAW = "evaluation keeps the last draw of training"
EVERY_DRAW = f"{EVAL_DRAW}, and one may serve several steps (released: every forward pass draws)"
LOG_SHIFTS = "{eps:g} is added to the denominator, after shifts in the logarithm (released: 1e-6, without shifts)"


class KernelAttention(Attention, abstract=True):
    """Base class of attentions with a feature map; `eps` is added to the denominator.

    Features and sums are in fp32 or higher. Features of padded keys are set to zero.
    """

    can_be_causal = True
    reads_few = True

    def __init__(self, shape: Shape, *, eps: NonNegativeFloat) -> None:
        super().__init__(shape)
        self.eps = eps

    @abstractmethod
    def features(self, q: Tensor, k: Tensor, key_mask: Tensor | None) -> tuple[Tensor, ...]:
        """Map q, k [B, H, L, Dh] to phi(q), phi(k) [B, H, L, M]; maxima over keys must exclude padded ones.

        A causal form may append the log decay of `causal_product` [B, H, L].
        """

    def attend(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
        with full_precision(q.device):
            q, k, v = map(at_least_float32, (q, k, v))
            phi_q, phi_k, *log_decay = self.features(q, k, key_mask)
            phi_k = without_padding(phi_k, key_mask)
            v = pad(v, (0, 1), value=1.0)  # a column of ones: its weighted sum is the denominator
            weighted = causal_product if self.causal else product
            total, mass = weighted(phi_q, phi_k, v, *log_decay).split([v.shape[-1] - 1, 1], dim=-1)
            return total / self.denominator(mass)

    def attend_packed(self, q: Tensor, k: Tensor, v: Tensor, packed: Packed) -> Tensor:
        with full_precision(q.device):
            q, k, v = (packed.by_chunk(at_least_float32(x)) for x in (q, k, v))
            phi_q, phi_k = self.packed_features(q, k, packed)
            phi_k = without_padding(phi_k, packed.chunk_mask)
            v = pad(v, (0, 1), value=1.0)
            state = packed.sum_chunks(v.mT @ phi_k)
            state = state if q.shape[2] == 1 else packed.of_chunks(state, state.dtype)
            total, mass = (phi_q @ state.mT).split([v.shape[-1] - 1, 1], dim=-1)
            return packed.by_row(total / self.denominator(mass))

    def packed_features(self, q: Tensor, k: Tensor, packed: Packed) -> tuple[Tensor, Tensor]:
        """Compute `features` of chunks [C, H, CHUNK, Dh], for classes with `packs`; q may be [B, H, 1, Dh]."""
        return self.features(q, k, packed.chunk_mask)

    def denominator(self, mass: Tensor) -> Tensor:
        """phi(q_i) . z, kept away from zero."""
        return mass + self.eps


def exponentials(log_q: Tensor, log_k: Tensor, causal: bool, packed: Packed | None = None) -> tuple[Tensor, ...]:
    """Return `features` for phi = exp(log_q), exp(log_k) [B, H, L, M], with log_k = -inf at padded keys.

    Exponents are shifted by maxima, without gradient, since shifts cancel between the weighted sum and its denominator.
    Two-sided: each feature of the keys has its own maximum, over all keys, which is added to the queries; the
    denominator is at least 1. Causal: the features share one, over the keys so far; where it grows, earlier sums decay.
    """
    if causal:
        top = log_k.detach().amax(dim=-1, keepdim=True).cummax(dim=-2).values
        before = pad(top, (0, 0, 1, -1), value=-torch.inf)
        log_decay = [(before - top).masked_fill(before == -torch.inf, 0).squeeze(-1)]
    elif packed is not None:
        top = packed.max_over_documents(log_k)
        log_decay = []
    else:
        top = log_k.detach().amax(dim=-2, keepdim=True)
        log_decay = []
    top = top.masked_fill(top == -torch.inf, 0)  # no real key, or none so far
    by_chunk = top if packed is None else top[packed.owner]
    if not causal:
        log_q = log_q + (top if log_q.shape[2] == 1 else by_chunk)
    return (log_q - log_q.detach().amax(dim=-1, keepdim=True)).exp(), (log_k - by_chunk).exp(), *log_decay


def product(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """sum_j (q_i . k_j) v_j, in time linear in L; q, k [..., L, M], v [..., L, N] -> [..., L, N]."""
    state = v.transpose(-2, -1) @ k  # [..., N, M]; in this order the gradients of q and k are laid out as they are
    return q @ state.transpose(-2, -1)


class Spectrum(nn.Module):
    """Base class of learned distributions of frequencies: a parametrised function of drawn noise.

    `samples` is the m of 1 / sqrt(m); `deviations` lists the differences from the released code for the card.
    """

    deviations: tuple[str, ...] = ()

    def __init__(self, noise: Tensor, samples: int) -> None:
        super().__init__()
        self.samples = samples
        self.register_buffer("noise", noise)

    def draw(self, rng: np.random.Generator) -> None:
        """Draw noise into a new tensor; the backward pass of an earlier call still reads the old one."""
        self.noise = to_device(torch.from_numpy(self.sample(rng)).to(self.noise.dtype), self.noise.device)

    def sample(self, rng: np.random.Generator) -> np.ndarray:
        """Return new noise."""
        return rng.standard_normal(self.noise.shape)

    @abstractmethod
    def frequencies(self) -> Tensor:
        """Return Omega [Dh, m], or [H, Dh, m] with frequencies per head."""


class Spectral(KernelAttention, abstract=True):
    """Base class of kernels with a feature map of random frequencies.

    Args:
        redraw_every: training steps per draw.
        settings: further names in the card's formula.
    """

    commutes = True

    def __init__(self, shape: Shape, spectrum: Spectrum, *, redraw_every: int, eps: float, **settings: float) -> None:
        super().__init__(shape, eps=eps)
        formula = self.card.formula.format(samples=spectrum.samples, size=spectrum.samples, **settings)
        self.card = replace(self.card, formula=formula, deviations=(EVERY_DRAW, *spectrum.deviations))
        self.spectrum = spectrum
        self.redraw_every = redraw_every

    def draw(self, rng: np.random.Generator) -> None:
        self.spectrum.draw(rng)


class Rks(Spectral, abstract=True):
    """Random kitchen sinks."""

    def __init__(self, shape: Shape, spectrum: Spectrum, *, smoothing: float, redraw_every: int, eps: float) -> None:
        super().__init__(shape, spectrum, redraw_every=redraw_every, eps=eps, smoothing=smoothing)
        self.smoothing = smoothing

    def features(self, q: Tensor, k: Tensor, key_mask: Tensor | None) -> tuple[Tensor, Tensor]:
        omega = self.spectrum.frequencies()
        q, k = (rks(scaled(x), omega, self.spectrum.samples, self.smoothing) for x in (q, k))
        return q, k


class Prf(Spectral, abstract=True):
    """Positive random features, rescaled by factors that cancel in the output and prevent underflow for large x."""

    def __init__(self, shape: Shape, spectrum: Spectrum, *, redraw_every: int, eps: float) -> None:
        super().__init__(shape, spectrum, redraw_every=redraw_every, eps=eps)
        self.card = replace(self.card, deviations=(*self.card.deviations, LOG_SHIFTS.format(eps=eps)))

    def features(self, q: Tensor, k: Tensor, key_mask: Tensor | None) -> tuple[Tensor, ...]:
        omega = self.spectrum.frequencies()
        log_q, log_k = log_prf(scaled(q), omega), log_prf(scaled(k), omega)
        if key_mask is not None:
            log_k = log_k.masked_fill(~key_mask[:, None, :, None], -torch.inf)
        return exponentials(log_q, log_k, self.causal)


def scaled(x: Tensor) -> Tensor:
    """x' = x Dh^-1/4, half of the usual scale of q . k on either side."""
    return x * x.shape[-1] ** -0.25


def rks(x: Tensor, omega: Tensor, samples: int, smoothing: float) -> Tensor:
    """[cos, sin](x Omega) / sqrt(samples), and the constant: [..., Dh] -> [..., 2 m + 1]."""
    return _Waves.apply(x @ omega, samples**-0.5, smoothing)


class _Waves(torch.autograd.Function):
    """angles [..., m] -> [cos * factor, sin * factor, constant] [..., 2 m + 1]; saves its output alone."""

    @staticmethod
    def forward(ctx, angles: Tensor, factor: float, constant: float) -> Tensor:
        samples = angles.shape[-1]
        waves = angles.new_full((*angles.shape[:-1], 2 * samples + 1), constant)
        waves[..., :samples] = angles.cos()
        waves[..., samples:-1] = angles.sin()
        waves[..., :-1] *= factor
        ctx.save_for_backward(waves)
        return waves

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None, None]:
        (waves,) = ctx.saved_tensors
        samples = waves.shape[-1] // 2
        cos, sin = waves[..., :samples], waves[..., samples:-1]
        return torch.addcmul(grad[..., samples:-1] * cos, grad[..., :samples], sin, value=-1), None, None


def log_prf(x: Tensor, omega: Tensor) -> Tensor:
    """x Omega - |x|^2 - log(m) / 2: [..., Dh] -> [..., m]."""
    return x @ omega - (x.square().sum(dim=-1, keepdim=True) + 0.5 * math.log(omega.shape[-1]))


class FastFood(Spectrum):
    """V = S H G P H B / sqrt(N), a structured approximation of an N x N Gaussian matrix.

    H is the Hadamard matrix of N = Dh, or the next power of two (x is zero-padded, so columns of V are left out); S, G,
    B are learned diagonals, P a random permutation. V is formed once and multiplied with x: at Dh = 64 and L = 4,001 on
    a CPU 9 times as fast as log N butterflies on x.

    Args:
        init: `classic` starts S, G, B as Le et al. draw them, so that each row of V is N(0, I) and the kernel Gaussian;
            `released` starts them as N(0, 1 / N), so that V x is close to 0.

    Source:
        Le et al. 2013, Fastfood.
    """

    def __init__(self, head_dim: int, init: Literal["classic", "released"]) -> None:
        size = 1 << (head_dim - 1).bit_length()
        super().__init__(torch.randperm(size), size)
        self.head_dim, self.size = head_dim, size
        if size != head_dim:
            self.deviations = (f"Dh = {head_dim} is no power of two, so V is of {size} and is divided by √{size}",)
        self.register_buffer("hadamard", hadamard(size), persistent=False)  # follows from the size alone
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


def hadamard(size: int) -> Tensor:
    """Sylvester's matrix of +-1 with H H^T = size I; `size` is a power of two."""
    h = torch.ones(1, 1)
    while len(h) < size:
        h = torch.cat([torch.cat([h, h], dim=1), torch.cat([h, -h], dim=1)])
    return h


class Generator(Spectrum):
    """omega = G(noise): noise [m, w] -> [m, Dh], hidden layers Linear, BatchNorm, LeakyReLU, then Linear, tanh.

    Widths are in units of Dh. The normalisation is over the m noise samples, which do not depend on examples, and the
    same in training and evaluation: there are no running averages.
    """

    deviations = ("the generator's normalisation keeps no running averages, in evaluation either",)

    def __init__(self, head_dim: int, *, samples: int, noise_width: float, hidden_widths: list[float]) -> None:
        widths = [max(1, int(width * head_dim)) for width in (noise_width, *hidden_widths)]
        super().__init__(torch.randn(samples, widths[0]), samples)
        self.widths = [*widths, head_dim]
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
