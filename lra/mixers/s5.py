"""S5, simplified state space layers: a diagonal state space with all channels as inputs (eq. 6).

There is a step dt per mode. A starts as the eigenvalues of `blocks` HiPPO-N matrices on a diagonal; modes come in
conjugate pairs, one of which is kept. Without causality the same states also run backward, with a C of their own, as in
the authors' code. Re A = -exp(.) < 0, so that every mode decays.
"""

from typing import ClassVar

import numpy as np
import torch
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor, nn

from lra.core.errors import UserError
from lra.mixers import MixerConfig, MixerInfo
from lra.mixers._recurrent import SHELL, StateSpace, log_uniform


class S5(StateSpace):
    """Diagonal state space with shared states.

    Args:
        state: real size P of the state, for P / 2 modes.
        blocks: number of HiPPO-N matrices on the diagonal.
        dt_min: steps start log-uniform between dt_min and dt_max.
    """

    info = MixerInfo(
        paper="Smith et al. 2023, Simplified State Space Layers for Sequence Modeling",
        formula="GELU(2 Re(C h) + D x) W, hᵢ = exp(Δ A) ⊙ hᵢ₋₁ + (exp(Δ A) − 1) / A ⊙ (B xᵢ)",
        complexity="L D N",
        linear_memory=True,
        reference="the recurrence in float64; s5-pytorch 0.2.1",
        deviations=(
            *SHELL,
            "Re A is minus an exponential, not cut off at −10⁻⁴",
            "B begins as V⁻¹ N(0, 1 / D), and C as N(0, 1 / P) V, real before V; in the authors' code the variance "
            "of B is 1 / P, and C is complex, of a variance that differs from task to task",
        ),
    )
    parameter_groups: ClassVar[dict[str, tuple[str, ...]]] = {
        "step": ("log_dt",),
        "state": ("log_decay", "frequency", "b"),
    }

    def __init__(
        self,
        config: MixerConfig,
        *,
        state: PositiveInt,
        blocks: PositiveInt,
        dt_min: PositiveFloat,
        dt_max: PositiveFloat,
    ) -> None:
        if state % (2 * blocks):
            raise UserError(f"attention.state={state}: expected a multiple of 2 attention.blocks={2 * blocks}")
        super().__init__(config, state // 2)
        eigenvalues, vectors = hippo_n(state // blocks)
        a, to_modes = torch.tensor(eigenvalues).repeat(blocks), torch.tensor(vectors, dtype=torch.complex64)
        self.log_decay = nn.Parameter((-a.real).log().float())  # of -Re A
        self.frequency = nn.Parameter(a.imag.float())
        self.log_dt = nn.Parameter(log_uniform("dt", dt_min, dt_max, self.modes))
        b = torch.randn(blocks, state // blocks, config.dim) * config.dim**-0.5
        c = torch.randn(config.dim, self.directions, blocks, state // blocks) * state**-0.5
        self.b = nn.Parameter(torch.view_as_real((to_modes.mH @ b.to(to_modes.dtype)).flatten(0, 1).resolve_conj()))
        self.c = nn.Parameter(torch.view_as_real((c.to(to_modes.dtype) @ to_modes).flatten(1)))

    def system(self) -> tuple[Tensor, Tensor, Tensor]:
        a = torch.complex(-self.log_decay.exp(), self.frequency)
        rate = self.log_dt.exp() * a
        b = (torch.expm1(rate) / a).unsqueeze(-1) * torch.view_as_complex(self.b)  # [N, D]
        return rate, b, 2 * torch.view_as_complex(self.c)  # twice: a mode stands for a conjugate pair


def hippo_n(size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return eigenvalues [size / 2] with positive imaginary part and eigenvectors of HiPPO-N.

    HiPPO-N is the normal part of the HiPPO-LegS matrix. Its entries are -1/2 on the diagonal, and
    +-sqrt((2 n + 1) (2 m + 1)) / 2 off it.
    """
    root = np.sqrt(2 * np.arange(size) + 1)
    skew = np.outer(root, root) / 2
    skew = np.triu(skew, 1) - np.tril(skew, -1)
    frequencies, vectors = np.linalg.eigh(-1j * skew)  # Hermitian, so that the eigenvectors are orthonormal
    return -0.5 + 1j * frequencies[size // 2 :], vectors[:, size // 2 :]
