"""Retention (RetNet): attention without softmax, with weights that decay with the distance.

Head h = 0, 1, ... has the decay gamma = 1 - 2^(-5 - h), and q and k are rotated by angles that grow with the position.
The weighted sum is computed by a recurrence over chunks.

The two-sided form, which is not in the paper, is the sum of the recurrences from left to right and from right to left,
minus the term j = i, which both include. The norm divides by the root mean square and has no weights, as in the
authors' code; the paper's formula has a group norm. There is no dropout on the weights.
"""

import math
from dataclasses import replace

import torch
from pydantic import PositiveFloat
from torch import Tensor
from torch.nn.functional import rms_norm, silu

from lra.mixers import Attention, MixerConfig, MixerInfo, merge_heads, project_in, without_padding
from lra.mixers._backend import Backend, Scan
from lra.mixers.rotary import turn
from lra.ops.device import at_least_float32, full_precision
from lra.ops.scan import causal_product


class Retention(Attention):
    """Attention with exponential decay."""

    info = MixerInfo(
        paper="Sun et al. 2023, Retentive Network",
        formula="swish(X Wg) ⊙ norm((Q Kᵀ ⊙ γ^|i-j|) V / √Dh)",
        complexity="L D Dh",
        linear_memory=True,
        reference="the explicit decay matrix; flash-linear-attention's naive form",
        deviations=(
            "weights start as PyTorch initialises them; the authors' code has gains of 2^-2.5 for q, k, v and gate, "
            "and of 2^-1 for the output",
            "values and gate are as wide as queries and keys, not twice as wide",
            "outputs are not divided by the sums of the weights, because the norm would undo it",
        ),
    )
    can_be_causal = True

    log_decay: Tensor  # [H]

    def __init__(self, config: MixerConfig, *, norm_eps: PositiveFloat, backend: Backend | None) -> None:
        super().__init__(config)
        self.gate = project_in(config)
        self.norm_eps = norm_eps
        self.scan = Scan("simple_gla", backend)
        backwards = () if config.causal else ("the paper is causal; here a second scan reads later positions",)
        deviations = (*self.info.deviations, *backwards)
        self.info = replace(self.info, scale=config.head_dim**-0.5, deviations=deviations)
        log_decay = [math.log1p(-(2.0 ** (-5 - head))) for head in range(config.heads)]
        # Not saved: it follows from the number of heads.
        self.register_buffer("log_decay", torch.tensor(log_decay, dtype=torch.float64), persistent=False)

    def forward(self, x: Tensor, key_mask: Tensor | None = None) -> Tensor:  # type: ignore[override]
        y = merge_heads(self.attend(*self.project(x), key_mask))
        return self.out(silu(self.gate(x)) * y)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
        with full_precision(q.device):
            q, k, v = map(at_least_float32, (q, k, v))
            k = without_padding(k, key_mask)
            y = self.retain(rotate(q) * q.shape[-1] ** -0.5, rotate(k), v)
            return rms_norm(y, v.shape[-1:], eps=self.norm_eps)

    def retain(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Compute sum_j gamma^|i - j| (q_i . k_j) v_j, over j <= i in the causal form.

        q, k, v [B, H, L, Dh] -> [B, H, L, Dh].
        """
        decay = self.log_decay.to(q.dtype).unsqueeze(-1).expand(-1, q.shape[-2])  # [H, L]
        past = self.scan(causal_product, q, k, v, decay)
        if self.causal:
            return past
        future = self.scan(causal_product, q.flip(-2), k.flip(-2), v.flip(-2), decay).flip(-2)
        # Both directions include the term j = i.
        return past + future - (q * k).sum(dim=-1, keepdim=True) * v


def rotate(x: Tensor) -> Tensor:
    """Rotate the pairs (x_m, x_{m + w}), w = Dh // 2, at position i by the angle i / 10000^(m / (w - 1)).

    The product of two rotated vectors depends on their positions i and j only through i - j. If Dh is odd, the last
    column is unchanged.
    """
    half = x.shape[-1] // 2
    speed = 10000.0 ** -torch.linspace(0, 1, half, dtype=torch.float64, device=x.device)
    return turn(x, speed)
