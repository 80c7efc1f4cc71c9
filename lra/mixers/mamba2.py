"""Mamba-2: a state space model whose decay and step size depend on the input U.

The vectors B and C [N] of a position are shared by all heads, and the step size is dt = softplus(u W_dt + b). By the
paper's duality the model is linear attention with queries C, keys B and a decay, and it is computed in chunks.
"""

from collections.abc import Sequence
from typing import ClassVar

import torch
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor, nn
from torch.nn.functional import silu

from lra.mixers import MixerConfig, MixerInfo, merge_heads, split_heads
from lra.mixers._backend import Backend, Scan
from lra.mixers._recurrent import DecaySteps, Recurrent
from lra.ops.convolution import short_convolution
from lra.ops.scan import causal_product


class Mamba2(Recurrent):
    """Selective state space model.

    Args:
        state: N, the width of B and C.
        conv: number of taps of the short convolution.
        a_min: minimum of the initial A; for a_max, dt_min and dt_max see `DecaySteps`.
    """

    info = MixerInfo(
        paper="Dao and Gu 2024, Transformers are SSMs",
        formula="norm(y ⊙ swish(U Wz)), yᵢ = Sᵢᵀ Cᵢ + D xᵢ, Sᵢ = exp(−A Δᵢ) Sᵢ₋₁ + Δᵢ Bᵢ xᵢᵀ; x, B, C = swish(conv(U))",
        complexity="L D (C + N), chunks of C",
        linear_memory=True,
        reference="the recurrence in float64; flash-linear-attention's naive form",
        deviations=(
            "the inner width is model.qkv_dim, not twice the width of the model, and there is one group of B and C",
            "the norm has no weights, because the weights of the output projection can replace them",
            "the output projection starts as PyTorch initialises it, not divided by the root of the number of layers",
            "A, D and the bias of Δ have a separate weight decay only if train.groups sets one",
        ),
    )
    parameter_groups: ClassVar[dict[str, tuple[str, ...]]] = {"state": ("steps.log_a", "steps.bias", "skip")}

    def __init__(
        self,
        config: MixerConfig,
        *,
        state: PositiveInt,
        conv: PositiveInt,
        a_min: PositiveFloat,
        a_max: PositiveFloat,
        dt_min: PositiveFloat,
        dt_max: PositiveFloat,
        norm_eps: PositiveFloat,
        backend: Backend | None,
    ) -> None:
        super().__init__(config, norm_eps=norm_eps)
        self.query = nn.Linear(config.dim, state, bias=config.bias)  # projection to C
        self.key = nn.Linear(config.dim, state, bias=config.bias)  # projection to B
        self.state, self.conv = state, conv
        self.scan = Scan("simple_gla", backend)
        self.steps = DecaySteps(config, a_min=a_min, a_max=a_max, dt_min=dt_min, dt_max=dt_max)
        self.skip = nn.Parameter(torch.ones(config.heads))
        channels = config.qkv_dim + 2 * state
        self.taps = nn.Parameter((2 * torch.rand(channels, conv) - 1) * conv**-0.5)
        self.taps_bias = nn.Parameter((2 * torch.rand(channels) - 1) * conv**-0.5)

    def inputs(self, x: Tensor) -> tuple[Tensor, ...]:
        return torch.cat([self.query(x), self.key(x), self.value(x)], dim=-1), self.steps.project(x)

    def recurrence(self, inputs: Sequence[Tensor], real: Tensor) -> Tensor:
        x, step = inputs
        x = silu(short_convolution(x, self.taps) + self.taps_bias)  # [B, L, 2 N + H Dh]
        # [B, L, N], [B, L, N] and [B, L, H Dh]
        c, b, x = x.split([self.state, self.state, self.config.qkv_dim], dim=-1)
        x = split_heads(x, self.config.heads)  # [B, H, L, Dh]
        dt, log_decay = self.steps(step, real)  # [B, H, L, 1], 0 at padding, so x * dt is 0 despite the bias in x
        # C and B [B, 1, L, N] broadcast over the heads.
        y = self.scan(causal_product, c.unsqueeze(1), b.unsqueeze(1), x * dt, log_decay.squeeze(-1))
        return y + self.skip[:, None, None] * x

    def gated(self, y: Tensor, gate: Tensor) -> Tensor:
        """Return norm(y * silu(gate)) [B, L, H Dh]; the base class applies the norm to each head, before the gate."""
        return self.normed(merge_heads(y) * silu(gate))
