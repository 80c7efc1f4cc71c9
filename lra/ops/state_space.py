"""Shared base of S5 and LRU: one diagonal state space with all channels as inputs and outputs.

h_i = exp(rate) h_{i-1} + B x_i, y_i = Re C h_i + skip x_i, then GELU and the output projection. Without causality the
same states also run backward, and C reads both. Legend: N complex modes.
"""

from abc import abstractmethod

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu

from lra.ops.convolution import diagonal_scan
from lra.ops.dropout import Dropout
from lra.ops.mixer import Mixer, Shape, without_padding
from lra.ops.precision import at_least_float32, full_precision

SHELL = (
    "GELU and an output projection, no gated linear unit",
    "dropout falls on whole channels only where model.dropout_over says so",
    "the state's parameters have a learning rate and a decay of their own only where train.groups gives them one",
)


class StateSpace(Mixer, abstract=True):
    """Base class of diagonal state spaces.

    Args:
        modes: N.
    """

    can_be_causal = True
    projects_out = True

    def __init__(self, shape: Shape, modes: int) -> None:
        super().__init__(shape)
        self.modes = modes
        self.directions = 1 if self.causal else 2
        self.skip = nn.Parameter(torch.randn(shape.dim))
        self.dropout = Dropout(shape.dropout, shape.dropout_over)
        self.out = nn.Linear(shape.dim, shape.dim, bias=shape.bias) if shape.out_proj else nn.Identity()

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
        u = (x @ torch.cat([b.real, b.imag]).mT).unflatten(-1, (2, -1))
        h = diagonal_scan(u, rate, self.directions)
        c = torch.stack([c.real, -c.imag], dim=1).unflatten(-1, (self.directions, -1)).transpose(1, 2)
        return h.flatten(2) @ c.flatten(1).mT
