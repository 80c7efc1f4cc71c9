"""S4D, diagonal state spaces (Gu et al. 2022, On the Parameterization and Initialization of Diagonal State Space
Models): per channel y = K * x + skip x, with K_l = 2 Re sum_n C_n (exp(dt A_n) - 1) / A_n exp(l dt A_n).

That is the zero-order hold of s' = A s + B u, y = 2 Re C s; the N/2 modes stand for N, which come in conjugate pairs. B
is one, since only its product with C counts, or trained, too: then C_n stands for B_n C_n. Re A = -exp(.) < 0, so that
every mode decays. Where later positions count too, a second kernel with modes in common and a C of its own reads them;
lag 0 belongs to the first.

GELU and the output projection follow. Time O(L D (N + log L)), memory O(L D).

Against the authors' code (state-spaces/s4): a GLU on the output only where `output` says so, since the block's
feed-forward net follows; dropout falls on whole channels only where `model.dropout_over` says so; A, B and dt have a
learning rate and a decay of their own only where `train.groups` gives them one; dt is an exponential, not a softplus.
"""

import math
from typing import ClassVar, Literal

import torch
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor, nn
from torch.nn.functional import gelu, glu

from lra.attention import Card, Mixer, Shape, without_padding
from lra.core.errors import UserError
from lra.ops.convolution import convolve_both, convolve_few, convolve_modes, mode_kernel
from lra.ops.dropout import Dropout
from lra.ops.first_weights import check_ends
from lra.ops.precision import at_least_float32, full_precision


class S4D(Mixer):
    """`state`: N, even. `init`: imaginary parts of A, pi n (`lin`) or N/pi (N / (2n + 1) - 1) (`inv`); the real ones
    are -1/2. `dt_min`, `dt_max`: the steps begin log-uniform between them. `b`: how trained B begins, as ones or
    normal; None: it stays one. `copies`: of A and B, each for as many channels side by side; None: one a channel.
    `output`: "glu": the projection is to twice the width, half of which gates the other; None: it is to the width."""

    card = Card(
        paper="Gu et al. 2022, On the Parameterization and Initialization of Diagonal State Space Models",
        formula="GELU(K ∗ x + D x) W, K_l = 2 Re Σₙ Cₙ B̄ₙ exp(l Δ Aₙ)",
        time="L D (N + log L)",
        linear=True,
        oracle="scipy's zero-order hold and simulation; the double sum in float64",
        deviations=(
            "a GLU on the output only where attention.output says so",
            "dropout falls on whole channels only where model.dropout_over says so",
            "A, B and Δ have a learning rate and a decay of their own only where train.groups gives them one",
        ),
    )
    can_be_causal = True
    one_graph = False
    projects_out = True
    reads_few = True
    parameter_groups: ClassVar[dict[str, tuple[str, ...]]] = {
        "step": ("log_dt",),
        "state": ("log_decay", "frequency", "b"),
    }

    def __init__(
        self,
        shape: Shape,
        *,
        state: PositiveInt,
        init: Literal["lin", "inv"],
        dt_min: PositiveFloat,
        dt_max: PositiveFloat,
        b: Literal["ones", "normal"] | None,
        copies: PositiveInt | None,
        output: Literal["glu"] | None,
    ) -> None:
        super().__init__(shape)
        self.copies = copies or shape.dim
        if shape.dim % self.copies:
            raise UserError(f"attention.copies={copies} does not divide model.dim={shape.dim}")
        if state % 2:
            raise UserError(f"attention.state={state}: expected an even number, as modes come in conjugate pairs")
        check_ends("dt", dt_min, dt_max)
        self.state = state
        self.directions = 1 if self.causal else 2
        dim, modes = shape.dim, state // 2
        low, high = math.log(dt_min), math.log(dt_max)
        frequency = (math.pi if init == "lin" else 1) * torch.arange(modes, dtype=torch.get_default_dtype())
        if init == "inv":
            frequency = state / math.pi * (state / (2 * frequency + 1) - 1)
        self.log_dt = nn.Parameter(low + (high - low) * torch.rand(dim))
        self.log_decay = nn.Parameter(torch.full((self.copies, modes), math.log(0.5)))  # of -Re A
        self.frequency = nn.Parameter(frequency.repeat(self.copies, 1))  # Im A
        self.c = nn.Parameter(torch.randn(self.directions, dim, modes, 2) * 0.5**0.5)
        self.skip = nn.Parameter(torch.randn(dim))
        self.dropout = Dropout(shape.dropout, shape.dropout_over)
        self.gated = output == "glu" and shape.out_proj
        self.out = nn.Linear(dim, dim * (1 + self.gated), bias=shape.bias) if shape.out_proj else nn.Identity()
        self.b = None
        if b is not None:
            ones = torch.tensor([1.0, 0.0]).repeat(self.copies, modes, 1)
            self.b = nn.Parameter(ones if b == "ones" else torch.randn_like(ones) * 0.5**0.5)

    def forward(self, x: Tensor, key_mask: Tensor | None = None, reads: int | None = None) -> Tensor:
        x = without_padding(x, key_mask)
        with full_precision(x.device):
            x = at_least_float32(x)
            y = self.convolve_causally(x[:, :reads]) if self.causal else self.convolve(x, reads)
            y = y + self.skip * x[:, :reads]
        y = self.out(self.dropout(gelu(y)))
        return glu(y) if self.gated else y

    def modes(self) -> tuple[Tensor, Tensor]:
        """dt A [D, N/2] and C B-bar [directions, D, N/2], complex."""
        a = self._of_channels(torch.complex(-self.log_decay.exp(), self.frequency))
        rate = self.log_dt.exp().unsqueeze(-1) * a
        c = torch.view_as_complex(self.c)
        if self.b is not None:
            c = c * self._of_channels(torch.view_as_complex(self.b))
        return rate, c * torch.expm1(rate) / a

    def _of_channels(self, copies: Tensor) -> Tensor:
        """[copies, N/2] -> [D, N/2]."""
        return copies.unsqueeze(1).expand(-1, self.shape.dim // self.copies, -1).flatten(0, 1)

    def kernel(self, length: int) -> Tensor:
        """K [directions, D, length]; its step does not depend on the length asked for."""
        rate, c = self.modes()
        return mode_kernel(rate, c, length, math.isqrt(self.shape.max_positions - 1) + 1)

    def convolve(self, x: Tensor, reads: int | None = None) -> Tensor:
        """Both kernels at once, by FFT; a few outputs one by one."""
        kernels = self.kernel(x.shape[1])
        return convolve_both(x, *kernels) if reads is None else convolve_few(x, *kernels, reads)

    def convolve_causally(self, x: Tensor) -> Tensor:
        """Convolve by a recurrence from chunk to chunk, since the FFT's rounding would carry traces of later
        positions."""
        rate, c = self.modes()
        return convolve_modes(x, rate, c[0])

    @property
    def extra_parameters(self) -> int:
        dim = self.shape.dim
        modes = (2 + self.state * self.directions) * dim + self.state * self.copies * (1 if self.b is None else 2)
        return modes + (dim + self.shape.bias) * dim * (self.shape.out_proj + self.gated) - self.shape.projections
