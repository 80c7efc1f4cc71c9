"""S4D, diagonal state spaces (Gu et al. 2022, On the Parameterization and Initialization of Diagonal State Space
Models): per channel y = K * x + skip x, with K_l = 2 Re sum_n C_n (exp(dt A_n) - 1) / A_n exp(l dt A_n).

That is the zero-order hold of s' = A s + u, y = 2 Re C s; the N/2 modes stand for N, which come in conjugate pairs, and
B is one, since only its product with C counts. Re A = -exp(.) < 0, so that every mode decays. Where later positions
count too, a second kernel with modes in common and a C of its own reads them; lag 0 belongs to the first.

GELU and the output projection follow. Time O(L D (N + log L)), memory O(L D).

Against the authors' code (state-spaces/s4): no GLU on the output, since the block's feed-forward net follows; dropout
falls on single values rather than on channels; A and dt have a learning rate and a decay of their own only where
`train.groups` gives them one.
"""

import math
from typing import ClassVar, Literal

import torch
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor, nn
from torch.nn.functional import gelu

from lra.attention import Card, Mixer, Shape
from lra.attention.modes import convolve_both, convolve_modes, mode_kernel
from lra.core.dropout import Dropout
from lra.core.errors import UserError
from lra.core.precision import at_least_float32, full_precision


class S4D(Mixer):
    """`state`: N, even. `init`: imaginary parts of A, pi n (`lin`) or N/pi (N / (2n + 1) - 1) (`inv`); the real ones
    are -1/2. `dt_min`, `dt_max`: the steps begin log-uniform between them."""

    card = Card(
        paper="Gu et al. 2022, On the Parameterization and Initialization of Diagonal State Space Models",
        formula="GELU(K ∗ x + D x) W, K_l = 2 Re Σₙ Cₙ B̄ₙ exp(l Δ Aₙ)",
        time="L D (N + log L)",
        linear=True,
        oracle="scipy's zero-order hold and simulation; the double sum in float64",
        deviations=(
            "no GLU on the output",
            "dropout falls on single values, not on channels",
            "A and Δ have a learning rate and a decay of their own only where train.groups gives them one",
        ),
    )
    can_be_causal = True
    projects_out = True
    parameter_groups: ClassVar[dict[str, tuple[str, ...]]] = {"step": ("log_dt",), "state": ("log_decay", "frequency")}

    def __init__(
        self,
        shape: Shape,
        *,
        state: PositiveInt,
        init: Literal["lin", "inv"],
        dt_min: PositiveFloat,
        dt_max: PositiveFloat,
    ) -> None:
        super().__init__(shape)
        if state % 2:
            raise UserError(f"attention.state={state}: expected an even number, as modes come in conjugate pairs")
        if dt_min > dt_max:
            raise UserError(f"attention.dt_min={dt_min}: expected at most attention.dt_max={dt_max}")
        self.state = state
        self.directions = 1 if self.causal else 2
        dim, modes = shape.dim, state // 2
        low, high = math.log(dt_min), math.log(dt_max)
        frequency = (math.pi if init == "lin" else 1) * torch.arange(modes, dtype=torch.get_default_dtype())
        if init == "inv":
            frequency = state / math.pi * (state / (2 * frequency + 1) - 1)
        self.log_dt = nn.Parameter(low + (high - low) * torch.rand(dim))
        self.log_decay = nn.Parameter(torch.full((dim, modes), math.log(0.5)))  # of -Re A
        self.frequency = nn.Parameter(frequency.repeat(dim, 1))  # Im A
        self.c = nn.Parameter(torch.randn(self.directions, dim, modes, 2) * 0.5**0.5)
        self.skip = nn.Parameter(torch.randn(dim))
        self.dropout = Dropout(shape.dropout)
        self.out = nn.Linear(dim, dim, bias=shape.bias) if shape.out_proj else nn.Identity()

    def forward(self, x: Tensor, key_mask: Tensor | None = None) -> Tensor:
        if key_mask is not None:
            x = x.masked_fill(~key_mask.unsqueeze(-1), 0)
        with full_precision(x.device):
            x = at_least_float32(x)
            convolve = self.convolve_causally if self.causal else self.convolve
            y = convolve(x) + self.skip * x
        return self.out(self.dropout(gelu(y)))

    def modes(self) -> tuple[Tensor, Tensor]:
        """dt A [D, N/2] and C B-bar [directions, D, N/2], complex."""
        a = torch.complex(-self.log_decay.exp(), self.frequency)
        rate = self.log_dt.exp().unsqueeze(-1) * a
        return rate, torch.view_as_complex(self.c) * torch.expm1(rate) / a

    def kernel(self, length: int) -> Tensor:
        """K [directions, D, length]; its step does not depend on the length asked for."""
        rate, c = self.modes()
        return mode_kernel(rate, c, length, math.isqrt(self.shape.max_positions - 1) + 1)

    def convolve(self, x: Tensor) -> Tensor:
        """Both kernels at once, by FFT."""
        return convolve_both(x, *self.kernel(x.shape[1]))

    def convolve_causally(self, x: Tensor) -> Tensor:
        """As a recurrence from chunk to chunk, since the FFT's rounding would carry traces of later positions."""
        rate, c = self.modes()
        return convolve_modes(x, rate, c[0])

    @property
    def extra_parameters(self) -> int:
        dim = self.shape.dim
        modes = (2 + self.state * (1 + self.directions)) * dim
        return modes + (dim + self.shape.bias) * dim * self.shape.out_proj - self.shape.projections
