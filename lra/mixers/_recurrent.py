"""Define the base classes of recurrent mixers: gated recurrences over heads, and diagonal state spaces (S5, LRU).

Legend: as in `lra.mixers.base`; N is the width of a head's values (H N = qkv_dim), but in `StateSpace` the number of
complex modes.
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
    "the paper is causal; here the outputs of a scan from right to left, with the same weights, are added, and both "
    "scans include the token itself"
)
NORM = "the norm of the heads has no weights, because the weights of the output projection can replace them"


class Recurrent(Mixer, abstract=True):
    """Base class of recurrent mixers.

    If not causal, the recurrence runs from left to right and from right to left with the same weights, and `gated` is
    applied to the sum of the two outputs.

    Padded positions do not change the state. `forward` sets the inputs of the recurrence to zero at these positions,
    and where a bias or a sigmoid would turn zero into another number, `recurrence` multiplies by `real` or masks with
    it. So nothing is added to the state, and the log decay of 0 is a decay of 1.
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
        """Return the inputs [B, L, .] of the recurrence for x [B, L, D]; `forward` zeroes them at padded positions."""

    @abstractmethod
    def recurrence(self, inputs: Sequence[Tensor], real: Tensor) -> Tensor:
        """Return causal outputs [B, H, L, N] for `inputs`; real [B, L, 1] is 1 at real and 0 at padded positions."""

    def forward(self, x: Tensor, key_mask: Tensor | None = None) -> Tensor:
        inputs, gate = self.inputs(x), self.gate(x)
        with full_precision(x.device):
            parts = [at_least_float32(part) for part in inputs]  # sums over all positions need fp32
            real = torch.ones_like(parts[0][..., :1])
            *parts, real = (without_padding(part, key_mask) for part in (*parts, real))
            y = self.gated(self.passes(parts, real), at_least_float32(gate))
        return self.out(y)

    def passes(self, inputs: Sequence[Tensor], real: Tensor) -> Tensor:
        """Return the outputs [B, H, L, N] from left to right; if not causal, add those from right to left."""
        if self.causal:
            return self.recurrence(inputs, real)
        return both_ways(lambda *parts: self.recurrence(parts[:-1], parts[-1]), *inputs, real)

    def gated(self, y: Tensor, gate: Tensor) -> Tensor:
        """Return the input [B, L, H N] of the output projection, from y [B, H, L, N] and gate [B, L, H N]."""
        return silu(gate) * merge_heads(self.normed(y))

    def normed(self, y: Tensor) -> Tensor:
        """Return y / sqrt(mean of y^2 + eps), the mean being over the last axis."""
        return rms_norm(y, y.shape[-1:], eps=self.norm_eps)


def check_ends(option: str, low: float, high: float) -> None:
    """Raise UserError if an attention's option `{option}_min` is above `{option}_max`."""
    if low > high:
        raise UserError(f"attention.{option}_min={low}: expected at most attention.{option}_max={high}")


def log_uniform(option: str, low: float, high: float, size: int) -> Tensor:
    """Return the logarithms [size] of numbers drawn log-uniformly from `low` to `high`.

    Raise UserError if `low`, option `{option}_min`, is above `high`, option `{option}_max`.
    """
    check_ends(option, low, high)
    return math.log(low) + (math.log(high) - math.log(low)) * torch.rand(size)


class DecaySteps(nn.Module):
    """Layer that computes the decay exp(-A dt) of every head, with dt = softplus(x W + c).

    Initially A is uniform from `a_min` to `a_max`, and softplus(c) is log-uniform from `dt_min` to `dt_max`.
    """

    def __init__(self, config: MixerConfig, *, a_min: float, a_max: float, dt_min: float, dt_max: float) -> None:
        super().__init__()
        check_ends("a", a_min, a_max)
        self.project = nn.Linear(config.dim, config.heads, bias=False)
        start = log_uniform("dt", dt_min, dt_max, config.heads).exp()
        self.bias = nn.Parameter(start + torch.log(-torch.expm1(-start)))  # so that softplus(bias) = start
        self.log_a = nn.Parameter((a_min + (a_max - a_min) * torch.rand(config.heads)).log())

    def forward(self, projected: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
        """Return dt and the log decay -A dt, both [B, H, L, 1] and zero at padded positions.

        projected = x W [B, L, H]; real [B, L, 1] is 1 at real and 0 at padded positions.
        """
        dt = (softplus(projected + self.bias) * real).transpose(1, 2).unsqueeze(-1)
        return dt, -self.log_a.exp()[:, None, None] * dt


SHELL = (
    "GELU and an output projection, no gated linear unit",
    "dropout is on whole channels only with model.dropout_over=channels",
    "the state's parameters have a separate learning rate and weight decay only if train.groups sets them",
)


class StateSpace(Mixer, abstract=True):
    """Base class of diagonal state spaces in which every state reads all channels.

    h_i = exp(rate) h_{i-1} + B x_i, y_i = Re(C h_i) + skip x_i, then GELU and the output projection. If not causal, the
    same recurrence also runs from right to left, and C reads the states of both directions.

    Args:
        modes: number N of complex states h.
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
        """Return Re(C h) [B, L, D] for x [B, L, D]."""
        rate, b, c = self.system()
        u = (x @ torch.cat([b.real, b.imag]).mT).unflatten(-1, (2, -1))  # [B, L, 2, N]
        h = diagonal_scan(u, rate, self.directions)  # [B, L, directions, 2, N]
        # Re(C h) = Re C Re h - Im C Im h, as one real product over the last three axes of C [D, directions, 2, N].
        c = torch.stack([c.real, -c.imag], dim=1).unflatten(-1, (self.directions, -1)).transpose(1, 2)
        return h.flatten(2) @ c.flatten(1).mT
