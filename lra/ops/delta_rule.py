"""The gated delta rule in chunks (Yang et al. 2025, Gated Delta Networks, section 3.3), with gradients by hand.

S_i = exp(g_i) S_{i-1} + b_i k_i e_i^T, e_i = v_i - exp(g_i) S_{i-1}^T k_i, y_i = S_i^T q_i. In a chunk whose first
position finds the state S, the errors are E = (1 + A)^-1 (V - K' S) with k'_i = exp(g_1 + ... + g_i) k_i and
A_ij = (k_i . b_j k_j) exp(g_{j+1} + ... + g_i) for j < i: so E = U - X S, where U and X do not wait for S.
Legend: q, k [..., L, M], v [..., L, N], strength b and log decay g [..., L, 1]; C a chunk's length, n the chunks of all
heads in a tile.
"""

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.linalg import solve_triangular

from lra.ops.decayed_product import HeadDecays, by_chunk, by_decays, from_here_on, read_tile, room, tiles, write_tile
from lra.ops.precision import full_precision
from lra.ops.scan import SMALL_CHUNK


def delta_rule(q: Tensor, k: Tensor, v: Tensor, strength: Tensor, log_decay: Tensor) -> Tensor:
    """y [..., L, N] of q, k [..., L, M], v [..., L, N], strength b and log decay g [..., L]; time
    O(L (SMALL_CHUNK + M) (M + N))."""
    return _DeltaRule.apply(q, k, v, strength.unsqueeze(-1), log_decay.unsqueeze(-1), min(SMALL_CHUNK, q.shape[-2]))


class _DeltaRule(torch.autograd.Function):
    """Keeps its inputs, and of each chunk (1 + A)^-1, the errors, and the states before and after."""

    @staticmethod
    def forward(ctx, q: Tensor, k: Tensor, v: Tensor, strength: Tensor, log_decay: Tensor, chunk: int) -> Tensor:
        inputs = (q, k, v, strength, log_decay)
        y = v.new_empty(v.shape)
        state = v.new_zeros(v.shape[:-2].numel(), q.shape[-1], v.shape[-1])
        kept: list[Tensor] = []
        for place in tiles(y, q.shape[-1], chunk):
            read, *rest = _rule(*(read_tile(x, place, chunk) for x in inputs), state)
            write_tile(read, y[..., place, :])
            state = rest[-1][-1]
            kept += rest
        ctx.save_for_backward(*inputs, *kept)
        ctx.chunk = chunk
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        inputs, kept = ctx.saved_tensors[:5], ctx.saved_tensors[5:]
        grads = [x.new_empty(x.shape) for x in inputs]
        d_state = torch.zeros_like(kept[-1][0])
        for number, place in reversed([*enumerate(tiles(grad, inputs[0].shape[-1], ctx.chunk))]):
            tile = (read_tile(x, place, ctx.chunk) for x in (*inputs, grad))
            with full_precision(grad.device):
                *parts, d_state = _gradients(*tile, d_state, *kept[3 * number : 3 * number + 3])
            for whole, part in zip(grads, parts, strict=True):
                write_tile(part, whole[..., place, :])
        return *grads, None


class _Pairs:
    """What both passes make of q, k, b k = `writes` and the decays of a tile: `both`, k above q [n, 2 C, M]; of each
    with the writes the `scores` [n, 2, C, C], for j <= i; and `since`, both with their decays since the chunk began."""

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
    """y of a tile, the inverses, the errors, and the states [T + 1, heads, M, N] of its T chunks, as in
    `decayed_product`."""
    pairs = _Pairs(q, k, b, g)
    (system, seen), (read, query) = pairs.scores.unbind(-3), pairs.since.unbind(-3)
    eye = torch.eye(q.shape[-2], dtype=q.dtype, device=q.device)
    inverse = solve_triangular(system, eye, upper=False, unitriangular=True)  # reads what is below the diagonal alone
    errors, by_state = inverse @ v, inverse @ read
    states = room(state, len(q))
    states[0] = state
    rows = states.unbind()
    last = (pairs.writes * pairs.decays.until).mT
    chunks = (by_chunk(x, rows) for x in (pairs.decays.whole, errors, by_state, last))
    for before, after, whole, error, by, write in zip(rows[:-1], rows[1:], *chunks, strict=True):
        error.baddbmm_(by, before, alpha=-1)
        torch.mul(whole, before, out=after).baddbmm_(write, error)
    return torch.baddbmm(seen @ errors, query, states[:-1].flatten(0, 1)), inverse, errors, states


def _gradients(
    q: Tensor, k: Tensor, v: Tensor, b: Tensor, g: Tensor, d_y: Tensor,
    d_state: Tensor, inverse: Tensor, errors: Tensor, states: Tensor,
) -> tuple[Tensor, ...]:  # fmt: skip
    """The gradients of q, k, v, b and g of a tile and of the state before it, given those of y and of the state after.

    A decay from j to i weighs what i reads and j writes alike: its gradient is that of reads times reads less that of
    writes times writes, and the state after a chunk holds the chunk's whole decay.
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
    d_found = torch.cat([-d_v, d_y], dim=-2)  # by what k and q find in the states
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
