"""Performer: linear attention with positive features, which are random (FAVOR+) or ReLU.

FAVOR+ (`favor`): the rows w of W [M, Dh] are drawn from N(0, I) and are orthogonal within blocks of Dh rows. The mean
of phi(q) . phi(k) over the draws is exp(q . k scale), the weight of softmax attention before normalisation. Factors
common to all weights of a query cancel in the output and are left out. The released code adds 1e-4 to 1e-6 to every
feature, which makes the weights more uniform where norms are large. Here exponents are shifted by their maxima
(`exponentials`), so nothing need be added.

ReLU (`relu`): phi(x) = relu(x) + eps, the generalised attention without random projection that Google's Long Range
Arena code runs on text classification and matching. Its gradient is as sensitive to rounding as that of `Cosformer`.

There is no dropout on the weights.
"""

from dataclasses import replace
from typing import Literal

import numpy as np
import torch
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor
from torch.nn.functional import pad, relu

from lra.mixers import MixerConfig, MixerInfo
from lra.mixers._kernel import EVAL_DRAW, KernelAttention, exponentials
from lra.mixers._softmax import Scale, info_of, scale_of
from lra.ops.device import to_device
from lra.ops.packing import Packed


class Performer(KernelAttention):
    """Linear attention with M = `features` random features (`favor`), or with the Dh features of ReLU (`relu`)."""

    info = MixerInfo(
        paper="Choromanski et al. 2021, Rethinking Attention with Performers",
        formula="φ(Q) (φ(K)ᵀ V) / φ(Q) Σφ(K), φ = exp(W x' − ½|x'|²), x' = x / √{root}",
        complexity="L D M, M features",
        linear_memory=True,
        reference="performer-pytorch; softmax attention over many draws",
        deviations=("no dropout on the weights",),
    )
    commutes = True
    packs = True

    projection: Tensor  # W [M, Dh]

    def __init__(
        self,
        config: MixerConfig,
        *,
        kernel: Literal["favor", "relu"],
        features: PositiveInt,
        redraw_every: PositiveInt,
        scale: Scale,
        relu_eps: PositiveFloat,
    ) -> None:
        # eps prevents 0 / 0 for a query without a real key. Otherwise the denominator is positive, and at least 1 in
        # FAVOR+ without causality.
        super().__init__(config, eps=1e-30)
        self.kernel = kernel
        self.relu_eps = relu_eps
        self.scale = scale_of(config, scale)
        # [blocks, Dh, Dh]: W has blocks of Dh orthogonal rows, as many as M features need.
        self.noise_shape = (-(-features // config.head_dim), config.head_dim, config.head_dim)
        if kernel == "favor":
            self.redraw_every = redraw_every
            self.info = info_of(self, scale, "nothing is added to the features (released: 1e-4 to 1e-6)", EVAL_DRAW)
            self.register_buffer("projection", projection(torch.randn(self.noise_shape), features))
        else:
            formula = f"φ(Q) (φ(K)ᵀ V) / φ(Q) Σφ(K), φ = relu(x) + {relu_eps:g}"
            self.info = replace(self.info, formula=formula, complexity="L D Dh", reference="the explicit L x L weights")

    def draw(self, rng: np.random.Generator) -> None:
        noise = torch.from_numpy(rng.standard_normal(self.noise_shape))
        rows = projection(noise, len(self.projection))
        self.projection.copy_(to_device(rows, self.projection.device))

    def features(
        self, q: Tensor, k: Tensor, key_mask: Tensor | None, packed: Packed | None = None
    ) -> tuple[Tensor, ...]:
        if self.kernel == "relu":
            return relu(q) + self.relu_eps, relu(k) + self.relu_eps
        w, root = self.projection.to(q.dtype), self.scale**0.5
        log_q, log_k = q @ (w.T * root), log_features(k * root, w, key_mask)  # no |q'|^2: it cancels
        return exponentials(log_q, log_k, self.causal, packed)


def log_features(x: Tensor, w: Tensor, key_mask: Tensor | None) -> Tensor:
    """Return log(phi(x) sqrt(M)) = w . x - |x|^2 / 2 of x [B, H, L, Dh], -inf at padded positions: [B, H, L, M]."""
    norm = x.square().sum(dim=-1, keepdim=True) * -0.5
    if key_mask is not None:
        norm = norm.masked_fill(~key_mask[:, None, :, None], -torch.inf)
    # One product for both terms: a column of ones in w adds the norm.
    return torch.cat([x, norm], dim=-1) @ pad(w, (0, 1), value=1.0).T


def projection(noise: Tensor, features: int) -> Tensor:
    """Return rows w [features, Dh] that are orthogonal within each block, from Gaussian noise [blocks, Dh, Dh].

    A row of w has the norm of the corresponding row of noise, and its distribution remains N(0, I): in a QR
    decomposition with a positive diagonal of R, Q is uniformly distributed and independent of the norms.
    """
    q, r = torch.linalg.qr(noise.mT)  # [blocks, Dh, Dh]; the columns of q are orthonormal
    q = q * r.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)
    return (q.mT * noise.norm(dim=-1, keepdim=True)).flatten(0, 1)[:features]
