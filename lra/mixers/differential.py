"""Differential attention: the difference of two softmax attentions, with dropout on the weights of each (eq. 1-3).

Each softmax reads one half of the columns of a head's queries and keys. The second is multiplied by
lambda = exp(u1 . w1) - exp(u2 . w2) + lambda_0 with learned vectors u and w, where
lambda_0 = 0.8 - 0.6 exp(-0.3 layer) and layers are counted from 0.
"""

import math

import torch
from pydantic import PositiveFloat
from torch import Tensor, nn
from torch.nn.functional import rms_norm

from lra.mixers import Attention, MixerConfig, MixerInfo
from lra.mixers._recurrent import NORM
from lra.mixers._softmax import allowed, weigh
from lra.ops.device import at_least_float32


class Differential(Attention):
    """Difference of two softmax attentions."""

    info = MixerInfo(
        paper="Ye et al. 2025, Differential Transformer",
        formula="(1 − λ₀) norm((softmax(Q₁ K₁ᵀ / √width) − λ softmax(Q₂ K₂ᵀ / √width)) V), halves of a head",
        complexity="L² D",
        linear_memory=False,
        reference="two explicit softmaxes; transformers' DiffLlamaAttention",
        deviations=("no rotary positions", NORM),
    )
    can_be_causal = True
    commutes = True
    few_outputs = True

    def __init__(self, config: MixerConfig, *, norm_eps: PositiveFloat) -> None:
        super().__init__(config)
        self.norm_eps = norm_eps
        self.start = 0.8 - 0.6 * math.exp(-0.3 * config.layer)  # lambda_0
        self.by_query = nn.Parameter(0.1 * torch.randn(config.head_dim))  # u1 and u2, concatenated
        self.by_key = nn.Parameter(0.1 * torch.randn(config.head_dim))  # w1 and w2, concatenated

    def attend(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
        mask = allowed(q, k, key_mask, self.causal)
        first, second = (  # if Dh is odd, the second half has one column less
            weigh(half_q, half_k, v, mask, half_q.shape[-1] ** -0.5, self.dropout)
            for half_q, half_k in zip(q.tensor_split(2, dim=-1), k.tensor_split(2, dim=-1), strict=True)
        )
        y = at_least_float32(first - self.second_weight() * second)  # the norm sums squares, which bf16 would round
        return ((1 - self.start) * rms_norm(y, y.shape[-1:], eps=self.norm_eps)).to(v.dtype)

    def second_weight(self) -> Tensor:
        """Return lambda, the factor of the second softmax: one number for all heads."""
        first, second = (half.sum() for half in (self.by_query * self.by_key).tensor_split(2))  # u1 . w1 and u2 . w2
        return first.exp() - second.exp() + self.start
