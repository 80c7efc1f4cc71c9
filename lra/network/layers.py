"""Define the norms and the feed-forward net of a block.

Legend: B documents, N positions, D width.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, linear

from lra.network.architecture import Architecture
from lra.ops.device import at_least_float32, autocast_dtype
from lra.ops.dropout import Dropout
from lra.ops.packing import Packed

ACTIVATIONS = {"gelu": nn.GELU, "relu": nn.ReLU}
MOMENTUM = 0.1  # weight of a new batch in the running mean and variance; PyTorch's default


class BatchNorm(nn.Module):
    """Batch normalisation of every feature over the real positions of a whole batch (Ioffe and Szegedy 2015).

    In evaluation the running mean and variance are used.
    """

    mean: Tensor
    variance: Tensor

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))
        self.bias = nn.Parameter(torch.zeros(dim))
        self.register_buffer("mean", torch.zeros(dim))
        self.register_buffer("variance", torch.ones(dim))

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Normalise x [B, N, D], given mask [B, N], True at real positions."""
        wide, mean, variance = at_least_float32(x), self.mean, self.variance
        if self.training:
            real = torch.ones_like(wide[..., :1]) if mask is None else mask.unsqueeze(-1).to(wide.dtype)  # [B, N, 1]
            count = real.sum()
            mean = (wide * real).sum(dim=(0, 1)) / count  # [D]
            variance = ((wide - mean).square() * real).sum(dim=(0, 1)) / count  # [D]
            with torch.no_grad():
                self.mean.lerp_(mean, MOMENTUM)
                # As in PyTorch, the batch is normalised by its biased variance, but the running variance is unbiased.
                self.variance.lerp_(variance * count / (count - 1).clamp(min=1), MOMENTUM)
        return ((wide - mean) * (variance + self.eps).rsqrt() * self.weight + self.bias).to(x.dtype)


def make_norm(architecture: Architecture, *, there: bool) -> nn.Module:
    """Create a norm layer of the model's width, or the identity if `there` is False."""
    if not there:
        return nn.Identity()
    kind = BatchNorm if architecture.norm_over == "batch" else nn.LayerNorm
    return kind(architecture.dim, architecture.norm_eps)


def normed(norm: nn.Module, x: Tensor, mask: Tensor | None) -> Tensor:
    """Apply a norm to x [..., D]; only batch normalisation, which takes x [B, N, D], uses mask [B, N]."""
    return norm(x, mask) if isinstance(norm, BatchNorm) else norm(x)


class FeedForward(nn.Sequential):
    """Feed-forward net: Linear to `hidden` units, activation, dropout, Linear to the model's width, dropout."""

    def __init__(self, architecture: Architecture, hidden: int) -> None:
        dim, bias = architecture.dim, architecture.bias
        inner, outer = (Dropout(architecture.dropout, architecture.dropout_over) for _ in range(2))
        activation = ACTIVATIONS[architecture.feed_forward_activation]()
        super().__init__(nn.Linear(dim, hidden, bias=bias), activation, inner, nn.Linear(hidden, dim, bias=bias), outer)

    def forward(self, x: Tensor, packed: Packed | None = None) -> Tensor:
        """Map x [B, N, D], or packed rows [R, D], position by position."""
        x = x.to(autocast_dtype(x))
        first, activation, inner, second, outer = self
        if isinstance(activation, nn.GELU) and inner.draws_indices(x, packed):
            # On a CPU: write zeros at drawn indices instead of multiplying by a mask, and apply both dropout scales to
            # the weights of the second Linear instead of to activations.
            before = first(x)  # [B, N, hidden]
            # [B N hidden], flat; in place, because the gradient of GELU reads its input, not its output.
            hidden = gelu(before.flatten()).index_fill_(0, inner.indices(before), 0)
            # The inner dropout comes before the bias, which therefore gets the outer scale alone.
            bias = None if second.bias is None else second.bias * outer.scale
            y = linear(hidden.view(-1, before.shape[-1]), second.weight * (inner.scale * outer.scale), bias)
            return y.flatten().index_fill(0, outer.indices(x), 0).view(x.shape)  # [B N, D] -> [B, N, D]
        for layer in self:
            x = layer(x, packed) if isinstance(layer, Dropout) else layer(x)
        return x
