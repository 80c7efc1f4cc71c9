"""Packed softmax attention by FlashAttention, whose kernels a reference replaces on a CPU."""

import pytest
import torch
from test_packing import CHUNK, DROPOUT, check_packed_is_padded, logits_and_gradients, model_for
from torch import Tensor

from lra.mixers import softmax as flash
from lra.ops import packing

CASES = [("pooling=cls", 1), ("pooling=cls", 2), ("pooling=mean", 1)]


def weights(q: Tensor, k: Tensor, scale: float, dropout: float, state: int) -> tuple[Tensor, Tensor]:
    """Softmax weights [H, n, m] of q [n, H, Dh] and k [m, H, Dh], and the factors of a dropout on them."""
    scores = torch.einsum("nhd,mhd->hnm", q, k) * scale
    drawn = torch.rand(scores.shape, generator=torch.Generator().manual_seed(state))
    return scores.softmax(dim=-1), (drawn >= dropout).to(scores.dtype) / (1 - dropout)


def forward(q, k, v, q_starts, k_starts, q_longest, k_longest, dropout, causal, debug, *, scale):
    """As `aten._flash_attention_forward`, a sequence at a time."""
    assert not causal and not debug
    out, sums = torch.full_like(q, torch.nan), torch.zeros(q.shape[1], len(q))
    state = torch.randint(2**31, (2,)).to(torch.uint64)
    for number, (a, b, c, d) in enumerate(pieces(q_starts, k_starts)):
        assert b - a <= q_longest and d - c <= k_longest
        attention, kept = weights(q[a:b], k[c:d], scale, dropout, int(state[0]) + number)
        out[a:b] = torch.einsum("hnm,mhd->nhd", attention * kept, v[c:d])
    return out, sums, state, torch.zeros((), dtype=torch.uint64), torch.zeros(0)


def backward(
    grad, q, k, v, out, sums, q_starts, k_starts, q_longest, k_longest, dropout, causal, state, unused, *, scale
):
    """As `aten._flash_attention_backward`."""
    inputs = [x.detach().clone().requires_grad_() for x in (q, k, v)]
    with torch.enable_grad():
        parts = []
        for number, (a, b, c, d) in enumerate(pieces(q_starts, k_starts)):
            attention, kept = weights(inputs[0][a:b], inputs[1][c:d], scale, dropout, int(state[0]) + number)
            parts.append(torch.einsum("hnm,mhd->nhd", attention * kept, inputs[2][c:d]))
        return torch.autograd.grad(torch.cat(parts), inputs, grad)


def pieces(q_starts: Tensor, k_starts: Tensor) -> list[tuple[int, int, int, int]]:
    """First and last rows of each sequence of q and k."""
    (a, c) = (starts.tolist() for starts in (q_starts, k_starts))
    return list(zip(a[:-1], a[1:], c[:-1], c[1:], strict=True))


@pytest.fixture
def reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "CHUNK", CHUNK)
    monkeypatch.setattr(flash, "FORWARD", forward)
    monkeypatch.setattr(flash, "BACKWARD", backward)
    monkeypatch.setattr(flash, "has_flash", lambda *_: True)


@pytest.mark.usefixtures("reference")
@pytest.mark.parametrize(("pooling", "documents"), CASES)
def test_packed_batches_equal_padded_ones(pooling: str, documents: int) -> None:
    check_packed_is_padded(model_for("softmax", [], "model.dropout=0", f"model.{pooling}", documents=documents))


@pytest.mark.usefixtures("reference")
def test_noise_follows_from_seed_step_and_layer_alone() -> None:
    model = model_for("softmax", [], *DROPOUT, documents=1)
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first = logits_and_gradients(model, pack=True)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(6)
    assert all(map(torch.equal, first, logits_and_gradients(model, pack=True)))
    assert not torch.equal(first[0], logits_and_gradients(model, pack=True, step=4)[0])
