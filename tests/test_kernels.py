"""Attention by feature maps: linear, Performer, cosFormer; and retention, which shares their causal products."""

import math

import pytest
import torch
from support import mixer_of, noise
from torch import Tensor

from lra.mixers import Mixer
from lra.mixers.performer import log_features, projection
from lra.ops.scan import CHUNK

causal_or_not = pytest.mark.parametrize("causal", [False, True])


def heads(length: int, spread: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    """q, k, v of 2 examples and 3 heads of width 5."""
    return tuple(noise(2, 3, length, 5, seed=seed) * spread for seed in (1, 2, 3))


def weights_of(mixer: Mixer, q: Tensor, k: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return the L x L weights of a linear mechanism: its outputs for unit vectors as values."""
    return mixer.attend(q, k, torch.eye(q.shape[-2], dtype=q.dtype).expand(*q.shape[:-2], -1, -1), mask)


def normalised(weights: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
    """Return weights of the keys that may be attended to, divided by their sum."""
    if mask is not None:
        weights = weights * mask[:, None, None, :]
    if causal:
        weights = weights.tril()
    return weights / weights.sum(dim=-1, keepdim=True)


def holes(length: int) -> Tensor:
    """A mask of padding in front, inside and at the end, and one of padding at the end."""
    mask = torch.ones(2, length, dtype=torch.bool)
    mask[0, 0] = mask[0, length // 2] = mask[0, -1] = mask[1, -(length // 3) :] = False
    return mask


def real(weights: Tensor, mask: Tensor, causal: bool) -> Tensor:
    """The rows of queries that have something to attend to."""
    some = mask.cumsum(dim=1) > 0 if causal else mask.any(dim=1, keepdim=True).expand_as(mask)
    return weights.transpose(1, 2)[some]


def elu_plus_one(x: Tensor) -> Tensor:
    return torch.where(x > 0, x + 1, x.exp())


# ---------------------------------------------------------------- maps that have a closed form


@causal_or_not
def test_linear_keeps_the_digits_of_very_negative_inputs(causal: bool) -> None:
    """fp32 values and gradients equal those of float64: elu + 1 is an exponential below zero and cannot overflow."""
    mixer = mixer_of("linear", "attention.eps=1e-30", max_positions=37, causal=causal).float()
    q, k, v = (part.float() for part in heads(37, spread=30))
    q[0, 0, 3, 0], k[0, 1, 5, 0] = 500, 500  # exp(500) is no number of fp32
    in_float64 = [part.double().requires_grad_() for part in (q, k, v)]
    phi_q, phi_k = map(elu_plus_one, in_float64[:2])
    expected = normalised(phi_q @ phi_k.mT, None, causal) @ in_float64[2]
    expected = [expected, *torch.autograd.grad(expected.square().sum(), in_float64)]
    in_float32 = [part.requires_grad_() for part in (q, k, v)]
    actual = mixer.attend(*in_float32, None)
    actual = [actual, *torch.autograd.grad(actual.square().sum(), in_float32)]
    for mine, theirs in zip(actual, expected, strict=True):
        assert (mine - theirs).abs().max() <= 1e-5 * theirs.abs().max()
    torch.testing.assert_close(mixer.features(q, k, None)[0].double(), phi_q, rtol=1e-6, atol=1e-37)


# ---------------------------------------------------------------- Performer


def test_favor_is_unbiased() -> None:
    """The mean over 10,000 draws of phi(q) . phi(k) is exp(q . k scale) within 3 standard errors, at |x| = 1."""
    q, k = (torch.nn.functional.normalize(noise(5, 5, seed=seed), dim=-1) for seed in (1, 2))
    scale = 5**-0.5
    w = torch.cat([projection(rows, 7) for rows in noise(10_000, 2, 5, 5, seed=7)])
    log_q, log_k = (log_features(x[None, None] * scale**0.5, w, None)[0, 0] for x in (q, k))
    estimates = (log_q + log_k).exp().unflatten(-1, (-1, 7)).mean(dim=-1)  # [pairs, draws]
    error = estimates.std(dim=1) / math.sqrt(estimates.shape[1])
    assert ((estimates.mean(dim=1) - ((q * k).sum(dim=-1) * scale).exp()).abs() < 3 * error).all()
    assert (error < 0.007).all()


def favor_weights(mixer: Mixer, q: Tensor, k: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
    """The definition, in logarithms: log sum_m exp(w q' + w k' - |k'|^2 / 2), then a softmax over the keys."""
    w, root = mixer.projection, mixer.scale**0.5
    log_q, log_k = q @ w.mT * root, k @ w.mT * root - k.square().sum(dim=-1, keepdim=True) * mixer.scale / 2
    logits = (log_q.unsqueeze(-2) + log_k.unsqueeze(-3)).logsumexp(dim=-1)
    if mask is not None:
        logits = logits.masked_fill(~mask[:, None, None, :], -1e300)
    if causal:
        later = torch.ones(logits.shape[-2:], dtype=torch.bool).triu(1)
        logits = logits.masked_fill(later, -math.inf)
    return logits.softmax(dim=-1)


@causal_or_not
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("spread", [0.5, 8])
def test_performer_weights_are_those_of_the_definition(spread: float, masked: bool, causal: bool) -> None:
    """They are exact for small and large norms of queries and keys."""
    length = CHUNK + 3
    mixer = mixer_of("performer", "attention.features=17", "attention.scale=head_dim", max_positions=71, causal=causal)
    q, k, _ = heads(length, spread)
    mask = holes(length) if masked else torch.ones(2, length, dtype=torch.bool)
    expected = favor_weights(mixer, q, k, mask, causal)
    actual = weights_of(mixer, q, k, mask if masked else None)
    torch.testing.assert_close(real(actual, mask, causal), real(expected, mask, causal), rtol=1e-9, atol=1e-12)
    single = weights_of(mixer.float(), q.float(), k.float(), mask if masked else None).double()
    torch.testing.assert_close(real(single, mask, causal), real(expected, mask, causal), rtol=1e-3, atol=1e-4)


# ---------------------------------------------------------------- retention


def retained(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, *, causal: bool) -> Tensor:
    """Loop over heads, queries and keys; pairs of columns are complex numbers."""
    rows, count, length, width = q.shape
    half = width // 2
    y = torch.zeros_like(v)

    def turned(x: Tensor, place: int) -> list[complex]:
        angles = [place / 10000 ** (m / (half - 1)) for m in range(half)]
        pairs = [complex(x[m], x[m + half]) for m in range(half)]
        return [pair * complex(math.cos(a), math.sin(a)) for pair, a in zip(pairs, angles, strict=True)]

    for row in range(rows):
        for head in range(count):
            gamma = 1 - 2 ** (-5 - head)
            turned_q = [turned(q[row, head, i], i) for i in range(length)]
            turned_k = [turned(k[row, head, j], j) for j in range(length)]
            for i in range(length):
                for j in range(i + 1 if causal else length):
                    if not mask[row, j]:
                        continue
                    score = sum((a * b.conjugate()).real for a, b in zip(turned_q[i], turned_k[j], strict=True))
                    score += float(q[row, head, i, 2 * half :] @ k[row, head, j, 2 * half :])
                    y[row, head, i] += gamma ** abs(i - j) * score / math.sqrt(width) * v[row, head, j]
    return y / (y.square().mean(dim=-1, keepdim=True) + 1e-6).sqrt()


@causal_or_not
def test_retention_by_loops(causal: bool) -> None:
    q, k, v = heads(13)
    mask = holes(13)
    actual = mixer_of("retention", causal=causal).attend(q, k, v, mask)
    torch.testing.assert_close(actual, retained(q, k, v, mask, causal=causal), rtol=1e-9, atol=1e-9)


@causal_or_not
def test_retention_is_stable_in_fp32_at_full_length(causal: bool) -> None:
    """gamma^-4000 of the first head is e^127, which fp32 does not hold."""
    mixer = mixer_of("retention", max_positions=4001, causal=causal)
    inputs = [noise(1, 3, 4001, 5, seed=seed) for seed in range(3)]
    expected = mixer.retain(*inputs)
    actual = mixer.float().retain(*(x.float() for x in inputs))
    torch.testing.assert_close(actual.double(), expected, rtol=1e-4, atol=1e-4)
