"""Sinkhorn (sorted blocks) and Reformer (hash buckets) against loops and dense attention."""

import math

import numpy as np
import pytest
import torch
from support import mixer_of, noise, same
from torch import Tensor

from lra.mixers.sinkhorn import doubly_stochastic


def heads(seed: int, length: int = 11) -> Tensor:
    return noise(2, 3, length, 5, seed=seed)


def holes() -> Tensor:
    """A mask with padding in the middle, of which one block of 3 has no real token."""
    mask = torch.ones(2, 11, dtype=torch.bool)
    mask[0, 3:6] = mask[0, 10] = mask[1, 2] = mask[1, 7] = False
    return mask


def exact(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-12)


# ---------------------------------------------------------------- sinkhorn


def attend_by_loops(q: Tensor, k: Tensor, v: Tensor, order: np.ndarray, mask: Tensor, block: int) -> Tensor:
    """One head, q, k, v [L, Dh]: every query's own block, then the mixture of blocks `order` [N, N]."""
    length, y = len(q), torch.zeros_like(v)
    for i in range(length):
        n = i // block
        keys = [(k[j], v[j]) for j in range(n * block, min(length, (n + 1) * block)) if mask[j]]
        for t in range(block):
            places = [m * block + t for m in range(len(order))]
            real = [(m, j) for m, j in enumerate(places) if j < length and mask[j] and order[n, m] > 0]
            if real:
                keys.append(tuple(sum(order[n, m] * x[j] for m, j in real) for x in (k, v)))
        weights = [math.exp(float(q[i] @ key) / math.sqrt(5)) for key, _ in keys]
        if keys:
            y[i] = sum(w * value for w, (_, value) in zip(weights, keys, strict=True)) / sum(weights)
    return y


def sinkhorn_by_loops(logits: np.ndarray, valid: list[bool], iterations: int) -> np.ndarray:
    """Rows, then columns of exp(logits) divided by their sums, on the valid blocks only."""
    some = np.flatnonzero(valid)
    p = np.exp(logits[np.ix_(some, some)])
    for _ in range(iterations):
        p = p / p.sum(axis=1, keepdims=True)
        p = p / p.sum(axis=0, keepdims=True)
    whole = np.zeros_like(logits)
    whole[np.ix_(some, some)] = p
    return whole


@pytest.mark.parametrize("iterations", [1, 7])
def test_the_matrix_by_loops(iterations: int) -> None:
    logits, valid = noise(7, 7), [True, False, True, True, True, False, True]
    actual = doubly_stochastic(logits, torch.tensor(valid), iterations)
    exact(actual, torch.from_numpy(sinkhorn_by_loops(logits.numpy(), valid, iterations)))


def test_no_valid_block_gives_zeros_and_a_finite_gradient() -> None:
    logits = noise(5, 5).requires_grad_()
    p = doubly_stochastic(logits, torch.zeros(5, dtype=torch.bool), 3)
    (gradient,) = torch.autograd.grad(p.sum(), logits)
    assert not p.any()
    assert not gradient.any()


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("temperature", "iterations"), [(0.75, 7), (2.0, 1)])
def test_sinkhorn_by_loops(masked: bool, temperature: float, iterations: int) -> None:
    """The sequence has 4 of 5 possible blocks, the last with 2 positions."""
    options = ("block=3", f"temperature={temperature}", f"iterations={iterations}")
    mixer = mixer_of("sinkhorn", "protocol=strict", *(f"attention.{option}" for option in options))
    q, k, v = heads(1), heads(2), heads(3)
    mask = holes() if masked else torch.ones(2, 11, dtype=torch.bool)
    actual = mixer.attend(q, k, v, mask if masked else None)
    for row in range(2):
        blocks = [range(n, min(11, n + 3)) for n in range(0, 11, 3)]
        valid = [any(bool(mask[row, j]) for j in block) for block in blocks]
        for head in range(3):
            sums = torch.stack([sum(k[row, head, j] * mask[row, j] for j in block) for block in blocks])
            logits = (sums @ mixer.sort[head, :, :4] / temperature).detach().numpy()
            order = sinkhorn_by_loops(logits, valid, iterations)
            expected = attend_by_loops(*(x[row, head] for x in (q, k, v)), order, mask[row], 3)
            exact(actual[row, head][mask[row]], expected[mask[row]])


# ---------------------------------------------------------------- reformer


def met_by_loops(buckets: list[list[int]], mask: list[bool], chunk: int, within_bucket: bool) -> Tensor:
    """[L, L], True where a query meets a key in a round; `buckets` of every round."""
    length = len(mask)
    met = torch.zeros(length, length, dtype=torch.bool)
    for of in buckets:
        ranked = sorted((i for i in range(length) if mask[i]), key=lambda i: (of[i], i))
        for a, i in enumerate(ranked):
            for b, j in enumerate(ranked):
                near = b // chunk in (a // chunk, a // chunk - 1)
                met[i, j] |= near and (not within_bucket or of[i] == of[j])
    return met


def shared_attention(q: Tensor, v: Tensor, met: Tensor) -> Tensor:
    """One head, dense: softmax over the keys that a query meets, itself left out unless it is alone."""
    oneself = torch.eye(len(q), dtype=torch.bool)
    others = met & ~oneself
    seen = torch.where(others.any(dim=1, keepdim=True), others, oneself)
    keys = q / q.square().sum(dim=1, keepdim=True).sqrt()
    return (q @ keys.T).masked_fill(~seen, -torch.inf).softmax(dim=1) @ v


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("within_bucket", [False, True])
@pytest.mark.parametrize(("chunk", "hashes"), [(3, 1), (2, 3), (1, 2), (11, 2)])
def test_reformer_is_attention_to_all_keys_met(chunk: int, hashes: int, within_bucket: bool, masked: bool) -> None:
    """Outputs and gradients; a key met in several rounds counts once."""
    mixer = mixer_of(
        "reformer", f"attention.chunk={chunk}", f"attention.hashes={hashes}", f"attention.within_bucket={within_bucket}"
    )
    mask = holes() if masked else torch.ones(2, 11, dtype=torch.bool)
    q, v = heads(1).requires_grad_(), heads(2).requires_grad_()
    rows = mask[:, None].expand(2, 3, 11)
    actual = mixer.attend(q, v, mask if masked else None)[rows]
    buckets = mixer.buckets(q, None).tolist()
    met = [[met_by_loops(heads, real, chunk, within_bucket) for heads in row]
           for row, real in zip(buckets, mask.tolist(), strict=True)]  # fmt: skip
    expected = torch.stack(
        [torch.stack([shared_attention(q[i, h], v[i, h], met[i][h]) for h in range(3)]) for i in range(2)]
    )[rows]
    same(actual, expected, [q, v])


def test_a_hash_is_the_largest_of_both_signs() -> None:
    mixer, q = mixer_of("reformer", "attention.chunk=2"), heads(1)
    turned = torch.einsum("bhld,hdrn->bhrln", q, mixer.rotations)
    assert mixer.buckets(q, None).equal(torch.cat([turned, -turned], dim=-1).argmax(dim=-1))
    assert mixer.buckets(q, holes())[0, :, :, 3:6].eq(2 * mixer.rotations.shape[-1]).all()  # padding sorts last
