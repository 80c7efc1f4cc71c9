"""S4D: a diagonal state space model s' = A s + B u, y = 2 Re(C s) in each channel, discretised by zero-order hold.

It is computed as a convolution. The N modes form conjugate pairs, and one mode of each pair has parameters. B is
trained, or fixed at 1 because only its product with C matters. In the formula of `info`, C_n stands for the product
B_n C_n, and B-bar_n for (exp(dt A_n) - 1) / A_n. The parameter of Re A is log(-Re A), so every mode decays. Without
causality a second kernel, with the same modes and a separate C, reads later positions; lag 0 belongs to the first
kernel.
"""

import math
from typing import ClassVar, Literal

import torch
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor, nn
from torch.nn.functional import gelu, glu

from lra.core.errors import UserError
from lra.mixers import Mixer, MixerConfig, MixerInfo, without_padding
from lra.mixers._recurrent import log_uniform
from lra.ops.convolution import convolve_both, convolve_few, convolve_modes, mode_kernel
from lra.ops.device import at_least_float32, full_precision
from lra.ops.dropout import Dropout


class S4D(Mixer):
    """Diagonal state space model in each channel.

    Args:
        state: N, the number of modes, even.
        init: initial imaginary part of A in mode n = 0, 1, ...: pi n (`lin`) or N/pi (N / (2n + 1) - 1) (`inv`). All
            real parts start at -1/2.
        dt_min: steps start log-uniform between dt_min and dt_max.
        b: initial values of a trained B, `ones` or `normal`; None for a fixed B of one.
        copies: number of copies of A and B, each shared by D / copies adjacent channels; None for one per channel.
        output: `glu` projects to twice the width, and one half gates the other; None projects to the width.
    """

    info = MixerInfo(
        paper="Gu et al. 2022, On the Parameterization and Initialization of Diagonal State Space Models",
        formula="GELU(K ∗ x + D x) W, K_l = 2 Re Σₙ Cₙ B̄ₙ exp(l Δ Aₙ)",
        complexity="L D (N + log L)",
        linear_memory=True,
        reference="scipy's zero-order hold and simulation; the double sum in float64",
        deviations=(
            "the output has a gated linear unit only if attention.output=glu",
            "dropout is on whole channels only with model.dropout_over=channels",
            "A, B and Δ have a separate learning rate and weight decay only if train.groups sets them",
            "Δ is an exponential, not a softplus",
        ),
    )
    can_be_causal = True
    one_graph = False
    projects_out = True
    few_outputs = True
    parameter_groups: ClassVar[dict[str, tuple[str, ...]]] = {
        "step": ("log_dt",),
        "state": ("log_decay", "frequency", "b"),
    }

    def __init__(
        self,
        config: MixerConfig,
        *,
        state: PositiveInt,
        init: Literal["lin", "inv"],
        dt_min: PositiveFloat,
        dt_max: PositiveFloat,
        b: Literal["ones", "normal"] | None,
        copies: PositiveInt | None,
        output: Literal["glu"] | None,
    ) -> None:
        super().__init__(config)
        self.copies = copies or config.dim
        if config.dim % self.copies:
            raise UserError(f"attention.copies={copies} does not divide model.dim={config.dim}")
        if state % 2:
            raise UserError(f"attention.state={state}: expected an even number, as modes come in conjugate pairs")
        self.directions = 1 if self.causal else 2
        dim, modes = config.dim, state // 2
        frequency = (math.pi if init == "lin" else 1) * torch.arange(modes, dtype=torch.get_default_dtype())
        if init == "inv":
            frequency = state / math.pi * (state / (2 * frequency + 1) - 1)
        self.log_dt = nn.Parameter(log_uniform("dt", dt_min, dt_max, dim))
        self.log_decay = nn.Parameter(torch.full((self.copies, modes), math.log(0.5)))  # log(-Re A)
        self.frequency = nn.Parameter(frequency.repeat(self.copies, 1))  # Im A
        self.c = nn.Parameter(torch.randn(self.directions, dim, modes, 2) * 0.5**0.5)
        self.skip = nn.Parameter(torch.randn(dim))
        self.dropout = Dropout(config.dropout, config.dropout_over)
        self.gated = output == "glu" and config.out_proj
        self.out = nn.Linear(dim, dim * (1 + self.gated), bias=config.bias) if config.out_proj else nn.Identity()
        self.b = None
        if b is not None:
            ones = torch.tensor([1.0, 0.0]).repeat(self.copies, modes, 1)
            self.b = nn.Parameter(ones if b == "ones" else torch.randn_like(ones) * 0.5**0.5)

    def forward(self, x: Tensor, key_mask: Tensor | None = None, num_outputs: int | None = None) -> Tensor:
        x = without_padding(x, key_mask)
        with full_precision(x.device):
            x = at_least_float32(x)
            y = self.convolve_causally(x[:, :num_outputs]) if self.causal else self.convolve(x, num_outputs)
            y = y + self.skip * x[:, :num_outputs]
        y = self.out(self.dropout(gelu(y)))
        return glu(y) if self.gated else y

    def modes(self) -> tuple[Tensor, Tensor]:
        """Return dt A [D, N/2] and C B-bar [directions, D, N/2], complex."""
        a = self._of_channels(torch.complex(-self.log_decay.exp(), self.frequency))  # [D, N/2]
        rate = self.log_dt.exp().unsqueeze(-1) * a
        c = torch.view_as_complex(self.c)  # [directions, D, N/2]
        if self.b is not None:
            c = c * self._of_channels(torch.view_as_complex(self.b))
        return rate, c * torch.expm1(rate) / a  # expm1, because exp(rate) - 1 would cancel for a short step

    def _of_channels(self, copies: Tensor) -> Tensor:
        """Repeat each copy for the channels that share it: [copies, N/2] -> [D, N/2]."""
        return copies.unsqueeze(1).expand(-1, self.config.dim // self.copies, -1).flatten(0, 1)

    def kernel(self, length: int) -> Tensor:
        """Return the kernel K [directions, D, length].

        The step of the tables in `mode_kernel` is a function of `max_positions`, so that rounding does not depend on
        `length`.
        """
        rate, c = self.modes()
        return mode_kernel(rate, c, length, math.isqrt(self.config.max_positions - 1) + 1)

    def convolve(self, x: Tensor, num_outputs: int | None = None) -> Tensor:
        """Convolve x [B, L, D] with both kernels, by FFT, or directly if only the first `num_outputs` are wanted."""
        kernels = self.kernel(x.shape[1])
        return convolve_both(x, *kernels) if num_outputs is None else convolve_few(x, *kernels, num_outputs)  # type: ignore[call-arg]

    def convolve_causally(self, x: Tensor) -> Tensor:
        """Convolve x [B, L, D] by a recurrence over chunks, because rounding in an FFT would leak later positions."""
        rate, c = self.modes()
        return convolve_modes(x, rate, c[0])
