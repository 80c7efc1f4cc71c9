"""The norms of a model.

Legend: B examples, N positions, D width.
"""

import torch
from torch import Tensor, nn

from lra.model.architecture import Architecture
from lra.ops.precision import at_least_float32

MOMENTUM = 0.1  # of the running moments; torch's


class BatchNorm(nn.Module):
    """Batch normalisation (Ioffe and Szegedy 2015): every feature over all real positions of what it is given at once,
    which is a whole batch in training; in evaluation by running moments."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))
        self.bias = nn.Parameter(torch.zeros(dim))
        self.register_buffer("mean", torch.zeros(dim))
        self.register_buffer("variance", torch.ones(dim))

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """x [B, N, D], mask [B, N] True at real positions -> [B, N, D] in the type of x."""
        wide = at_least_float32(x)
        mean, variance = self._moments(wide, mask) if self.training else (self.mean, self.variance)
        return ((wide - mean) * (variance + self.eps).rsqrt() * self.weight + self.bias).to(x.dtype)

    def _moments(self, x: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Mean and variance [D] over the real positions, which the running ones follow; nothing here waits for an
        accelerator to count them."""
        real = torch.ones_like(x[..., :1]) if mask is None else mask.unsqueeze(-1).to(x.dtype)
        count = real.sum()
        mean = (x * real).sum(dim=(0, 1)) / count
        variance = ((x - mean).square() * real).sum(dim=(0, 1)) / count
        with torch.no_grad():
            self.mean.lerp_(mean, MOMENTUM)
            self.variance.lerp_(variance * count / (count - 1).clamp(min=1), MOMENTUM)
        return mean, variance


def make_norm(architecture: Architecture, *, there: bool) -> nn.Module:
    """A norm of the width of the model, or nothing."""
    if not there:
        return nn.Identity()
    kind = BatchNorm if architecture.norm_over == "batch" else nn.LayerNorm
    return kind(architecture.dim, architecture.norm_eps)


def normed(norm: nn.Module, x: Tensor, mask: Tensor | None) -> Tensor:
    """x [B, N, D] after the norm; `mask` [B, N]: the positions that one over the batch counts."""
    return norm(x, mask) if isinstance(norm, BatchNorm) else norm(x)
