"""Counted operations against formulas."""

import math
from collections.abc import Callable

import pytest
import torch
from support import mixer_of, noise

from lra.runs.describe import counter


def flops(call: Callable[[], object]) -> int:
    with counter() as counted:
        call()
    return counted.get_total_flops()


def test_counted_operations_of_softmax() -> None:
    """Two products of L L D forward; backward four, and one that forms the weights again."""
    length, dim, batch = 29, 12, 2
    mixer = mixer_of("softmax", dim=dim, qkv_dim=dim, max_positions=length, dropout=0.0, out_proj=True)
    x = noise(batch, length, dim).requires_grad_()
    projections, product = 4 * 2 * batch * length * dim * dim, 2 * batch * length * length * dim
    assert flops(lambda: mixer(x)) == projections + 2 * product
    assert flops(lambda: mixer(x).sum().backward()) == 3 * projections + (2 + 5) * product


def test_counted_operations_of_fourier_transforms() -> None:
    """5 n log2(n) for each, half of it where one side is real; the numbers and axes are those of the signal."""
    real, half, every = torch.randn(3, 32, 7), *(torch.randn(3, n, 7, dtype=torch.complex64) for n in (17, 32))
    for expected, transform in (
        (21 * 5 * 32 * 5 / 2, lambda: torch.fft.rfft(real, dim=1)),
        (21 * 5 * 32 * 5 / 2, lambda: torch.fft.irfft(half, 32, dim=1)),
        (21 * 5 * 32 * 5, lambda: torch.fft.fft(every, dim=1)),
        (21 * 5 * 32 * 5, lambda: torch.fft.ifft(every, dim=1)),
        (3 * 5 * 224 * math.log2(224), lambda: torch.fft.fft2(every)),
    ):
        assert flops(transform) == round(expected)


@pytest.mark.parametrize("reads", [None, 5])
def test_counted_operations_of_the_gram_form(reads: int | None) -> None:
    """Two products of L D D for each document, and small ones, those in pieces as a whole. Where few positions are
    read, no second one: W_q and the state one after the other."""
    length, dim, head, batch = 521, 21, 7, 2
    mixer = mixer_of("simple", "attention.form=gram", dim=dim, qkv_dim=dim, max_positions=length)
    x = noise(batch, length, dim)
    moments = length * dim * dim + dim * dim  # the second moves them to the mean
    state = moments + dim**3 + dim * dim * head + 2 * dim * dim  # W_k G, W_v, and both of the mean
    reading = dim * dim * head + length * dim * dim if reads is None else reads * (dim * dim + dim * head)
    assert flops(lambda: mixer(x, None, reads)) == 2 * batch * (state + reading)
