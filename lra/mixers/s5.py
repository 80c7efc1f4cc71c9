"""S5, simplified state space layers: one diagonal state space model with all channels as inputs and outputs (eq. 6).

Each mode has a step dt. A starts as the eigenvalues of a block-diagonal matrix of `blocks` HiPPO-N matrices. The
eigenvalues come in conjugate pairs, and one of each pair is used. Without causality the same recurrence also runs
from right to left; the states of this direction have a separate C, as in the authors' code. The parameter of Re A is
log(-Re A), so every mode decays.
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
    """Diagonal state space model with states shared by all channels.

    Args:
        state: P, the real size of the state, which has P / 2 complex modes.
        blocks: number of HiPPO-N matrices of size P / blocks.
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
            "Re A is minus the exponential of a parameter; in the authors' code Re A is a parameter, cut off at −10⁻⁴",
            "B starts as V⁻¹ B₀ and C as C₀ V, with real B₀ and C₀ drawn from N(0, 1 / D) and N(0, 1 / P); in the "
            "authors' code the variance of B₀ is 1 / P, and C₀ is complex, with a variance that depends on the task",
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
            raise UserError(f"attention.state={state}: expected a multiple of {2 * blocks}, twice attention.blocks")
        super().__init__(config, state // 2)
        eigenvalues, vectors = hippo_n(state // blocks)
        # Eigenvalues A and eigenvectors V. In terms of the modes, B becomes V^H B and C becomes C V.
        a, to_modes = torch.tensor(eigenvalues).repeat(blocks), torch.tensor(vectors, dtype=torch.complex64)
        self.log_decay = nn.Parameter((-a.real).log().float())  # log(-Re A)
        self.frequency = nn.Parameter(a.imag.float())  # Im A
        self.log_dt = nn.Parameter(log_uniform("dt", dt_min, dt_max, self.modes))
        b = torch.randn(blocks, state // blocks, config.dim) * config.dim**-0.5
        c = torch.randn(config.dim, self.directions, blocks, state // blocks) * state**-0.5
        # [N, D, 2]
        self.b = nn.Parameter(torch.view_as_real((to_modes.mH @ b.to(to_modes.dtype)).flatten(0, 1).resolve_conj()))
        self.c = nn.Parameter(torch.view_as_real((c.to(to_modes.dtype) @ to_modes).flatten(1)))  # [D, directions N, 2]

    def system(self) -> tuple[Tensor, Tensor, Tensor]:
        a = torch.complex(-self.log_decay.exp(), self.frequency)
        rate = self.log_dt.exp() * a
        b = (torch.expm1(rate) / a).unsqueeze(-1) * torch.view_as_complex(self.b)  # [N, D]
        return rate, b, 2 * torch.view_as_complex(self.c)  # twice, because a mode stands for a conjugate pair


def hippo_n(size: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the eigenvalues [size / 2] of HiPPO-N with positive imaginary part, and eigenvectors [size, size / 2].

    HiPPO-N is the normal part of the HiPPO-LegS matrix. Its entries are -1/2 on the diagonal, and
    +-sqrt((2 n + 1) (2 m + 1)) / 2 in row n and column m elsewhere.
    """
    root = np.sqrt(2 * np.arange(size) + 1)
    skew = np.outer(root, root) / 2
    skew = np.triu(skew, 1) - np.tril(skew, -1)
    frequencies, vectors = np.linalg.eigh(-1j * skew)  # a Hermitian matrix has orthonormal eigenvectors
    return -0.5 + 1j * frequencies[size // 2 :], vectors[:, size // 2 :]
