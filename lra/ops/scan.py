"""Recurrences over positions, in chunks: products of matrices within a chunk, and a state from chunk to chunk.

All of them are causal to the last bit, and their time and memory are linear in the length L. Decays are given by their
logarithms, none of them positive; only products of decays are formed, which never overflow.
Legend: M width of queries and keys, N width of values; a state is [M, N].
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.linalg import solve_triangular
from torch.nn.functional import pad

from lra.ops.decayed_product import decayed_product

CHUNK = 64
SMALL_CHUNK = 32  # where every channel has its own decay, or a state reads itself
ROOM = 0.75  # of a number's exponents, for the decays of a block; the rest is for what they multiply


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
    if log_decay is not None:
        return decayed_product(q, k, v, log_decay.unsqueeze(-1), chunk)
    q, k, v = (pad(x, (0, 0, 0, -length % chunk)).unflatten(-2, (-1, chunk)) for x in (q, k, v))
    y = (q @ k.transpose(-2, -1)).tril() @ v  # [..., chunks, chunk, N]
    if length > chunk:
        y = y + q @ _before(k.transpose(-2, -1) @ v)
    return y.flatten(-3, -2)[..., :length, :]


def channel_product(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor) -> Tensor:
    """`causal_product` with a decay for every channel of the keys: log_decay g [..., L, M], and the weight of v_j for
    output i is sum_m q_im k_jm exp(g_{j+1,m} + ... + g_{i,m}). Time O(L (SMALL_CHUNK + M) (M + N))."""
    chunk = min(SMALL_CHUNK, 1 << (q.shape[-2] - 1).bit_length())
    return decayed_product(q, k, v, log_decay, chunk)


def delta_product(
    q: Tensor,
    a: Tensor,
    b: Tensor,
    v: Tensor,
    log_decay: Tensor,
    k: Tensor | None = None,
    least: float | None = None,
) -> Tensor:
    """y_i = q_i^T S_i of a state that reads itself; q, a, b, k [..., L, M], v [..., L, N].

    S_i = exp(g_i) S_{i-1} + b_i z_i^T, z_i = S_{i-1}^T a_i + v_i; with k: z_i = S_{i-1}^T a_i, and k_i v_i^T is added.
    log_decay g: [..., L, 1], or [..., L, M] for every channel of the state by itself; `least`: what no g is below.

    In a chunk z = (1 - A)^-1 (v + a S), A strictly lower triangular (Yang et al. 2024, Parallelizing Linear
    Transformers with the Delta Rule), so a chunk maps the state before it by one matrix [M, M]. Time
    O(L (SMALL_CHUNK + M) (M + N)).
    """
    length = q.shape[-2]
    q, a, b, v, decay, *given_keys = in_chunks(q, a, b, v, log_decay, *([] if k is None else [k]))
    reads = pad(a[..., 1:, :], (0, 0, 0, 1))  # position i reads what was there after i - 1
    within, scores = _scores([q, reads], [b, *given_keys], decay, least)
    seen, *seen_keys = scores[0]
    by_read, *by_read_keys = (pad(each[..., :-1, :], (0, 0, 1, 0)) for each in scores[1])
    given = by_read_keys[0] @ v if given_keys else v
    system = torch.eye(q.shape[-2], dtype=q.dtype, device=q.device) - by_read
    if length <= SMALL_CHUNK:
        y = seen @ solve_triangular(system, given, upper=False)
    else:
        read = a * pad(within[..., :-1, :], (0, 0, 1, 0)).exp()  # without the position's own decay
        solved = solve_triangular(system, torch.cat([given, read], dim=-1), upper=False)
        z, by_state = solved.split([v.shape[-1], q.shape[-1]], dim=-1)
        whole = within[..., -1:, :]
        rest = (whole - within).exp()
        writes = (b * rest).transpose(-2, -1)
        fresh = writes @ z
        if given_keys:
            fresh = fresh + (given_keys[0] * rest).transpose(-2, -1) @ v
        carry = torch.diag_embed(whole.squeeze(-2).exp().expand(*whole.shape[:-2], q.shape[-1])) + writes @ by_state
        y = seen @ z + (q * within.exp() + seen @ by_state) @ _before(fresh, carry)
    if given_keys:
        y = y + seen_keys[0] @ v
    return y.flatten(-3, -2)[..., :length, :]


def _scores(
    queries: Sequence[Tensor], keys: Sequence[Tensor], decay: Tensor, least: float | None
) -> tuple[Tensor, Sequence[Sequence[Tensor]]]:
    """The log decays since the start of each chunk, and the matrices of `channel_scores`, of log decays [..., C, M], or
    [..., C, 1] in common to all channels."""
    if decay.shape[-1] > 1:
        decay, block = _blocks(decay, least)
        within = decay.cumsum(dim=-2)
        return within, channel_scores(queries, keys, within, block)
    within = decay.cumsum(dim=-2)
    between = _between(within)
    return within, [[(query @ key.transpose(-2, -1)) * between for key in keys] for query in queries]


def in_chunks(*inputs: Tensor) -> list[Tensor]:
    """[..., L, .] -> [..., chunks, C, .] with zeros behind; C is a power of two, at most `SMALL_CHUNK`."""
    length = inputs[0].shape[-2]
    chunk = min(SMALL_CHUNK, 1 << (length - 1).bit_length())
    return [pad(x, (0, 0, 0, -length % chunk)).unflatten(-2, (-1, chunk)) for x in inputs]


def _blocks(log_decay: Tensor, least: float | None = None) -> tuple[Tensor, int]:
    """The decays of chunks [..., C, M], and the length of the blocks in which `channel_scores` may divide by them.

    Without a bound `least` the blocks have four positions, and a position keeps at least a share of a channel that is
    far below what its numbers can tell from nothing: exp(-22) in fp32.
    """
    chunk, room = log_decay.shape[-2], ROOM * math.log(torch.finfo(log_decay.dtype).max)
    if least is None:
        return log_decay.clamp(min=-room / 3), min(chunk, 4)
    block = chunk
    while (block - 1) * -least > room:
        block //= 2
    return log_decay, block


def _between(within: Tensor) -> Tensor:
    """exp(w_i - w_j) for j <= i, else 0; w = `within` [..., C, 1] -> [..., C, C]."""
    chunk = within.shape[-2]
    later = torch.ones(chunk, chunk, dtype=torch.bool, device=within.device).triu(1)
    return (within - within.transpose(-2, -1)).masked_fill(later, -torch.inf).exp()


def channel_scores(
    queries: Sequence[Tensor], keys: Sequence[Tensor], within: Tensor, block: int
) -> list[tuple[Tensor, ...]]:
    """sum_m q_im k_jm exp(w_im - w_jm) for j <= i, else 0, for each of `queries` with each of `keys`: all [..., C, M],
    and each result [..., C, C]. w = `within` falls with i; C and `block` are powers of two, and exp(w_im - w_jm) of two
    positions in a block can be divided by.

    Pairs in a block are weighed by decays since its start. Two positions of different blocks are parted by the middle
    of one of 2, 4, ... blocks: the decay between them is a product of one that belongs to the query and one that
    belongs to the key, and neither exceeds 1. Either way a row depends on no later position, to the last bit.
    """
    scores = _ChannelScores.apply(torch.stack(list(queries), -3), torch.stack(list(keys), -3), within, block)
    return [scores[place : place + len(keys)] for place in range(0, len(scores), len(keys))]


class _ChannelScores(torch.autograd.Function):
    """q [..., P, C, M], k [..., R, C, M] -> P R matrices [..., C, C]. Keeps its inputs alone; the gradient of w is that
    of q times q, less that of k times k."""

    @staticmethod
    def forward(ctx, q: Tensor, k: Tensor, within: Tensor, block: int) -> tuple[Tensor, ...]:
        ctx.save_for_backward(q, k, within)
        ctx.block = block
        chunk = q.shape[-2]
        scores = None if block == chunk else q.new_zeros(*q.shape[:-1], k.shape[-3], chunk)
        for part in _parts(chunk, block):
            weighed_q, weighed_k, _, _ = part.weighed(q, k, within)
            pairs = weighed_q.flatten(-3, -2) @ weighed_k.flatten(-3, -2).transpose(-2, -1)
            pairs = pairs.unflatten(-1, weighed_k.shape[-3:-1]).unflatten(-3, weighed_q.shape[-3:-1])
            if scores is None:
                scores = pairs.squeeze(-5)
            else:
                part.pairs(scores).copy_(pairs)
        return tuple(each.tril() for row in scores.unbind(-4) for each in row.unbind(-2))

    @staticmethod
    @once_differentiable
    def backward(ctx, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        q, k, within = ctx.saved_tensors
        grads, kinds = [grad.tril() for grad in grads], k.shape[-3]
        rows = [torch.stack(grads[place : place + kinds], dim=-2) for place in range(0, len(grads), kinds)]
        grad = torch.stack(rows, dim=-4)
        grad_q, grad_k = torch.zeros_like(q), torch.zeros_like(k)
        for part in _parts(q.shape[-2], ctx.block):
            weighed_q, weighed_k, since, until = part.weighed(q, k, within)
            pairs = part.pairs(grad).flatten(-2).flatten(-3, -2)  # [..., blocks, P size, R size]
            by_q = (pairs @ weighed_k.flatten(-3, -2)).unflatten(-2, weighed_q.shape[-3:-1])
            by_k = (pairs.transpose(-2, -1) @ weighed_q.flatten(-3, -2)).unflatten(-2, weighed_k.shape[-3:-1])
            part.queries(grad_q).addcmul_(by_q, since)
            part.keys(grad_k).addcmul_(by_k, until)
        return grad_q, grad_k, (q * grad_q).sum(dim=-3) - (k * grad_k).sum(dim=-3), None


@dataclass(frozen=True)
class _Part:
    """The pairs of positions whose query is in a block of `size` positions, and whose key is in the same block or, with
    `neighbours`, in the one before it, of every second block."""

    size: int
    neighbours: bool

    def queries(self, x: Tensor) -> Tensor:
        """[..., P, C, M] -> [..., blocks, P, size, M]."""
        return self._blocks(x, 1).movedim(-3, -4)

    def keys(self, x: Tensor) -> Tensor:
        return self._blocks(x, 0).movedim(-3, -4)

    def _blocks(self, x: Tensor, second: int) -> Tensor:
        return (
            x.unflatten(-2, (-1, 2, self.size)).select(-3, second)
            if self.neighbours
            else x.unflatten(-2, (-1, self.size))
        )

    def weighed(self, q: Tensor, k: Tensor, within: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Queries and keys times their decays, and these decays: since a block's first position, or between blocks."""
        of_query, of_key = (self._blocks(within, place).unsqueeze(-3) for place in (1, 0))
        middle = of_key[..., -1:, :] if self.neighbours else of_key[..., :1, :]
        since, until = (of_query - middle).exp(), (middle - of_key).exp()
        return self.queries(q) * since, self.keys(k) * until, since, until

    def pairs(self, scores: Tensor) -> Tensor:
        """[..., P, C, R, C] -> a view, [..., blocks, P, size, R, size]."""
        span = 2 * self.size if self.neighbours else self.size
        in_blocks = scores.unflatten(-1, (-1, span)).unflatten(-4, (-1, span))
        blocks = in_blocks.diagonal(dim1=-5, dim2=-2).movedim(-1, -5)
        return blocks[..., self.size :, :, : self.size] if self.neighbours else blocks


def _parts(chunk: int, block: int) -> Iterator[_Part]:
    yield _Part(block, neighbours=False)
    while block < chunk:
        yield _Part(block, neighbours=True)
        block *= 2


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
