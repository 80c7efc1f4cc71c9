"""The short convolution before a mixer: what Mamba-2, Gated DeltaNet and Based bring with them, for any other.

Legend: B examples, N positions, D width.
"""

import torch
from torch import Tensor, nn

from lra.ops.convolution import short_convolution


class ShortConvolution(nn.Module):
    """y_i = sum_l w_l x_{i - l} + b for every channel by itself, over `taps` positions: the own one and, where the
    mixer reads no later ones, those before it; else half of the others on each side, one more before. Weights begin as
    PyTorch's convolutions do. Padded positions are read as zeros."""

    def __init__(self, dim: int, taps: int, *, causal: bool) -> None:
        super().__init__()
        self.later = 0 if causal else (taps - 1) // 2
        bound = taps**-0.5
        self.taps = nn.Parameter(torch.empty(dim, taps).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(dim).uniform_(-bound, bound))

    def forward(self, x: Tensor, key_mask: Tensor | None) -> Tensor:
        """x [B, N, D], key_mask [B, N] -> [B, N, D]."""
        if key_mask is not None:
            x = x.masked_fill(~key_mask.unsqueeze(-1), 0)
        return short_convolution(x, self.taps.to(x.dtype), self.later) + self.bias.to(x.dtype)
