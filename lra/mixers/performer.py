"""Performer: attention through M positive features.

FAVOR+ (`favor`): the rows w of W are drawn from N(0, I), orthogonal within blocks of Dh. The mean of phi(q) . phi(k)
over the draws is exp(q . k scale): an unbiased softmax attention. Factors common to all weights of a query cancel and
are left out. The released code adds 1e-4 to 1e-6 to every feature, which flattens the attention where norms are large;
the maxima here need no addition.

ReLU (`relu`): phi(x) = relu(x) + eps, the generalised attention without random projection that Google's Long Range
Arena code runs on text classification and matching. Its gradient is as sensitive to rounding as cosFormer's.

There is no dropout of weights.
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
    """Attention with M = `features` FAVOR+ or ReLU features."""

    info = MixerInfo(
        paper="Choromanski et al. 2021, Rethinking Attention with Performers",
        formula="φ(Q) (φ(K)ᵀ V) / φ(Q) Σφ(K), φ = exp(W x' − ½|x'|²), x' = x / √{root}",
        complexity="L D M, M features",
        linear_memory=True,
        reference="performer-pytorch; softmax attention over many draws",
        deviations=("no dropout of weights",),
    )
    commutes = True
    packs = True

    projection: Tensor  # [M, Dh]

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
        super().__init__(config, eps=1e-30)  # for rows without a real key; FAVOR+ has sums of at least 1 unless causal
        self.kernel = kernel
        self.relu_eps = relu_eps
        self.scale = scale_of(config, scale)
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
        log_q, log_k = q @ (w.T * root), log_features(k * root, w, key_mask)  # |q'|^2 cancels
        return exponentials(log_q, log_k, self.causal, packed)


def log_features(x: Tensor, w: Tensor, key_mask: Tensor | None) -> Tensor:
    """Return log(phi(x) sqrt(M)) = w x - |x|^2 / 2, -inf where padded: [B, H, L, Dh] -> [B, H, L, M]."""
    norm = x.square().sum(dim=-1, keepdim=True) * -0.5
    if key_mask is not None:
        norm = norm.masked_fill(~key_mask[:, None, :, None], -torch.inf)
    return torch.cat([x, norm], dim=-1) @ pad(w, (0, 1), value=1.0).T  # the norm as one more column of the product


def projection(noise: Tensor, features: int) -> Tensor:
    """Make Gaussian rows orthogonal within each block: [blocks, Dh, Dh] -> w [features, Dh].

    A row keeps its norm and, over the draws, its distribution: Q with a positive diagonal of R is uniform, and does
    not depend on the norms.
    """
    q, r = torch.linalg.qr(noise.mT)
    q = q * r.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)
    return (q.mT * noise.norm(dim=-1, keepdim=True)).flatten(0, 1)[:features]
