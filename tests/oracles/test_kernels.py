"""Against performer-pytorch 1.1.4."""

import pytest
from support import mixer_of, noise, same
from torch import Tensor

pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("ignore")]


def heads(length: int, spread: float = 1.0) -> list[Tensor]:
    """q, k, v of 2 examples and 3 heads of width 5."""
    return [(noise(2, 3, length, 5, seed=seed) * spread).requires_grad_() for seed in (1, 2, 3)]


@pytest.mark.parametrize("spread", [0.5, 1, 2])
def test_favor_is_that_of_the_library(spread: float) -> None:
    """The library is called with eps=0, because it adds eps to every feature and our mixer does not."""
    lib = pytest.importorskip("performer_pytorch.performer_pytorch")
    mixer = mixer_of("performer", "attention.features=17", "attention.scale=head_dim", max_positions=71)
    q, k, v = inputs = heads(71, spread)
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
    q, k, v = inputs = heads(length)
    phi_q, phi_k = (
        lib.softmax_kernel(x, projection_matrix=mixer.projection, is_query=is_query, eps=0)
        for x, is_query in ((q, True), (k, False))
    )
    expected = lib.causal_linear_attention_noncuda(phi_q, phi_k, v, eps=0)
    same(mixer.attend(q, k, v, None), expected, inputs, 1e-6)
