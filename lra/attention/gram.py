"""The products of the Gram form of SimpleAttention: X^T X, and the small ones after it.

On a CPU they round less than products in fp32, which add up a whole sum in one chain; an error here meets every
position, where those of the textbook form's projections average out.
"""

import torch
from torch import Tensor

from lra.attention import at_least_float32

BAND = 64  # rows of a Gram matrix that a CPU computes at a time
POSITIONS, TERMS = 384, 32  # that it adds up in one chain: of the sums over positions, and of the small products' sums


def gram_by_bands(x: Tensor) -> Tensor:
    """x [B, L, D] -> x^T x [B, D, D], by bands of rows from the diagonal on; the rest is the mirror image."""
    found = x.new_empty(len(x), x.shape[2], x.shape[2])
    for start in range(0, x.shape[2], BAND):
        band = slice(start, start + BAND)
        multiply_in_pieces(x[:, :, band].transpose(1, 2), x[:, :, start:], POSITIONS, found[:, band, start:])
        found[:, band, :start] = found[:, :start, band].transpose(1, 2)
    return found


def multiply_in_pieces(a: Tensor, b: Tensor, size: int, found: Tensor) -> None:
    """a [B, M, K] @ b [B, K, N] into `found`, as a sum of sums of `size` terms: rounds less than one chain of K."""
    for start in range(0, b.shape[1], size):
        piece = slice(start, start + size)
        torch.baddbmm(found, a[:, :, piece], b[:, piece], beta=min(start, 1), out=found)


class Gram(torch.autograd.Function):
    """x [B, L, D] -> x^T x [B, D, D], in fp32 or higher; the backward pass is one product, since it is symmetric.

    A CPU sums products of bf16 in fp32, too, but rounds the result to bf16.
    """

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        if x.device.type == "cuda" and x.dtype == torch.bfloat16:
            return torch.bmm(x.transpose(1, 2), x, out_dtype=torch.float32)
        if x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64):
            return gram_by_bands(x)
        return at_least_float32(x.transpose(1, 2) @ x)

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return x @ (grad + grad.transpose(1, 2)).to(x.dtype)


class Product(torch.autograd.Function):
    """a [M, K] @ b [K, N] of matrices that do not grow with the length."""

    @staticmethod
    def forward(ctx, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        return small_product(a, b)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, Tensor]:
        a, b = ctx.saved_tensors
        by_b = small_product(a.T, grad) if b.stride(1) == 1 else small_product(grad.T, a).T  # in memory as b is
        return small_product(grad, b.T), by_b


def small_product(a: Tensor, b: Tensor) -> Tensor:
    """a @ b; in pieces on a CPU."""
    if a.device.type != "cpu":
        return a @ b
    found = a.new_empty(1, len(a), b.shape[1])
    multiply_in_pieces(a.unsqueeze(0), b.unsqueeze(0), TERMS, found)
    return found.squeeze(0)


class ProductByHead(torch.autograd.Function):
    """a [H, M, K] @ b [H, K, N], neither of which grows with the length.

    A CPU computes it in float64, a head at a time, which stays in its cache.
    """

    @staticmethod
    def forward(ctx, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        if a.device.type != "cpu":
            return a @ b
        found = a.new_empty(len(a), a.shape[1], b.shape[2])
        for one, two, both in zip(a, b, found, strict=True):
            both.copy_(few_rows_first(one.double(), two.double()))
        return found

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, Tensor]:
        a, b = ctx.saved_tensors
        if a.device.type != "cpu":
            return grad @ b.transpose(1, 2), a.transpose(1, 2) @ grad
        by_a, by_b = torch.empty_like(a), torch.empty_like(b)
        for one, two, both, by_one, by_two in zip(a, b, grad, by_a, by_b, strict=True):
            both = both.double()
            by_one.copy_(few_rows_first(both, two.double().T))
            by_two.copy_(few_rows_first(one.double().T, both))
        return by_a, by_b


def few_rows_first(a: Tensor, b: Tensor) -> Tensor:
    """a [M, K] @ b [K, N], computed with the fewer rows in front: the other way round takes up to twice the time."""
    return (b.T @ a.T).T if len(a) > b.shape[1] else a @ b


def plus_outer(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """x [H, M, N] + a [H, M] b^T [H, N], in the dtype of x."""
    return torch.baddbmm(x, a.unsqueeze(2).to(x), b.unsqueeze(1).to(x))
