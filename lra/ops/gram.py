"""Compute the products of SimpleAttention's Gram form: X^T X about the mean of X, and products of small matrices.

The mean is subtracted because a vector that all positions share would otherwise cost precision. A rounding error in
these matrices affects every position, so a CPU adds partial sums, which rounds less than one chain of fp32 additions.
"""

import torch
from torch import Tensor

from lra.ops.device import at_least_float32

BAND = 64  # number of rows of a Gram matrix that a CPU computes at a time
# A partial sum of a Gram matrix has POSITIONS terms, one per position, and a partial sum of `small_product` has TERMS.
POSITIONS, TERMS = 384, 32


class Moments(torch.autograd.Function):
    """Function that returns the mean m [B, D] of the real positions of x [B, L, D], and their scatter [B, D, D].

    The scatter is the sum of (x_j - m) (x_j - m)^T over real positions j. m is in float64, the scatter in fp32 or
    higher. Both are computed relative to the mean of the first `POSITIONS` positions and then corrected. The
    backward pass needs only one product with x, because the scatter is symmetric.
    """

    @staticmethod
    def forward(ctx, x: Tensor, key_mask: Tensor | None) -> tuple[Tensor, Tensor]:
        by_bands = on_cpu(x) and x.dtype in (torch.float32, torch.float64)
        size = POSITIONS if by_bands else x.shape[1]  # number of positions in a piece
        pieces = x.split(size, dim=1)
        masks = [None] * len(pieces) if key_mask is None else key_mask.split(size, dim=1)
        # [B, 1, D]; any vector near the mean would do, and this one needs no further pass over x.
        near = mean_of_real(pieces[0][:, :POSITIONS], None if masks[0] is None else masks[0][:, :POSITIONS])
        total = x.new_zeros(len(x), 1, x.shape[2], dtype=torch.float64)
        gram = x.new_zeros(len(x), x.shape[2], x.shape[2], dtype=torch.promote_types(x.dtype, torch.float32))
        for piece, mask in zip(pieces, masks, strict=True):
            apart = piece - near  # [B, positions, D]
            zero_padding_(apart, mask)
            total += apart.sum(dim=1, keepdim=True, dtype=gram.dtype)
            add_bands(gram, apart) if by_bands else gram.add_(gram_of(apart))
        if by_bands:  # only the upper triangle is computed
            gram = gram.triu() + gram.triu(1).mT
        count = x.shape[1] if key_mask is None else key_mask.sum(dim=1).clamp(min=1).view(-1, 1, 1)
        shift = total / count  # [B, 1, D]
        mean = near + shift
        ctx.save_for_backward(x, key_mask, mean)
        ctx.count = count
        # sum of (x - m) (x - m)^T = sum of (x - near) (x - near)^T - count shift shift^T
        return mean.squeeze(1), gram - (total.mT @ shift).to(gram.dtype)

    @staticmethod
    def backward(ctx, by_mean: Tensor, by_gram: Tensor) -> tuple[Tensor, None]:
        x, key_mask, mean = ctx.saved_tensors
        twice = (by_gram + by_gram.mT).to(x.dtype)  # [B, D, D]
        # The gradient of x_j is (x_j - m) @ twice + by_mean / count; the terms without x_j are equal for all positions.
        shared = by_mean.unsqueeze(1) / ctx.count - mean @ twice.double()  # [B, 1, D]
        return zero_padding_(torch.baddbmm(shared.to(x.dtype), x, twice), key_mask), None


def zero_padding_(x: Tensor, key_mask: Tensor | None) -> Tensor:
    """Set x [B, L, D] to zero at padded positions, in place, and return x; a CPU writes to these positions only."""
    if key_mask is None:
        return x
    if on_cpu(x) and not torch.compiler.is_compiling():
        x[(~key_mask).nonzero(as_tuple=True)] = 0
        return x
    return x.masked_fill_(~key_mask.unsqueeze(-1), 0)


def mean_of_real(x: Tensor, key_mask: Tensor | None) -> Tensor:
    """Return the mean [B, 1, D] of the real positions of x [B, L, D]; zero if a document has no real positions."""
    if key_mask is None:
        return x.mean(dim=1, keepdim=True)
    real = key_mask.unsqueeze(-1)
    return x.masked_fill(~real, 0).sum(dim=1, keepdim=True) / real.sum(dim=1, keepdim=True).clamp(min=1)


