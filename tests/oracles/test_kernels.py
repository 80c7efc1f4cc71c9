"""Against performer-pytorch 1.1.4."""

import pytest
import torch
from support import mixer_of
from torch import Tensor

pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("ignore")]


def heads(length: int, spread: float = 1.0) -> list[Tensor]:
    """q, k, v of 2 examples and 3 heads of width 5."""
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(2, 3, length, 5, dtype=torch.float64, generator=generator) * spread for _ in range(3)]


def same(actual: Tensor, expected: Tensor, inputs: list[Tensor], tolerance: float) -> None:
    """Values, and the gradients of a sum of squares."""
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)
    gradients = torch.autograd.grad(actual.square().sum(), inputs)
    expected_gradients = torch.autograd.grad(expected.square().sum(), inputs)
    for mine, theirs in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=10 * tolerance, atol=10 * tolerance)


@pytest.mark.parametrize("spread", [0.5, 1, 2])
def test_favor(spread: float) -> None:
    """With eps=0 there: the library adds eps to every feature, our mixer does not."""
    lib = pytest.importorskip("performer_pytorch.performer_pytorch")
    mixer = mixer_of("performer", "attention.features=17", "attention.scale=head_dim", max_positions=71)
    q, k, v = inputs = [x.requires_grad_() for x in heads(71, spread)]
    phi_q, phi_k = (
        lib.softmax_kernel(x, projection_matrix=mixer.projection, is_query=is_query, eps=0)
        for x, is_query in ((q, True), (k, False))
    )
    same(mixer.attend(q, k, v, None), lib.linear_attention(phi_q, phi_k, v), inputs, 1e-6)


@pytest.mark.parametrize("length", [77, 131, 257])
def test_causal_favor(length: int) -> None:
    lib = pytest.importorskip("performer_pytorch.performer_pytorch")
    mixer = mixer_of(
        "performer", "attention.features=17", "attention.scale=head_dim", max_positions=length, causal=True
    )
    q, k, v = inputs = [x.requires_grad_() for x in heads(length)]
    phi_q, phi_k = (
        lib.softmax_kernel(x, projection_matrix=mixer.projection, is_query=is_query, eps=0)
        for x, is_query in ((q, True), (k, False))
    )
    expected = lib.causal_linear_attention_noncuda(phi_q, phi_k, v, eps=0)
    same(mixer.attend(q, k, v, None), expected, inputs, 1e-6)
