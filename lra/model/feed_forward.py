"""The feed-forward net of a block as one function, which keeps and moves less than its layers one by one.

Legend: B examples, N positions, D width, F hidden width, T = B N.
"""

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear

from lra.ops import fused
from lra.ops.dropout import Dropout, Dropped, Over, apart, scaled, zero_
from lra.ops.hooks import hooked
from lra.ops.precision import autocast_dtype

ACTIVATIONS = {"gelu": nn.GELU, "relu": nn.ReLU}
NAMES = {False: "gelu", True: "relu"}


class FeedForward(nn.Sequential):
    """Linear, activation, dropout, Linear, dropout; `output_gelu` follows the second Linear (authors, May 2022).

    Without that second activation the layers run as one: the scale of both dropouts goes into the second Linear, and
    what they drop and the derivative of the activation are set in place; on an accelerator by one kernel each way, with
    the first bias. Where a hook waits at a Linear they run one by one.
    """

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
        self.as_one = not output_gelu

    def forward(self, x: Tensor, undropped: bool = False) -> Tensor:
        """[B, N, D] -> [B, N, D]; `undropped`: before the last dropout."""
        if not self.as_one or hooked(self[0], self[3]):
            for layer in list(self)[: -1 if undropped else None]:
                x = layer(x)
            return x
        first, activation, inner, second, outer = self
        last_scale = 1.0 if undropped else outer.scale
        bias = None if second.bias is None else second.bias * last_scale
        dtype, weights = autocast_dtype(x), (first.weight, first.bias, second.weight, bias)
        weights = [None if value is None else value.to(dtype) for value in weights]
        inside = inner.draw((*x.shape[:-1], len(first.weight)), x.device)
        last = None if undropped else outer.draw(x.shape, x.device)
        how = inner.scale * last_scale, inside, last, activation, fused.at_once(x.device, inner)
        return _FeedForward.apply(x.flatten(0, -2).to(dtype), *weights, *how).view(x.shape)


class _FeedForward(torch.autograd.Function):
    """drop(scale W2 drop(f(W1 x + b1)) + b2), x [T, D], W1 [F, D], W2 [D, F]; the drops only set zeros.

    `at_once`: by the kernels of `lra.ops.fused`.
    """

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
        at_once: bool,
    ) -> Tensor:
        ctx.relu, ctx.scale, ctx.at_once = isinstance(activation, nn.ReLU), scale, at_once
        if at_once:
            before = x @ w1.T
            hidden = fused.kernels().activate(before, b1, inner, NAMES[ctx.relu])
        else:
            before = linear(x, w1, b1)
            hidden = zero_(activation(before), inner)
        (inner_places, ctx.inner), (outer_places, ctx.outer) = apart(inner), apart(outer)
        ctx.save_for_backward(x, w1, b1 if at_once else None, w2, before, hidden, inner_places, outer_places)
        return zero_(scaled_product(scale, hidden, w2.T, b2), outer)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, w1, b1, w2, before, hidden, inner, outer = ctx.saved_tensors
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
            inside = scaled_product(ctx.scale, grad, w2)
            if ctx.at_once:
                d_b1 = fused.kernels().activate_backward(inside, before, b1, inner, NAMES[ctx.relu])
            else:
                _activate_backward_(zero_(inside, inner), before, ctx.relu)
                d_b1 = inside.sum(dim=0) if need_b1 else None
            if need_w1:
                d_w1 = inside.T @ x
            if need_x:
                d_x = inside @ w1
        return d_x, d_w1, d_b1, d_w2, d_b2, None, None, None, None, None


def _activate_backward_(grad: Tensor, before: Tensor, relu: bool) -> None:
    if relu:
        torch.ops.aten.threshold_backward.grad_input(grad, before, 0, grad_input=grad)
    else:
        torch.ops.aten.gelu_backward.grad_input(grad, before, grad_input=grad)


def scaled_product(scale: float, a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
    """scale a @ b + bias in one product."""
    if bias is None:
        return torch.addmm(a.new_empty(1), a, b, beta=0, alpha=scale)
    return torch.addmm(bias, a, b, alpha=scale)