def add_bands(gram: Tensor, x: Tensor) -> None:
    """Add x^T x of x [B, L, D] to the upper triangle of `gram` [B, D, D] in place, one band of rows at a time."""
    for start in range(0, x.shape[2], BAND):
        band = slice(start, start + BAND)
        rows = gram[:, band, start:]
        torch.baddbmm(rows, x[:, :, band].mT, x[:, :, start:], out=rows)


def on_cpu(x: Tensor) -> bool:
    """Return True if x is on a CPU, where products are computed in pieces that fit the cache."""
    return x.device.type == "cpu"


def gram_of(x: Tensor) -> Tensor:
    """Return x^T x [B, D, D] of x [B, L, D], in fp32 or higher."""
    if x.device.type == "cuda" and x.dtype == torch.bfloat16:
        return torch.bmm(x.mT, x, out_dtype=torch.float32)
    return at_least_float32(x.mT @ x)


def product(a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a @ b for matrices without an axis over positions: a [M, K], b [K, N], or a [H, M, K], b [H, K, N].

    `dtype` is the type in which the products over positions are computed. If it is bf16, a CPU multiplies two matrices
    in bf16, and stacks of one matrix per head in fp32. Otherwise a CPU uses `small_product` for two matrices and
    float64 for stacks, which round less than plain fp32 products.
    """
    if dtype == torch.bfloat16 and on_cpu(a):
        return a.to(dtype) @ b.to(dtype) if a.dim() == 2 else a.float() @ b.float()
    return Product.apply(a, b) if a.dim() == 2 else ProductByHead.apply(a, b)


class Product(torch.autograd.Function):
    """`small_product` of a [M, K] and b [K, N] with a gradient."""

    @staticmethod
    def forward(ctx, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        return small_product(a, b)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, Tensor]:
        a, b = ctx.saved_tensors
        by_b = small_product(a.T, grad) if b.stride(1) == 1 else small_product(grad.T, a).T  # in b's memory layout
        return small_product(grad, b.T), by_b


def small_product(a: Tensor, b: Tensor) -> Tensor:
    """Return a [M, K] @ b [K, N]; a CPU adds partial sums of `TERMS` terms."""
    if not on_cpu(a):
        return a @ b
    product = a.new_empty(1, len(a), b.shape[1])
    for start in range(0, len(b), TERMS):
        piece = slice(start, start + TERMS)
        # Ignore `product` for the first piece (beta = 0), because it is not initialised.
        torch.baddbmm(product, a[None, :, piece], b[None, piece], beta=min(start, 1), out=product)
    return product.squeeze(0)


class ProductByHead(torch.autograd.Function):
    """Matrix product a [H, M, K] @ b [H, K, N] with a gradient.

    A CPU computes it in float64, one head at a time, so that the factors of a head stay in the cache.
    """

    @staticmethod
    def forward(ctx, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        if not on_cpu(a):
            return a @ b
        product = a.new_empty(len(a), a.shape[1], b.shape[2])
        for a_head, b_head, of_head in zip(a, b, product, strict=True):
            of_head.copy_(few_rows_first(a_head.double(), b_head.double()))
        return product

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, Tensor]:
        a, b = ctx.saved_tensors
        if not on_cpu(a):
            return grad @ b.transpose(1, 2), a.transpose(1, 2) @ grad
        by_a, by_b = torch.empty_like(a), torch.empty_like(b)
        for a_head, b_head, grad_head, by_a_head, by_b_head in zip(a, b, grad, by_a, by_b, strict=True):
            grad_head = grad_head.double()
            by_a_head.copy_(few_rows_first(grad_head, b_head.double().T))
            by_b_head.copy_(few_rows_first(a_head.double().T, grad_head))
        return by_a, by_b


def few_rows_first(a: Tensor, b: Tensor) -> Tensor:
    """Return a [M, K] @ b [K, N], computed as (b^T a^T)^T if M > N, which is up to twice as fast."""
    return (b.T @ a.T).T if len(a) > b.shape[1] else a @ b
