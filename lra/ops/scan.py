"""Recurrences over positions in chunks: matrix products within a chunk, and a state from chunk to chunk.

All are exactly causal, with time and memory linear in the length L. Decays are given as logarithms, none positive; only
products of decays are formed, which never overflow.
Legend: M width of queries and keys, N width of values; a state is [M, N].
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.linalg import solve_triangular
from torch.nn.functional import pad

from lra.ops.decayed_product import (
    CHUNK,
    SMALL_CHUNK,
    ChannelDecays,
    HeadDecays,
    Tiled,
    by_chunk,
    by_decays,
    decayed_product,
    from_here_on,
    room,
)
from lra.ops.device import cumulative_sum


def both_ways(recurrence: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """Return recurrence(*inputs) plus its result from the end to the beginning, by one call; inputs [B, ..., L, .]."""
    forward, backward = recurrence(*(torch.cat([x, x.flip(-2)]) for x in inputs)).chunk(2)
    return forward + backward.flip(-2)


def causal_product(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None = None) -> Tensor:
    """Compute y_i = sum_{j <= i} (q_i . k_j) exp(g_{j+1} + ... + g_i) v_j.

    Time O(L (CHUNK + M) (M + N)), memory O(L (M + CHUNK) + L M N / CHUNK).

    q, k [..., L, M], v [..., L, N], log_decay g [..., L], not positive, or None for no decay -> y [..., L, N].
    """
    if log_decay is not None:
        return decayed_product(q, k, v, log_decay.unsqueeze(-1))
    length = q.shape[-2]
    chunk = min(CHUNK, length)
    q, k, v = (pad(x, (0, 0, 0, -length % chunk)).unflatten(-2, (-1, chunk)) for x in (q, k, v))
    y = (q @ k.transpose(-2, -1)).tril() @ v  # [..., chunks, chunk, N]
    if length > chunk:
        y = y + q @ _before(k.transpose(-2, -1) @ v)
    return y.flatten(-3, -2)[..., :length, :]


def dplr_delta_rule(
    q: Tensor, a: Tensor, b: Tensor, v: Tensor, log_decay: Tensor, k: Tensor, least: float | None = None
) -> Tensor:
    """Compute y_i = S_i^T q_i of a state that reads itself, S_i = exp(g_i) S_{i-1} + b_i a_i^T S_{i-1} + k_i v_i^T.

    In a chunk z_i = S_{i-1}^T a_i is (1 - A)^-1 (A' v + a S), with A and A' strictly lower triangular, so that a chunk
    maps the state before it by one matrix [M, M]. Time O(L (SMALL_CHUNK + M) (M + N)).

    q, a, b, k [..., L, M], v [..., L, N], log_decay g [..., L, M], not positive and at least `least` -> y [..., L, N].

    Source:
        Yang et al. 2024, Parallelizing Linear Transformers with the Delta Rule over Sequence Length.
    """
    length = q.shape[-2]
    q, a, b, v, decay, k = in_chunks(q, a, b, v, log_decay, k)
    reads = pad(a[..., 1:, :], (0, 0, 0, 1))  # position i reads the state after i - 1
    scores = _ChannelScores.apply(torch.stack([q, reads], -3), torch.stack([b, k], -3), decay, least)
    seen, by_read = scores.unbind(-4)
    seen, seen_keys = seen.unbind(-2)
    by_read, by_read_keys = (pad(each[..., :-1, :], (0, 0, 1, 0)) for each in by_read.unbind(-2))
    given = by_read_keys @ v
    system = torch.eye(q.shape[-2], dtype=q.dtype, device=q.device) - by_read
    if length <= SMALL_CHUNK:
        y = seen @ solve_triangular(system, given, upper=False)
    else:
        within = cumulative_sum(decay, -2)
        read = a * pad(within[..., :-1, :], (0, 0, 1, 0)).exp()  # without the position's own decay
        solved = solve_triangular(system, torch.cat([given, read], dim=-1), upper=False)
        z, by_state = solved.split([v.shape[-1], q.shape[-1]], dim=-1)
        whole = within[..., -1:, :]
        rest = (whole - within).exp()
        writes = (b * rest).transpose(-2, -1)
        fresh = writes @ z + (k * rest).transpose(-2, -1) @ v
        carry = torch.diag_embed(whole.squeeze(-2).exp()) + writes @ by_state
        y = seen @ z + (q * within.exp() + seen @ by_state) @ _before(fresh, carry)
    y = y + seen_keys @ v
    return y.flatten(-3, -2)[..., :length, :]


def in_chunks(*inputs: Tensor) -> list[Tensor]:
    """Cut [..., L, .] into [..., chunks, C, .], zero-padded; C is a power of two, at most `SMALL_CHUNK`."""
    length = inputs[0].shape[-2]
    chunk = min(SMALL_CHUNK, 1 << (length - 1).bit_length())
    return [pad(x, (0, 0, 0, -length % chunk)).unflatten(-2, (-1, chunk)) for x in inputs]


class _ChannelScores(torch.autograd.Function):
    """`ChannelDecays.all_scores`; saves its inputs alone."""

    @staticmethod
    def forward(ctx, q: Tensor, k: Tensor, decay: Tensor, least: float | None) -> Tensor:
        ctx.save_for_backward(q, k, decay)
        ctx.least = least
        return ChannelDecays(decay, least).all_scores(q, k)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        q, k, decay = ctx.saved_tensors
        d_q, d_k = ChannelDecays(decay, ctx.least).all_gradients(grad, q, k)
        return d_q, d_k, from_here_on((q * d_q).sum(dim=-3) - (k * d_k).sum(dim=-3)), None


def _before(states: Tensor, keep: Tensor | None = None) -> Tensor:
    """States before each chunk, s_c = keep_{c-1} s_{c-1} + states_{c-1} with s_0 = 0.

    states [..., chunks, M, N], `keep` [..., chunks, M, M] or None for the identity.
    """
    if keep is None:
        return pad(cumulative_sum(states[..., :-1, :, :], -3), (0, 0, 0, 0, 1, 0))
    state = torch.zeros_like(states[..., 0, :, :])
    before = []
    for fresh, kept in zip(states.unbind(-3), keep.unbind(-3), strict=True):
        before.append(state)
        state = fresh + kept @ state
    return torch.stack(before, dim=-3)


def delta_rule(q: Tensor, k: Tensor, v: Tensor, strength: Tensor, log_decay: Tensor) -> Tensor:
    """Compute the gated delta rule in time O(L (SMALL_CHUNK + M) (M + N)), with explicit gradients.

    S_i = exp(g_i) S_{i-1} + b_i k_i e_i^T, e_i = v_i - exp(g_i) S_{i-1}^T k_i, y_i = S_i^T q_i. In a chunk that starts
    from the state S, the errors are E = (1 + A)^-1 (V - K' S) with k'_i = exp(g_1 + ... + g_i) k_i and
    A_ij = (k_i . b_j k_j) exp(g_{j+1} + ... + g_i) for j < i: so E = U - X S, where U and X do not depend on S.

    q, k [..., L, M], v [..., L, N], strength b [..., L], log_decay g [..., L], not positive -> y [..., L, N].

    Source:
        Yang et al. 2025, Gated Delta Networks, section 3.3.
    """
    chunk = min(SMALL_CHUNK, q.shape[-2])
    inputs = (q, k, v, strength.unsqueeze(-1), log_decay.unsqueeze(-1))
    return Tiled.apply(_rule, _gradients, chunk, *(x.contiguous() for x in inputs))


class _Pairs:
    """Scores and decays of a tile for both passes.

    `writes` are b k, `both` [n, 2 C, M] are k above q, `scores` [n, 2, C, C] their decayed products with the writes for
    j <= i, and `since` are both with their decays since the chunk began.
    """

    def __init__(self, q: Tensor, k: Tensor, strength: Tensor, log_decay: Tensor) -> None:
        self.decays = HeadDecays(log_decay)
        self.writes, self.both = strength * k, torch.cat([k, q], dim=-2)
        self.scores = self.weighed(self.both @ self.writes.mT)
        self.since = self.each(self.both) * self.decays.since.unsqueeze(-3)

    def each(self, both: Tensor) -> Tensor:
        return both.unflatten(-2, (2, -1))

    def weighed(self, scores: Tensor) -> Tensor:
        return self.each(scores).mul_(self.decays.between.unsqueeze(-3))


def _rule(q: Tensor, k: Tensor, v: Tensor, b: Tensor, g: Tensor, state: Tensor) -> tuple[Tensor, ...]:
    """Return y of a tile, the states [T + 1, heads, M, N] of its T chunks, (1 + A)^-1 of each, and the errors."""
    pairs = _Pairs(q, k, b, g)
    (system, seen), (read, query) = pairs.scores.unbind(-3), pairs.since.unbind(-3)
    eye = torch.eye(q.shape[-2], dtype=q.dtype, device=q.device)
    inverse = solve_triangular(system, eye, upper=False, unitriangular=True)  # reads only below the diagonal
    errors, by_state = inverse @ v, inverse @ read
    states = room(state, len(q))
    states[0] = state
    rows = states.unbind()
    last = (pairs.writes * pairs.decays.until).mT
    chunks = (by_chunk(x, rows) for x in (pairs.decays.whole, errors, by_state, last))
    for before, after, whole, error, by, write in zip(rows[:-1], rows[1:], *chunks, strict=True):
        error.baddbmm_(by, before, alpha=-1)
        torch.mul(whole, before, out=after).baddbmm_(write, error)
    return torch.baddbmm(seen @ errors, query, states[:-1].flatten(0, 1)), states, inverse, errors


def _gradients(
    q: Tensor, k: Tensor, v: Tensor, b: Tensor, g: Tensor, d_y: Tensor,
    d_state: Tensor, states: Tensor, inverse: Tensor, errors: Tensor,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Gradients of q, k, v, b and g of a tile and of the state before it, given those of y and of the state after it.

    A decay from j to i multiplies the read of i and the write of j alike: its gradient is reads times their gradients
    minus writes times theirs. The state after a chunk contains the decay of the whole chunk.
    """
    pairs = _Pairs(q, k, b, g)
    decays, (_, seen), (read, query) = pairs.decays, pairs.scores.unbind(-3), pairs.since.unbind(-3)
    by_state = inverse @ read
    d_errors = seen.mT @ d_y
    d_states = room(d_state, len(q))
    d_states[-1] = d_state
    torch.baddbmm(query.mT @ d_y, by_state.mT, d_errors, alpha=-1, out=d_states[:-1].flatten(0, 1))
    rows = d_states.unbind()[::-1]
    last = pairs.writes * decays.until
    chunks = (by_chunk(x, rows)[::-1] for x in (decays.whole, d_errors, by_state.mT, last))
    for after, before, whole, d_error, by, write in zip(rows[:-1], rows[1:], *chunks, strict=True):
        fresh = write @ after
        d_error.add_(fresh)
        before.addcmul_(whole, after).baddbmm_(by, fresh, alpha=-1)
    d_v = inverse.mT @ d_errors
    d_found = torch.cat([-d_v, d_y], dim=-2)  # gradients of the reads of k and q from the states
    d_scores = d_found @ errors.mT
    d_within = by_decays((pairs.each(d_scores) * pairs.scores).sum(dim=-3))
    d_scores = pairs.weighed(d_scores)
    d_scores[:, 0].diagonal(dim1=-2, dim2=-1).zero_()
    d_scores = d_scores.flatten(-3, -2)
    before, d_after = states[:-1].flatten(0, 1), d_states[1:].flatten(0, 1)
    d_both = pairs.each(d_found @ before.mT).mul_(decays.since.unsqueeze(-3)).flatten(-3, -2)
    d_writes = (errors @ d_after.mT).mul_(decays.until)
    d_within += pairs.each((d_both * pairs.both).sum(dim=-1, keepdim=True)).sum(dim=-3)
    d_within -= (d_writes * pairs.writes).sum(dim=-1, keepdim=True)
    d_both.baddbmm_(d_scores, pairs.writes)
    d_writes.baddbmm_(d_scores.mT, pairs.both)
    d_b = (d_writes * k).sum(dim=-1, keepdim=True)
    d_within[:, -1] += (states[1:].flatten(0, 1) * d_after).sum(dim=(-2, -1)).unsqueeze(-1)
    d_k, d_q = pairs.each(d_both).unbind(-3)
    return d_q, torch.addcmul(d_k, b, d_writes), d_v, d_b, from_here_on(d_within), d_states[0]
