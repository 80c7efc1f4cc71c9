"""The feed-forward net of a block."""

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import gelu, linear

from lra.ops.dropout import Dropout, Over, zero_
from lra.ops.packing import Packed
from lra.ops.precision import autocast_dtype

ACTIVATIONS = {"gelu": nn.GELU, "relu": nn.ReLU}


class FeedForward(nn.Sequential):
    """Linear, activation, dropout, Linear, dropout; `output_gelu` follows the second Linear (authors, May 2022)."""

    def __init__(
        self,
        dim: int,
        hidden: int,
        dropout: float,
        *,
        dropout_over: Over,
        activation: str,
        output_gelu: bool,
        bias: bool,
    ) -> None:
        drops = [Dropout(dropout, dropout_over) for _ in range(2)]
        inner = [nn.Linear(dim, hidden, bias=bias), ACTIVATIONS[activation](), drops[0]]
        outer = [nn.Linear(hidden, dim, bias=bias), *([nn.GELU()] if output_gelu else []), drops[1]]
        super().__init__(*inner, *outer)

    def forward(self, x: Tensor, packed: Packed | None = None) -> Tensor:
        """Map x [B, N, D], or packed rows [T, D], position by position."""
        x = x.to(autocast_dtype(x))
        first, activation, inner, second, *others = self
        if isinstance(activation, nn.GELU) and len(others) == 1 and inner.draws_places(x):
            before, scale = first(x), inner.scale * others[0].scale
            hidden = _GeluDrop.apply(before, inner.places(before, packed))
            bias = None if second.bias is None else second.bias * others[0].scale
            return others[0](linear(hidden, second.weight * scale, bias), packed, scaled=False)
        for layer in self:
            x = layer(x, packed) if isinstance(layer, Dropout) else layer(x)
        return x


class _GeluDrop(torch.autograd.Function):
    """GELU, but zero at flat places; on a CPU the scales of both dropouts are cheaper in the second Linear."""

    @staticmethod
    def forward(ctx, x: Tensor, places: Tensor) -> Tensor:
        ctx.save_for_backward(x, places)
        return zero_(gelu(x), places)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:
        x, places = ctx.saved_tensors
        grad = zero_(grad.contiguous(), places)  # in place: the Linear that made it is its only owner
        return torch.ops.aten.gelu_backward.grad_input(grad, x, grad_input=grad), None
