"""Packed softmax attention by FlashAttention, whose kernels a reference replaces on a CPU."""

from itertools import pairwise

import pytest
import torch
from test_packing import CHUNK, DROPOUT, check_packed_is_padded, logits_and_gradients, model_for
from torch import Tensor

from lra.mixers import softmax as flash
from lra.ops import packing

CASES = [("pooling=cls", 1), ("pooling=cls", 2), ("pooling=mean", 1)]


def attended(q, k, v, q_starts, k_starts, scale: float, dropout: float, state: Tensor) -> Tensor:
    """Softmax attention of each sequence by itself, with a dropout of its weights that `state` draws."""
    parts = []
    spans = zip(*(pairwise(starts.tolist()) for starts in (q_starts, k_starts)), strict=True)
    for number, ((a, b), (c, d)) in enumerate(spans):
        weights = (torch.einsum("nhd,mhd->hnm", q[a:b], k[c:d]) * scale).softmax(dim=-1)
        drawn = torch.rand(weights.shape, generator=torch.Generator().manual_seed(int(state[0]) + number))
        parts.append(torch.einsum("hnm,mhd->nhd", weights * (drawn >= dropout) / (1 - dropout), v[c:d]))
    return torch.cat(parts)


def forward(q, k, v, q_starts, k_starts, q_longest, k_longest, dropout, causal, debug, *, scale):
    """As `aten._flash_attention_forward`."""
    assert not causal and not debug
    assert q_starts.diff().max() <= q_longest and k_starts.diff().max() <= k_longest
    state = torch.randint(2**31, (2,)).to(torch.uint64)
    out = attended(q, k, v, q_starts, k_starts, scale, dropout, state)
    return out, torch.zeros(q.shape[1], len(q)), state, torch.zeros((), dtype=torch.uint64), torch.zeros(0)


def backward(
    grad, q, k, v, out, sums, q_starts, k_starts, q_longest, k_longest, dropout, causal, state, unused, *, scale
):
    """As `aten._flash_attention_backward`."""
    inputs = [x.detach().clone().requires_grad_() for x in (q, k, v)]
    with torch.enable_grad():
        return torch.autograd.grad(attended(*inputs, q_starts, k_starts, scale, dropout, state), inputs, grad)


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
