"""S4D, diagonal state spaces (Gu et al. 2022, On the Parameterization and Initialization of Diagonal State Space
Models): per channel y = K * x + skip x, with K_l = 2 Re sum_n C_n (exp(dt A_n) - 1) / A_n exp(l dt A_n).

That is the zero-order hold of s' = A s + u, y = 2 Re C s; the N/2 modes stand for N, which come in conjugate pairs, and
B is one, since only its product with C counts. Re A = -exp(.) < 0, so that every mode decays. Where later positions
count too, a second kernel with modes in common and a C of its own reads them; lag 0 belongs to the first.

GELU and the output projection follow. Time O(L D (N + log L)), memory O(L D).

Against the authors' code (state-spaces/s4): no GLU on the output, since the block's feed-forward net follows; dropout
falls on single values rather than on channels; A and dt have no learning rate of their own and are decayed as all
parameters are.
"""

import math
from typing import Literal

import torch
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor, nn
from torch.nn.functional import gelu, pad

from lra.attention import Card, Mixer, Shape
from lra.core.dropout import Dropout
from lra.core.errors import UserError
from lra.core.precision import at_least_float32, full_precision

CHUNK = 64


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
            "A and Δ have no learning rate of their own and are decayed as all parameters are",
        ),
    )
    can_be_causal = True
    projects_out = True

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
        """K [directions, D, length].

        Lags are l = a s + b with s about the root of the length, so the modes' powers are products of 2 s of them, and
        no D x N/2 x length numbers are formed. The step s does not depend on the length asked for.
        """
        rate, c = self.modes()
        step = math.isqrt(self.shape.max_positions - 1) + 1
        steps = torch.arange(-(-length // step), device=c.device)
        coarse = powers(rate, steps * step) * c.unsqueeze(-1)  # [directions, D, N/2, a]
        fine = powers(rate, torch.arange(step, device=c.device))
        return 2 * real_product(coarse.transpose(-2, -1), fine).flatten(-2)[..., :length]

    def convolve(self, x: Tensor) -> Tensor:
        """Both kernels at once by FFT: y_i = sum_{j <= i} K_{i-j} x_j + sum_{j > i} K'_{j-i-1} x_j."""
        length = x.shape[1]
        earlier, later = self.kernel(length)
        size = 1 << (2 * length - 2).bit_length()  # 2 L - 1 lags at least, so that nothing wraps around
        both = torch.cat([pad(earlier, (0, size - 2 * length + 1)), later[:, : length - 1].flip(-1)], dim=-1)
        y = torch.fft.irfft(torch.fft.rfft(x.transpose(1, 2), size) * torch.fft.rfft(both), size)
        return y[..., :length].transpose(1, 2)

    def convolve_causally(self, x: Tensor) -> Tensor:
        """As a recurrence from chunk to chunk, since the FFT's rounding would carry traces of later positions."""
        batch, length, dim = x.shape
        rate, c = self.modes()
        chunks = pad(x, (0, 0, 0, -length % CHUNK)).permute(2, 0, 1).unflatten(-1, (-1, CHUNK))  # [D, B, chunks, CHUNK]
        flat = chunks.flatten(1, 2)
        lags = torch.arange(CHUNK, device=x.device)
        mode = powers(rate, lags)  # [D, N/2, CHUNK]
        kernel = pad(2 * (c[0].unsqueeze(-1) * mode).real.sum(dim=1), (CHUNK - 1, 0))
        inside = flat @ kernel[:, lags - lags.unsqueeze(-1) + CHUNK - 1]
        last = mode.flip(-1).transpose(-2, -1)
        states = torch.complex(flat @ last.real, flat @ last.imag).unflatten(1, (batch, -1))
        before = accumulate(pad(states[:, :, :-1], (0, 0, 1, 0)), rate * CHUNK).flatten(1, 2)
        read = (2 * c[0] * rate.exp()).unsqueeze(-1) * mode
        y = inside + real_product(before, read)
        return y.view(dim, batch, -1).permute(1, 2, 0)[:, :length]

    @property
    def extra_parameters(self) -> int:
        dim = self.shape.dim
        modes = (2 + self.state * (1 + self.directions)) * dim
        return modes + (dim + self.shape.bias) * dim * self.shape.out_proj - self.shape.projections


def powers(rate: Tensor, lags: Tensor) -> Tensor:
    """exp(rate lag), [..., lags]."""
    return torch.exp(rate.unsqueeze(-1) * lags)


def real_product(a: Tensor, b: Tensor) -> Tensor:
    """Re(a @ b) by one real product."""
    return torch.cat([a.real, -a.imag], dim=-1) @ torch.cat([b.real, b.imag], dim=-2)


def accumulate(states: Tensor, rate: Tensor) -> Tensor:
    """s_m + exp(rate) s_{m-1} + exp(2 rate) s_{m-2} + ..., by doubling; states [D, B, chunks, N/2], rate [D, N/2]."""
    reach = 1
    while reach < states.shape[2]:
        earlier = pad(states[:, :, :-reach], (0, 0, reach, 0))
        states = states + (rate * reach).exp()[:, None, None] * earlier
        reach *= 2
    return states
