"""Mamba-2: a state space whose decay and step depend on the input U.

B and C [state] are shared by all heads, and dt = softplus(u W_dt + b). By the paper's duality the state space is a
product of C and B with a decay, computed in chunks.
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
    """Selective state space.

    Args:
        state: N.
        conv: number of taps of the convolution.
        a_min: see `DecaySteps`; likewise a_max, dt_min and dt_max.
    """

    info = MixerInfo(
        paper="Dao and Gu 2024, Transformers are SSMs",
        formula="norm(y ⊙ swish(U Wz)), yᵢ = Sᵢᵀ Cᵢ + D xᵢ, Sᵢ = exp(−A Δᵢ) Sᵢ₋₁ + Δᵢ Bᵢ xᵢᵀ; x, B, C = swish(conv(U))",
        complexity="L D (C + N), chunks of C",
        linear_memory=True,
        reference="the recurrence in float64; flash-linear-attention's naive form",
        deviations=(
            "the inner width is that of queries, not twice the model's, and there is one group of B and C",
            "the norm has no weights, which those of the output projection can hold",
            "the output projection begins as PyTorch draws it, not divided by the root of the number of layers",
            "A, D and the bias of Δ have a weight decay of their own only where train.groups gives them one",
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
        self.query = nn.Linear(config.dim, state, bias=config.bias)  # C
        self.key = nn.Linear(config.dim, state, bias=config.bias)  # B
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
        x = silu(short_convolution(x, self.taps) + self.taps_bias)
        c, b, x = x.split([self.state, self.state, self.config.qkv_dim], dim=-1)
        x = split_heads(x, self.config.heads)
        dt, log_decay = self.steps(step, real)
        y = self.scan(causal_product, c.unsqueeze(1), b.unsqueeze(1), x * dt, log_decay.squeeze(-1))
        return y + self.skip[:, None, None] * x

    def gated(self, y: Tensor, gate: Tensor) -> Tensor:
        """Apply the norm after the gate, over all heads."""
        return self.normed(merge_heads(y) * silu(gate))
