"""Base classes of recurrent mixers: gated recurrences over heads, and diagonal state spaces (S5 and LRU).

Legend: as in `lra.mixers`; N is the width of a head's values with H N = qkv_dim, or the number of complex modes.
"""

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, rms_norm, silu, softplus

from lra.core.errors import UserError
from lra.mixers.base import Mixer, MixerConfig, merge_heads, project_in, project_out, without_padding
from lra.ops.convolution import diagonal_scan
from lra.ops.device import at_least_float32, full_precision
from lra.ops.dropout import Dropout
from lra.ops.scan import both_ways

TWO_SIDED = (
    "the paper is causal; here a backward pass with the same weights is added, and both passes count the token itself"
)
NORM = "the norm of the heads has no weights, which those of the output projection can hold"


class Recurrent(Mixer, abstract=True):
    """Base class of recurrent mixers.

    Without causality the recurrence runs forward and backward with the same weights, and the norm is applied to the
    sum.

    Padding changes no state: `forward` sets the inputs at padded positions to zero, and where a bias or a sigmoid would
    still give them an effect, `recurrence` removes it by `real`. So nothing is added to the state, and a log decay of 0
    is a decay of 1.
    """

    can_be_causal = True
    projects_out = True

    def __init__(self, config: MixerConfig, *, norm_eps: float) -> None:
        super().__init__(config)
        self.norm_eps = norm_eps
        self.query = project_in(config)
        self.key = project_in(config)
        self.value = project_in(config)
        self.gate = project_in(config)
        self.out = project_out(config)
        if not config.causal:
            self.info = replace(self.info, deviations=(*self.info.deviations, TWO_SIDED))

    @abstractmethod
    def inputs(self, x: Tensor) -> tuple[Tensor, ...]:
        """Return the inputs [B, L, .] of the recurrence from x [B, L, D]; they are zeroed at padded positions."""

    @abstractmethod
    def recurrence(self, inputs: Sequence[Tensor], real: Tensor) -> Tensor:
        """Return causal outputs [B, H, L, N] of `inputs`; real [B, L, 1] is 1 at real and 0 at padded positions."""

    def forward(self, x: Tensor, key_mask: Tensor | None = None) -> Tensor:
        inputs, gate = self.inputs(x), self.gate(x)
        with full_precision(x.device):
            parts = [at_least_float32(part) for part in inputs]  # sums over all positions need fp32
            real = torch.ones_like(parts[0][..., :1])
            *parts, real = (without_padding(part, key_mask) for part in (*parts, real))
            y = self.gated(self.passes(parts, real), at_least_float32(gate))
        return self.out(y)

    def passes(self, inputs: Sequence[Tensor], real: Tensor) -> Tensor:
        """Return the outputs of the forward pass; without causality, plus those of the backward pass."""
        if self.causal:
            return self.recurrence(inputs, real)
        return both_ways(lambda *parts: self.recurrence(parts[:-1], parts[-1]), *inputs, real)

    def gated(self, y: Tensor, gate: Tensor) -> Tensor:
        """Return the input of the output projection from y [B, H, L, N] and the gate's projection [B, L, H N]."""
        return silu(gate) * merge_heads(self.normed(y))

    def normed(self, y: Tensor) -> Tensor:
        """Return y / sqrt(mean of y^2 + eps), the mean being over the last axis."""
        return rms_norm(y, y.shape[-1:], eps=self.norm_eps)


def check_ends(option: str, low: float, high: float) -> None:
    """Raise UserError if an attention's option `{option}_min` is above `{option}_max`."""
    if low > high:
        raise UserError(f"attention.{option}_min={low}: expected at most attention.{option}_max={high}")


def log_uniform(option: str, low: float, high: float, size: int) -> Tensor:
    """Draw the logarithms of numbers that are log-uniform between the options `{option}_min` and `{option}_max`."""
    check_ends(option, low, high)
    return math.log(low) + (math.log(high) - math.log(low)) * torch.rand(size)


class DecaySteps(nn.Module):
    """Decay exp(-A dt) of every head with dt = softplus(x W + c).

    Initially A is uniform between `a_min` and `a_max`, and softplus(c) log-uniform between `dt_min` and `dt_max`.
    """

    def __init__(self, config: MixerConfig, *, a_min: float, a_max: float, dt_min: float, dt_max: float) -> None:
        super().__init__()
        check_ends("a", a_min, a_max)
        self.project = nn.Linear(config.dim, config.heads, bias=False)
        start = log_uniform("dt", dt_min, dt_max, config.heads).exp()
        self.bias = nn.Parameter(start + torch.log(-torch.expm1(-start)))  # the inverse of softplus
        self.log_a = nn.Parameter((a_min + (a_max - a_min) * torch.rand(config.heads)).log())

    def forward(self, projected: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
        """Return dt and the log decay [B, H, L, 1] of the projected input; zero at padded positions."""
        dt = (softplus(projected + self.bias) * real).transpose(1, 2).unsqueeze(-1)
        return dt, -self.log_a.exp()[:, None, None] * dt


SHELL = (
    "GELU and an output projection, no gated linear unit",
    "dropout falls on whole channels only where model.dropout_over says so",
    "the state's parameters have a learning rate and a decay of their own only where train.groups gives them one",
)


class StateSpace(Mixer, abstract=True):
    """Base class of diagonal state spaces with all channels as inputs and outputs.

    h_i = exp(rate) h_{i-1} + B x_i, y_i = Re C h_i + skip x_i, then GELU and the output projection. Without causality
    the same states also run backward, and C reads both.

    Args:
        modes: N.
    """

    can_be_causal = True
    projects_out = True

    def __init__(self, config: MixerConfig, modes: int) -> None:
        super().__init__(config)
        self.modes = modes
        self.directions = 1 if self.causal else 2
        self.skip = nn.Parameter(torch.randn(config.dim))
        self.dropout = Dropout(config.dropout, config.dropout_over)
        self.out = nn.Linear(config.dim, config.dim, bias=config.bias) if config.out_proj else nn.Identity()

    @abstractmethod
    def system(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return rate [N], B [N, D] and C [D, directions N], complex, with Re rate < 0."""

    def forward(self, x: Tensor, key_mask: Tensor | None = None) -> Tensor:
        x = without_padding(x, key_mask)
        with full_precision(x.device):
            x = at_least_float32(x)
            y = self.read(x) + self.skip * x
        return self.out(self.dropout(gelu(y)))

    def read(self, x: Tensor) -> Tensor:
        """Return Re C h [B, L, D]."""
        rate, b, c = self.system()
        u = (x @ torch.cat([b.real, b.imag]).mT).unflatten(-1, (2, -1))  # [B, L, 2, N]
        h = diagonal_scan(u, rate, self.directions)  # [B, L, directions, 2, N]
        c = torch.stack([c.real, -c.imag], dim=1).unflatten(-1, (self.directions, -1)).transpose(1, 2)
        return h.flatten(2) @ c.flatten(1).mT
