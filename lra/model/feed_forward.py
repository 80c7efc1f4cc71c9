"""The feed-forward net of a block as one function, which keeps and moves less than its layers one by one.

Legend: B examples, N positions, D width, F hidden width, T = B N.
"""

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear

from lra.core.dropout import Dropout, Dropped, apart, scaled, zero_
from lra.core.hooks import hooked
from lra.core.precision import autocast_dtype

ACTIVATIONS = {"gelu": nn.GELU, "relu": nn.ReLU}


class FeedForward(nn.Sequential):
    """Linear, activation, dropout, Linear, dropout; `output_gelu` follows the second Linear (authors, May 2022).

    Without that second activation the layers run as one: the scale of both dropouts goes into the second Linear, and
    what they drop and the derivative of the activation are set in place. Where a hook waits at a Linear they run one
    by one.
    """

    def __init__(
        self, dim: int, hidden: int, dropout: float, *, activation: str, output_gelu: bool, bias: bool
    ) -> None:
        inner = [nn.Linear(dim, hidden, bias=bias), ACTIVATIONS[activation](), Dropout(dropout)]
        outer = [nn.Linear(hidden, dim, bias=bias), *([nn.GELU()] if output_gelu else []), Dropout(dropout)]
        super().__init__(*inner, *outer)
        self.as_one = not output_gelu

    def forward(self, x: Tensor) -> Tensor:
        """[B, N, D] -> [B, N, D]."""
        if not self.as_one or hooked(self[0], self[3]):
            return super().forward(x)
        first, activation, inner, second, outer = self
        bias = None if second.bias is None else second.bias * outer.scale
        dtype, weights = autocast_dtype(x), (first.weight, first.bias, second.weight, bias)
        weights = [None if value is None else value.to(dtype) for value in weights]
        scale = inner.scale * outer.scale
        dropped = inner.draw((*x.shape[:-1], len(first.weight)), x.device), outer.draw(x.shape, x.device)
        return _FeedForward.apply(x.flatten(0, -2).to(dtype), *weights, scale, *dropped, activation).view(x.shape)


class _FeedForward(torch.autograd.Function):
    """drop(scale W2 drop(f(W1 x + b1)) + b2), x [T, D], W1 [F, D], W2 [D, F]; the drops only set zeros."""

    @staticmethod
    def forward(
        ctx,
        x: Tensor,
        w1: Tensor,
        b1: Tensor | None,
        w2: Tensor,
        b2: Tensor | None,
        scale: float,
        inner: Dropped | None,
        outer: Dropped | None,
        activation: nn.Module,
    ) -> Tensor:
        before = linear(x, w1, b1)
        hidden = zero_(activation(before), inner)
        (inner_places, ctx.inner), (outer_places, ctx.outer) = apart(inner), apart(outer)
        ctx.save_for_backward(x, w1, w2, before, hidden, inner_places, outer_places)
        ctx.relu, ctx.scale = isinstance(activation, nn.ReLU), scale
        return zero_(scaled_product(scale, hidden, w2.T, b2), outer)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, w1, w2, before, hidden, inner, outer = ctx.saved_tensors
        inner, outer = ctx.inner or inner, ctx.outer or outer
        need_x, need_w1, need_b1, need_w2, need_b2, *_ = ctx.needs_input_grad
        d_x = d_w1 = d_b1 = d_w2 = d_b2 = None
        if outer is not None:
            grad = scaled(grad, outer, 1.0)
        if need_w2:
            d_w2 = scaled_product(ctx.scale, grad.T, hidden)
        if need_b2:
            d_b2 = grad.sum(dim=0)
        if need_x or need_w1 or need_b1:
            inside = zero_(scaled_product(ctx.scale, grad, w2), inner)
            if ctx.relu:
                torch.ops.aten.threshold_backward.grad_input(inside, before, 0, grad_input=inside)
            else:
                torch.ops.aten.gelu_backward.grad_input(inside, before, grad_input=inside)
            if need_w1:
                d_w1 = inside.T @ x
            if need_b1:
                d_b1 = inside.sum(dim=0)
            if need_x:
                d_x = inside @ w1
        return d_x, d_w1, d_b1, d_w2, d_b2, None, None, None, None


def scaled_product(scale: float, a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
    """scale a @ b + bias in one product."""
    if bias is None:
        return torch.addmm(a.new_empty(1), a, b, beta=0, alpha=scale)
    return torch.addmm(bias, a, b, alpha=scale)
