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

from lra.ops.decayed_product import ChannelDecays, decayed_product, from_here_on

CHUNK = 64
SMALL_CHUNK = 32  # with a decay per channel, or a state that reads itself


def both_ways(recurrence: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """Return recurrence(*inputs) plus its result from the end to the beginning, by one call; inputs [B, ..., L, .]."""
    forward, backward = recurrence(*(torch.cat([x, x.flip(-2)]) for x in inputs)).chunk(2)
    return forward + backward.flip(-2)


def causal_product(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None = None) -> Tensor:
    """Compute y_i = sum_{j <= i} (q_i . k_j) exp(g_{j+1} + ... + g_i) v_j.

    Time O(L (CHUNK + M) (M + N)), memory O(L (M + CHUNK) + L M N / CHUNK).

    Args:
        q: [..., L, M].
        k: [..., L, M].
        v: [..., L, N].
        log_decay: g [..., L], not positive, or None for no decay.

    Returns:
        y [..., L, N].
    """
    length = q.shape[-2]
    chunk = min(CHUNK, length)
    if log_decay is not None:
        return decayed_product(q, k, v, log_decay.unsqueeze(-1), chunk)
    q, k, v = (pad(x, (0, 0, 0, -length % chunk)).unflatten(-2, (-1, chunk)) for x in (q, k, v))
    y = (q @ k.transpose(-2, -1)).tril() @ v  # [..., chunks, chunk, N]
    if length > chunk:
        y = y + q @ _before(k.transpose(-2, -1) @ v)
    return y.flatten(-3, -2)[..., :length, :]


def channel_product(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor) -> Tensor:
    """Compute y_i = sum_{j <= i} sum_m q_im k_jm exp(g_{j+1,m} + ... + g_{i,m}) v_j.

    Time O(L (SMALL_CHUNK + M) (M + N)).

    Args:
        q: [..., L, M].
        k: [..., L, M].
        v: [..., L, N].
        log_decay: g [..., L, M], not positive.

    Returns:
        y [..., L, N].
    """
    chunk = min(SMALL_CHUNK, 1 << (q.shape[-2] - 1).bit_length())
    return decayed_product(q, k, v, log_decay, chunk)


def dplr_delta_rule(
    q: Tensor, a: Tensor, b: Tensor, v: Tensor, log_decay: Tensor, k: Tensor, least: float | None = None
) -> Tensor:
    """Compute y_i = S_i^T q_i of a state that reads itself, S_i = exp(g_i) S_{i-1} + b_i a_i^T S_{i-1} + k_i v_i^T.

    In a chunk z_i = S_{i-1}^T a_i is (1 - A)^-1 (A' v + a S), with A and A' strictly lower triangular, so that a chunk
    maps the state before it by one matrix [M, M]. Time O(L (SMALL_CHUNK + M) (M + N)).

    Args:
        q: [..., L, M].
        a: [..., L, M].
        b: [..., L, M].
        v: [..., L, N].
        log_decay: g [..., L, M], not positive.
        k: [..., L, M].
        least: lower bound of g, or None.

    Returns:
        y [..., L, N].

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
        within = decay.cumsum(dim=-2)
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
        return pad(states[..., :-1, :, :].cumsum(dim=-3), (0, 0, 0, 0, 1, 0))
    state = torch.zeros_like(states[..., 0, :, :])
    before = []
    for fresh, kept in zip(states.unbind(-3), keep.unbind(-3), strict=True):
        before.append(state)
        state = fresh + kept @ state
    return torch.stack(before, dim=-3)
