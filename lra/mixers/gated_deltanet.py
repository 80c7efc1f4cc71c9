"""Gated DeltaNet: a recurrent memory S in which writing a key's value first removes the key's old value (eq. 10).

q, k and v pass a short convolution and swish; then q and k are normalised to length 1. The strength of a write is
b = sigmoid(x W_b), and the memory decays by a = exp(-A softplus(x W_a + c)). With a = 1 this is DeltaNet (Yang et al.
2024).
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import torch
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor, nn
from torch.nn.functional import normalize, silu

from lra.mixers import MixerConfig, MixerInfo, split_heads
from lra.mixers._backend import Backend, Scan
from lra.mixers._recurrent import NORM, DecaySteps, Recurrent
from lra.ops.convolution import short_convolution
from lra.ops.scan import delta_rule

OF_GATED = (
    "A is initially at least attention.a_min, the projection to b has no bias, and the output projection starts as "
    "PyTorch initialises it; in the authors' code (NVlabs/GatedDeltaNet) the initial range of A begins at 0, the "
    "projection to b has a bias, and the more layers there are, the smaller the output projection starts"
)


class GatedDeltaNet(Recurrent):
    """Recurrent memory with the gated delta rule.

    Args:
        gated: use the decay a; False gives DeltaNet.
        negative_eigenvalues: use b = 2 sigmoid(x W_b), so that a write can invert the sign of the old value (Grazzi et
            al. 2025, arXiv:2411.12537, eq. 4).
        conv: number of taps of the short convolutions.
        a_min: minimum of the initial A; for a_max, dt_min and dt_max see `DecaySteps`.
    """

    info = MixerInfo(
        paper="Yang et al. 2025, Gated Delta Networks",
        formula="swish(X Wg) ⊙ norm(y), yᵢ = Sᵢᵀ qᵢ / √width, Sᵢ = aᵢ (1 − bᵢ kᵢ kᵢᵀ) Sᵢ₋₁ + bᵢ kᵢ vᵢᵀ",
        complexity="L D (C + Dh), chunks of C",
        linear_memory=True,
        reference="the recurrence in float64; flash-linear-attention's naive form",
        deviations=(
            "values are as wide as queries and keys, not twice as wide",
            OF_GATED,
            NORM,
        ),
    )
    parameter_groups: ClassVar[dict[str, tuple[str, ...]]] = {"state": ("steps.log_a", "steps.bias")}

    def __init__(
        self,
        config: MixerConfig,
        *,
        gated: bool,
        negative_eigenvalues: bool,
        conv: PositiveInt,
        a_min: PositiveFloat,
        a_max: PositiveFloat,
        dt_min: PositiveFloat,
        dt_max: PositiveFloat,
        norm_eps: PositiveFloat,
        backend: Backend | None,
    ) -> None:
        super().__init__(config, norm_eps=norm_eps)
        self.conv, self.is_gated = conv, gated
        self.scan = Scan("gated_delta_rule", backend)
        self.max_strength = 2.0 if negative_eigenvalues else 1.0  # upper bound of b
        self.taps = nn.Parameter((2 * torch.rand(3 * config.qkv_dim, conv) - 1) * conv**-0.5)
        self.strength = nn.Linear(config.dim, config.heads, bias=False)
        if gated:
            self.steps = DecaySteps(config, a_min=a_min, a_max=a_max, dt_min=dt_min, dt_max=dt_max)
        else:
            formula = self.info.formula.replace("aᵢ (1 − bᵢ kᵢ kᵢᵀ)", "(1 − bᵢ kᵢ kᵢᵀ)")
            paper = "Yang et al. 2024, Parallelizing Linear Transformers with the Delta Rule"
            deviations = tuple(text for text in self.info.deviations if text != OF_GATED)
            self.info = replace(self.info, formula=formula, paper=paper, deviations=deviations)

    def inputs(self, x: Tensor) -> tuple[Tensor, ...]:
        qkv = torch.cat([self.query(x), self.key(x), self.value(x)], dim=-1)  # [B, L, 3 H Dh], for one convolution
        return qkv, self.strength(x), *([self.steps.project(x)] if self.is_gated else [])

    def recurrence(self, inputs: Sequence[Tensor], real: Tensor) -> Tensor:
        qkv, strength, *step = inputs
        qkv = silu(short_convolution(qkv, self.taps))
        q, k, v = (split_heads(part, self.config.heads) for part in qkv.chunk(3, dim=-1))  # [B, H, L, Dh]
        q, k = normalize(q, dim=-1), normalize(k, dim=-1)
        # b is 0 at padding, which therefore writes nothing.
        b = (self.max_strength * strength.sigmoid() * real).transpose(1, 2)  # [B, H, L]
        log_decay = self.steps(step[0], real)[1].squeeze(-1) if step else torch.zeros_like(b)  # [B, H, L]
        return self.scan(delta_rule, q * self.config.head_dim**-0.5, k, v, b, log_decay)
