"""Recurrences over positions, in chunks: products of matrices within a chunk, and a state from chunk to chunk.

All of them are causal to the last bit, and their time and memory are linear in the length L. Decays are given by their
logarithms, none of them positive; only products of decays are formed, which never overflow.
Legend: M width of queries and keys, N width of values; a state is [M, N].
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.linalg import solve_triangular
from torch.nn.functional import pad

CHUNK = 64


def both_ways(recurrence: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """recurrence(*inputs) plus what it gives from the end to the beginning, by one call; inputs [B, ..., L, .]."""
    forward, backward = recurrence(*(torch.cat([x, x.flip(-2)]) for x in inputs)).chunk(2)
    return forward + backward.flip(-2)


def causal_product(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None = None) -> Tensor:
    """`product` over j <= i: chunks of `CHUNK` positions directly, what lies before them through their summed state.

    With `log_decay` g [..., L], none of it positive, a weight is (q_i . k_j) exp(g_{j+1} + ... + g_i); only products
    of decays are formed, which never overflow. Time O(L (CHUNK + M) (M + N)), memory O(L (M + CHUNK) + L M N / CHUNK).
    """
    length = q.shape[-2]
    chunk = min(CHUNK, length)
    fill = -length % chunk
    q, k, v = (pad(x, (0, 0, 0, fill)).unflatten(-2, (-1, chunk)) for x in (q, k, v))  # [..., chunks, chunk, M or N]
    if log_decay is None:
        y = (q @ k.transpose(-2, -1)).tril() @ v
        if length > chunk:
            y = y + q @ _before(k.transpose(-2, -1) @ v)
    else:
        within = pad(log_decay, (0, fill)).unflatten(-1, (-1, chunk)).cumsum(dim=-1).unsqueeze(-1)
        y = _head_scores(q, k, within) @ v
        if length > chunk:
            y = y + _from_before(q, k, v, within)
    return y.flatten(-3, -2)[..., :length, :]


def channel_product(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor) -> Tensor:
    """`causal_product` with a decay for every channel of the keys: log_decay g [..., L, M], and the weight of v_j for
    output i is sum_m q_im k_jm exp(g_{j+1,m} + ... + g_{i,m}). Time O(L (CHUNK + M) (M + N))."""
    length = q.shape[-2]
    q, k, v, within = in_chunks(q, k, v, log_decay)
    within = within.cumsum(dim=-2)
    y = channel_scores(q, k, within) @ v
    if length > CHUNK:
        y = y + _from_before(q, k, v, within)
    return y.flatten(-3, -2)[..., :length, :]


def delta_product(q: Tensor, a: Tensor, b: Tensor, v: Tensor, log_decay: Tensor, k: Tensor | None = None) -> Tensor:
    """y_i = q_i^T S_i of a state that reads itself; q, a, b, k [..., L, M], v [..., L, N].

    S_i = exp(g_i) S_{i-1} + b_i z_i^T, z_i = S_{i-1}^T a_i + v_i; with k: z_i = S_{i-1}^T a_i, and k_i v_i^T is added.
    log_decay g: [..., L, 1], or [..., L, M] for every channel of the state by itself.

    In a chunk z = (1 - A)^-1 (v + a S), A strictly lower triangular (Yang et al. 2024, Parallelizing Linear
    Transformers with the Delta Rule), so a chunk maps the state before it by one matrix [M, M]. Time
    O(L (CHUNK + M) (M + N)).
    """
    length = q.shape[-2]
    chunked = in_chunks(q, a, b, v, log_decay, *([] if k is None else [k]))
    q, a, b, v, decay = chunked[:5]
    within = decay.cumsum(dim=-2)
    scores = channel_scores if decay.shape[-1] > 1 else _head_scores
    reads = pad(a[..., 1:, :], (0, 0, 0, 1))  # position i reads what was there after i - 1

    def later(keys: Tensor) -> Tensor:
        return pad(scores(reads, keys, within)[..., :-1, :], (0, 0, 1, 0))

    keys = None if k is None else chunked[5]
    given = v if k is None else later(keys) @ v
    seen = scores(q, b, within)
    system = torch.eye(q.shape[-2], dtype=q.dtype, device=q.device) - later(b)
    if length <= CHUNK:
        y = seen @ solve_triangular(system, given, upper=False)
    else:
        read = a * (within - decay).exp()  # without the position's own decay
        solved = solve_triangular(system, torch.cat([given, read], dim=-1), upper=False)
        z, by_state = solved.split([v.shape[-1], q.shape[-1]], dim=-1)
        whole = within[..., -1:, :]
        rest = (whole - within).exp()
        writes = (b * rest).transpose(-2, -1)
        fresh = writes @ z if k is None else writes @ z + (keys * rest).transpose(-2, -1) @ v
        carry = torch.diag_embed(whole.squeeze(-2).exp().expand(*whole.shape[:-2], q.shape[-1])) + writes @ by_state
        y = seen @ z + (q * within.exp() + seen @ by_state) @ _before(fresh, carry)
    if k is not None:
        y = y + scores(q, keys, within) @ v
    return y.flatten(-3, -2)[..., :length, :]


def in_chunks(*inputs: Tensor) -> list[Tensor]:
    """[..., L, .] -> [..., chunks, C, .] with zeros behind; C is a power of two, at most `CHUNK`."""
    length = inputs[0].shape[-2]
    chunk = min(CHUNK, 1 << (length - 1).bit_length())
    return [pad(x, (0, 0, 0, -length % chunk)).unflatten(-2, (-1, chunk)) for x in inputs]


def _head_scores(q: Tensor, k: Tensor, within: Tensor) -> Tensor:
    """`channel_scores` where all channels share a decay, within [..., C, 1]."""
    later = torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool, device=q.device).triu(1)
    between = (within - within.transpose(-2, -1)).masked_fill(later, -torch.inf).exp()
    return (q @ k.transpose(-2, -1)) * between


def channel_scores(q: Tensor, k: Tensor, within: Tensor) -> Tensor:
    """sum_m q_im k_jm exp(w_im - w_jm) for j <= i, else 0: [..., C, C]; w = `within` [..., C, M] falls with i, and C is
    a power of two.

    Two positions are parted by the middle of one block of 2, 4, ... or C positions. There the decay between them is a
    product of one that belongs to the query and one that belongs to the key, and neither exceeds 1.
    """
    scores = (q * k).sum(dim=-1)[..., None, None]
    while scores.shape[-1] < q.shape[-2]:
        half = scores.shape[-1]
        (_, later_q), (earlier_k, _), (earlier_w, later_w) = (
            x.unflatten(-2, (-1, 2, half)).unbind(-3) for x in (q, k, within)
        )
        middle = earlier_w[..., -1:, :]
        weighted_k = earlier_k * (middle - earlier_w).exp()
        low = (later_q * (later_w - middle).exp()) @ weighted_k.transpose(-2, -1)
        first, second = scores.unflatten(-3, (-1, 2)).unbind(-3)
        above = torch.cat([first, torch.zeros_like(first)], dim=-1)
        scores = torch.cat([above, torch.cat([low, second], dim=-1)], dim=-2)
    return scores.squeeze(-3)


def _from_before(q: Tensor, k: Tensor, v: Tensor, within: Tensor) -> Tensor:
    """What each chunk reads of those before it; within [..., chunks, C, M or 1] is the log decay since its start."""
    whole = within[..., -1:, :]
    states = (k * (whole - within).exp()).transpose(-2, -1) @ v
    return (q * within.exp()) @ _before(states, whole.exp().transpose(-2, -1))


def _before(states: Tensor, keep: Tensor | None = None) -> Tensor:
    """What precedes every chunk: s_c = keep_{c-1} s_{c-1} + states_{c-1}, s_0 = 0; states [..., chunks, M, N], `keep`
    [..., chunks, M or 1, 1], or matrices [..., chunks, M, M]."""
    if keep is None:
        return pad(states[..., :-1, :, :].cumsum(dim=-3), (0, 0, 0, 0, 1, 0))
    matrices = keep.shape[-1] > 1
    state = torch.zeros_like(states[..., 0, :, :])
    before = []
    for fresh, kept in zip(states.unbind(-3), keep.unbind(-3), strict=True):
        before.append(state)
        state = fresh + kept @ state if matrices else torch.addcmul(fresh, kept, state)
    return torch.stack(before, dim=-3)
