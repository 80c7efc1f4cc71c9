"""What lies between the products of a block, in one pass over memory each where an accelerator has Triton; elsewhere,
and where torch.compile fuses by itself, the plain operations one after another.

The kernels are in `fused_kernels`. They meet the noise of `dropout`, and make it again in the backward pass.
"""

from types import ModuleType

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from lra.ops.dropout import Dropout
from lra.ops.hooks import hooked
from lra.ops.noise import Noise


def kernels() -> ModuleType:
    """The module `fused_kernels`, where Triton is installed."""
    from lra.ops import fused_kernels

    return fused_kernels


def at_once(device: torch.device, dropout: Dropout) -> bool:
    """Whether what a dropout belongs to is done by a kernel; those of `fused_kernels` know one order of numbers."""
    return dropout.numbers == "order" and dropout.by_rule(device)


def join(
    x: Tensor,
    branch: Tensor,
    dropout: Dropout | None,
    norm: nn.Module,
    *,
    extra: Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:
    """stream = x + dropout(branch) [+ extra] and norm(stream), all [B, ..., C]; a norm is an nn.LayerNorm or nothing.

    `dtype`: in which all that read norm(stream) compute, so that it need not be written in another.
    """
    if dropout is None or hooked(dropout, norm) or not at_once(x.device, dropout):
        stream = x + (branch if dropout is None else dropout(branch))
        stream = stream if extra is None else stream + extra
        return stream, norm(stream)
    dropped = dropout.draw(branch.shape, branch.device)
    parts = (norm.weight, norm.bias, norm.eps) if isinstance(norm, nn.LayerNorm) else (None, None, 0.0)
    stream, normed = _Join.apply(x, branch, extra, *parts, dropped, dropout.scale if dropped else 1.0, dtype or x.dtype)
    return stream, stream if normed is None else normed


class _Join(torch.autograd.Function):
    """x + drop(scale branch) + extra, and its layer norm; of what it keeps, the stream is of the size of x."""

    @staticmethod
    def forward(
        ctx,
        x: Tensor,
        branch: Tensor,
        extra: Tensor | None,
        weight: Tensor | None,
        bias: Tensor | None,
        eps: float,
        noise: Noise | None,
        scale: float,
        dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor | None]:
        flat = [None if tensor is None else tensor.contiguous().flatten(0, -2) for tensor in (x, branch, extra)]
        norm = None if weight is None else (weight, bias, eps)
        stream, normed, moments = kernels().join(*flat, noise, scale, norm, dtype)
        ctx.save_for_backward(*((stream, moments, weight) if norm else ()))
        ctx.noise, ctx.scale, ctx.extra, ctx.like = noise, scale, extra is not None, branch.dtype
        ctx.set_materialize_grads(False)
        return stream.view(x.shape), None if normed is None else normed.view(x.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx, d_stream: Tensor | None, d_normed: Tensor | None) -> tuple[Tensor | None, ...]:
        given = d_stream if d_normed is None else d_normed
        if given is None:
            return (None,) * 9
        flat = [None if grad is None else grad.contiguous().flatten(0, -2) for grad in (d_stream, d_normed)]
        stream, moments, weight = ctx.saved_tensors or (flat[0], None, None)
        d_x, d_branch, d_weight, d_bias = kernels().join_backward(
            *flat, stream, moments, weight, ctx.noise, ctx.scale, ctx.like
        )
        d_x, d_branch = d_x.view(given.shape), d_branch.view(given.shape)
        return d_x, d_branch, d_x if ctx.extra else None, d_weight, d_bias, None, None, None, None
