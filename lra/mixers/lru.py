"""LRU, the linear recurrent unit: one recurrence with N complex states, shared by all channels (eq. 6, 7).

Without causality the same recurrence also runs from right to left; the states of this direction have a separate C.
"""

import math
from dataclasses import replace
from typing import ClassVar

import torch
from pydantic import NonNegativeFloat, PositiveFloat, PositiveInt
from torch import Tensor, nn

from lra.core.errors import UserError
from lra.mixers import MixerConfig, MixerInfo
from lra.mixers._recurrent import SHELL, StateSpace

TWO_SIDED = "the paper is causal; here the recurrence also runs backward, and its states have a separate C"


class LinearRecurrentUnit(StateSpace):
    """Linear recurrent unit.

    Args:
        state: N, the number of complex states.
        r_min: minimum of the initial |lambda|; |lambda|^2 is initially uniform between r_min^2 and r_max^2.
        r_max: maximum of the initial |lambda|.
        max_phase: maximum of the initial phase of lambda, in radians.
    """

    info = MixerInfo(
        paper="Orvieto et al. 2023, Resurrecting Recurrent Neural Networks for Long Sequences",
        formula="GELU(Re(C h) + D x) W, hᵢ = λ ⊙ hᵢ₋₁ + γ ⊙ (B xᵢ), λ = exp(−exp(ν) + i exp(θ))",
        complexity="L D N",
        linear_memory=True,
        reference="the recurrence in float64; lru-pytorch 0.1.3",
        deviations=SHELL,
    )
    parameter_groups: ClassVar[dict[str, tuple[str, ...]]] = {"state": ("nu", "theta", "log_gamma", "b")}

    def __init__(
        self,
        config: MixerConfig,
        *,
        state: PositiveInt,
        r_min: NonNegativeFloat,
        r_max: PositiveFloat,
        max_phase: PositiveFloat,
    ) -> None:
        if not r_min < r_max < 1:
            raise UserError(f"attention.r_min={r_min}, attention.r_max={r_max}: expected r_min < r_max < 1")
        super().__init__(config, state)
        if not config.causal:
            self.info = replace(self.info, deviations=(*self.info.deviations, TWO_SIDED))
        square = r_min**2 + (r_max**2 - r_min**2) * torch.rand(state)  # |lambda|^2
        # |lambda| = exp(-exp(nu)); the clamps keep the initial nu and theta finite.
        self.nu = nn.Parameter((-square.clamp(min=1e-12).log() / 2).log())
        self.theta = nn.Parameter((max_phase * torch.rand(state)).clamp(min=1e-12).log())
        self.log_gamma = nn.Parameter(torch.log1p(-square) / 2)  # so that states driven by white noise have variance 1
        self.b = nn.Parameter(torch.randn(state, config.dim, 2) * (2 * config.dim) ** -0.5)
        self.c = nn.Parameter(torch.randn(config.dim, self.directions * state, 2) / math.sqrt(state))

    def system(self) -> tuple[Tensor, Tensor, Tensor]:
        rate = torch.complex(-self.nu.exp(), self.theta.exp())
        b = self.log_gamma.exp()[:, None, None] * self.b  # [N, D, 2]
        return rate, torch.view_as_complex(b), torch.view_as_complex(self.c)
