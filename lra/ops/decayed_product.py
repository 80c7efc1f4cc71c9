"""y_i = sum_{j <= i} sum_m q_im k_jm exp(g_{j+1,m} + ... + g_{i,m}) v_j, with explicit gradients, tile by tile.

Within a chunk all pairs are weighed; earlier positions enter through a state [M, N]. On a CPU a tile of a few chunks
fits into a core's cache. Exactly causal; only products of decays are formed, which never overflow.
Legend: q, k [..., L, M], v [..., L, N], log decays g [..., L, 1], shared by all channels, or [..., L, M]; C a chunk's
length, T the chunks of a tile.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad

from lra.ops.device import cumulative_sum, full_precision

CHUNK = 64
SMALL_CHUNK = 32  # with a decay per channel, or a state that reads itself
TILE = 1 << 18  # elements of a tile's queries
FAR = -80.0  # lower bound of summed log decays: `exp` and products of denormal numbers are many times slower
ROOM = 0.75  # share of the exponent range for the decays of a block; the rest is left for their factors


def decayed_product(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor) -> Tensor:
    """Compute y in time O(L (C + M) (M + N)).

    q, k [..., L, M], v [..., L, N], log_decay g [..., L, 1] or [..., L, M], not positive -> y [..., L, N].
    """
    length = q.shape[-2]
    chunk = min(CHUNK, length) if log_decay.shape[-1] == 1 else min(SMALL_CHUNK, 1 << (length - 1).bit_length())
    return Tiled.apply(_product, _gradients, chunk, q, k, v, log_decay)


class Tiled(torch.autograd.Function):
    """A recurrence tile by tile, with the states between chunks saved.

    `forward(*tiles, state)` returns y of a tile, the states before its chunks and after the last, and what else is
    saved; `backward(*tiles, d_y, d_state, states, ...)` the gradients of the tiles and of the state before them. The
    first three inputs are q, k and v; leading axes broadcast.
    """

    @staticmethod
    def forward(ctx, forward: Callable, backward: Callable, chunk: int, *inputs: Tensor) -> Tensor:
        q, _, v, *_ = inputs
        lead = torch.broadcast_shapes(*(x.shape[:-2] for x in inputs))
        y = torch.empty_like(v) if v.shape[:-2] == lead else v.new_empty(*lead, *v.shape[-2:])
        state = v.new_zeros(lead.numel(), q.shape[-1], v.shape[-1])
        saved: list[Tensor | None] = []
        for place in tiles(y, q.shape[-1], chunk):
            tile = [read_tile(x.expand(*lead, *x.shape[-2:]), place, chunk) for x in inputs]
            product, *kept = forward(*tile, state)
            write_tile(product, y[..., place, :])
            state = kept[0][-1]
            saved += kept
        ctx.save_for_backward(*inputs, *saved)
        ctx.backward, ctx.chunk, ctx.inputs, ctx.kept = backward, chunk, len(inputs), len(kept)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        tensors = ctx.saved_tensors  # activation checkpointing allows one reading
        inputs, saved = tensors[: ctx.inputs], tensors[ctx.inputs :]
        lead, chunk = grad.shape[:-2], ctx.chunk
        grads = [torch.empty_like(x) for x in inputs]
        d_state = torch.zeros_like(saved[0][0])
        for number, place in reversed(list(enumerate(tiles(grad, inputs[0].shape[-1], chunk)))):
            tile = [read_tile(x.expand(*lead, *x.shape[-2:]), place, chunk) for x in (*inputs, grad)]
            kept = saved[number * ctx.kept : (number + 1) * ctx.kept]
            with full_precision(grad.device):
                *parts, d_state = ctx.backward(*tile, d_state, *kept)
            for whole, part in zip(grads, parts, strict=True):
                write_tile(part, whole[..., place, :], lead)
        return None, None, None, *grads


def _product(q: Tensor, k: Tensor, v: Tensor, g: Tensor, state: Tensor) -> tuple[Tensor | None, ...]:
    """Return y of a tile, the states [T + 1, heads, M, N], and the scores if there is a decay per channel."""
    decays = _decays(g)
    scores = decays.scores(q, k)
    states = room(state, len(q))
    states[0] = state
    states[1:].flatten(0, 1).baddbmm_((k * decays.until).mT, v, beta=0)
    rows = states.unbind()
    for before, after, whole in zip(rows[:-1], rows[1:], by_chunk(decays.whole.mT, rows), strict=True):
        after.addcmul_(whole, before)
    y = torch.baddbmm(scores @ v, q * decays.since, states[:-1].flatten(0, 1))
    return y, states, scores if g.shape[-1] > 1 else None


def _gradients(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, d_y: Tensor, d_state: Tensor, states: Tensor, scores: Tensor | None
) -> tuple[Tensor, ...]:
    """Gradients of q, k, v and g of a tile and of the state before it, given those of y and of the state after it.

    A decay from j to i multiplies q_i and k_j alike: its gradient is q times that of q minus k times that of k. The
    state after a chunk contains the decay of the whole chunk.
    """
    decays = _decays(g)
    scores = decays.scores(q, k) if scores is None else scores
    by_scores = d_y @ v.mT
    d_q, d_k = decays.gradients(by_scores, q, k)
    d_states = room(d_state, len(q))
    d_states[-1] = d_state
    d_states[:-1].flatten(0, 1).baddbmm_((q * decays.since).mT, d_y, beta=0)
    rows = d_states.unbind()[::-1]
    for after, before, whole in zip(rows[:-1], rows[1:], by_chunk(decays.whole.mT, rows)[::-1], strict=True):
        before.addcmul_(whole, after)
    d_after = d_states[1:].flatten(0, 1)
    reads, writes = d_y @ states[:-1].flatten(0, 1).mT, v @ d_after.mT
    d_q.addcmul_(reads, decays.since)
    d_k.addcmul_(writes, decays.until)
    d_v = torch.baddbmm(scores.mT @ d_y, k * decays.until, d_after)
    d_whole = (states[1:].flatten(0, 1) * d_after).sum(dim=-1)
    if g.shape[-1] == 1:
        d_within, d_whole = by_decays(by_scores * scores), d_whole.sum(dim=-1, keepdim=True)
        d_within += (q * reads).sum(dim=-1, keepdim=True) * decays.since
        d_within -= (k * writes).sum(dim=-1, keepdim=True) * decays.until
    else:
        d_within = torch.addcmul(q * d_q, k, d_k, value=-1)
    d_within[:, -1] += d_whole
    return d_q, d_k, d_v, from_here_on(d_within), d_states[0]


def by_decays(pairs: Tensor) -> Tensor:
    """Gradients of the cumulated log decays, given scores times their gradients [., C, C]: query sums minus key sums.

    The diagonal, where there is no decay, is removed: under strong decays rounding would hide all other terms.
    """
    pairs.diagonal(dim1=-2, dim2=-1).zero_()
    return pairs.sum(dim=-1, keepdim=True) - pairs.sum(dim=-2).unsqueeze(-1)


def from_here_on(x: Tensor) -> Tensor:
    """x_i + x_{i+1} + ... to the end of the chunk; x [..., C, .]."""
    return torch.ones(x.shape[-2], x.shape[-2], dtype=x.dtype, device=x.device).triu() @ x


def room(state: Tensor, chunks: int) -> Tensor:
    """Uninitialised states [T + 1, heads, M, N], given the number of chunks of all heads."""
    return state.new_empty(chunks // len(state) + 1, *state.shape)


def by_chunk(whole: Tensor, rows: Sequence[Tensor]) -> Sequence[Tensor]:
    """Split decays [T heads, ...] into one tensor [heads, ...] for each of T chunks."""
    return whole.unflatten(0, (len(rows) - 1, -1)).unbind()


def tiles(y: Tensor, width: int, chunk: int) -> Iterator[slice]:
    """Yield the positions of each tile of y [..., L, N]; on an accelerator there is one tile."""
    length = y.shape[-2]
    positions = TILE // max(1, y[..., 0, 0].numel() * max(width, y.shape[-1]))
    size = max(chunk, positions // chunk * chunk)
    if y.device.type != "cpu" or length <= size:
        yield slice(0, length)
    else:
        yield from (slice(start, min(start + size, length)) for start in range(0, length, size))


def read_tile(x: Tensor, place: slice, chunk: int) -> Tensor:
    """Cut [..., L, .] into chunks [T heads, C, .], zero-padded; the first chunks of all heads come first."""
    part = x[..., place, :]
    fill = -part.shape[-2] % chunk
    part = (pad(part, (0, 0, 0, fill)) if fill else part).unflatten(-2, (-1, chunk))
    return part.movedim(-3, 0).reshape(-1, *part.shape[-2:])


def write_tile(part: Tensor, into: Tensor, lead: Sequence[int] = ()) -> None:
    """Inverse of `read_tile`, into a view [..., positions, .]; sums over broadcast heads."""
    part = part.unflatten(0, (-1, *(lead or into.shape[:-2]))).movedim(0, -3)
    part = part.sum_to_size(*into.shape[:-2], *part.shape[-3:])
    length, sizes = into.shape[-2], part.shape[-3:-1]
    if length == sizes.numel():
        into.unflatten(-2, sizes).copy_(part)
    else:
        into.copy_(part.flatten(-3, -2)[..., :length, :])


def _decays(g: Tensor) -> "HeadDecays | ChannelDecays":
    return HeadDecays(g) if g.shape[-1] == 1 else ChannelDecays(g)


class HeadDecays:
    """Decays of a chunk with log decays [., C, 1].

    `between` [., C, C] is exp(g_{j+1} + ... + g_i) for j <= i, else 0; `since` the decay from the chunk's start to a
    position, `until` from a position to its end, `whole` over the chunk.
    """

    def __init__(self, g: Tensor) -> None:
        within = cumulative_sum(g.double(), -2)  # differences behind a strong decay keep all digits of fp32
        self.between = (within - within.mT).to(g.dtype).clamp_(min=FAR, max=0).exp_().tril_()
        self.since = within.to(g.dtype).exp()
        self.until = (within[..., -1:, :] - within).to(g.dtype).exp_()
        self.whole = self.since[..., -1:, :]

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        """(q_i . k_j) times the decay from j to i."""
        return (q @ k.mT).mul_(self.between)

    def gradients(self, grad: Tensor, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Gradients of q and k, given that of the scores."""
        grad = grad * self.between
        return grad @ k, grad.mT @ q


class ChannelDecays:
    """Decays of a chunk with log decays [..., C, M], C a power of two; exactly causal.

    Pairs within a block use decays since its first position and their reciprocals. For positions in different blocks
    the decay is split at the middle of one of 2, 4, ... blocks into a factor of the query and one of the key, neither
    above 1.

    Args:
        g: log decays.
        least: lower bound of g. Without it a block has four positions, and g is clamped so far down that the rest of a
            channel is below rounding: exp(-22) in fp32.
    """

    def __init__(self, g: Tensor, least: float | None = None) -> None:
        room = ROOM * math.log(torch.finfo(g.dtype).max)
        self.block = g.shape[-2]
        if least is None:
            self.block, g = min(self.block, 4), g.clamp(min=-room / 3)
        else:
            while (self.block - 1) * -least > room:
                self.block //= 2
        self.each = g.exp()
        self.whole = g.sum(dim=-2, keepdim=True).exp_()  # a product over all positions rounds more

    def parts(self) -> Iterator["_Part"]:
        """Yield the parts of all pairs; afterwards `since` and `until` are those of the chunk."""
        size, since = 1, torch.ones_like(self.each)
        while size < self.block:
            first, second = since.unflatten(-2, (-1, 2, size)).unbind(-3)
            second.mul_(first[..., -1:, :] * self.each[..., size :: 2 * size, :].unsqueeze(-2))
            size *= 2
        since = since.unflatten(-2, (-1, size))
        until = since.reciprocal()
        yield _Part(since, until, neighbours=False)
        until.mul_(since[..., -1:, :])
        since.mul_(self.each[..., ::size, :].unsqueeze(-2))
        self.since, self.until = since.flatten(-3, -2), until.flatten(-3, -2)
        while size < self.each.shape[-2]:
            first_since, second_since = self.since.unflatten(-2, (-1, 2, size)).unbind(-3)
            first_until, _ = self.until.unflatten(-2, (-1, 2, size)).unbind(-3)
            yield _Part(second_since, first_until, neighbours=True)
            first_until.mul_(second_since[..., -1:, :])
            second_since.mul_(first_since[..., -1:, :])
            size *= 2

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        """`all_scores` of one query and one key per position."""
        return self.all_scores(q.unsqueeze(-3), k.unsqueeze(-3)).squeeze(-2).squeeze(-3)

    def gradients(self, grad: Tensor, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Gradients of q and k, given that of the scores."""
        d_q, d_k = self.all_gradients(grad.unsqueeze(-2).unsqueeze(-4), q.unsqueeze(-3), k.unsqueeze(-3))
        return d_q.squeeze(-3), d_k.squeeze(-3)

    def all_scores(self, q: Tensor, k: Tensor) -> Tensor:
        """Compute sum_m q_im k_jm exp(g_{j+1,m} + ... + g_{i,m}) for j <= i, else 0.

        P queries q [..., P, C, M] and R keys k [..., R, C, M] of each position -> [..., P, C, R, C].
        """
        scores = q.new_zeros(*q.shape[:-1], k.shape[-3], q.shape[-2])
        for part in self.parts():
            pairs = part.reads(q) @ part.keys(k).mT
            pairs = pairs.unflatten(-1, (-1, part.size)).unflatten(-3, (-1, part.size))
            part.pairs(scores).copy_(part.seen(pairs))
        return scores

    def all_gradients(self, grad: Tensor, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Gradients of q and k, given that of the scores."""
        d_q, d_k = torch.zeros_like(q), torch.zeros_like(k)
        for part in self.parts():
            pairs = part.seen(part.pairs(grad).contiguous()).flatten(-2).flatten(-3, -2)
            by_q = (pairs @ part.keys(k)).unflatten(-2, (-1, part.size))
            by_k = (pairs.mT @ part.reads(q)).unflatten(-2, (-1, part.size))
            part.blocks(d_q, 1).addcmul_(by_q, part.since.unsqueeze(-3))
            part.blocks(d_k, 0).addcmul_(by_k, part.until.unsqueeze(-3))
        return d_q, d_k


@dataclass(frozen=True)
class _Part:
    """Pairs of a query in a block of `size` positions with a key of the same block, or of the block before it.

    With `neighbours` the queries are in every second block. `since` and `until` are the decays of queries and keys.
    """

    since: Tensor
    until: Tensor
    neighbours: bool

    @property
    def size(self) -> int:
        return self.since.shape[-2]

    def blocks(self, x: Tensor, of_pair: int) -> Tensor:
        """[..., P, C, M] -> [..., blocks, P, size, M] of the blocks `of_pair`, 0 or 1, of each pair, or of all."""
        blocks = x.unflatten(-2, (-1, self.size)).movedim(-3, -4)
        return blocks[..., of_pair::2, :, :, :] if self.neighbours else blocks

    def reads(self, q: Tensor) -> Tensor:
        """Decayed queries [..., blocks, P size, M]."""
        return (self.blocks(q, 1) * self.since.unsqueeze(-3)).flatten(-3, -2)

    def keys(self, k: Tensor) -> Tensor:
        """Decayed keys [..., blocks, R size, M]."""
        return (self.blocks(k, 0) * self.until.unsqueeze(-3)).flatten(-3, -2)

    def pairs(self, scores: Tensor) -> Tensor:
        """View [..., blocks, P, size, R, size] of scores [..., P, C, R, C]."""
        span = 2 * self.size if self.neighbours else self.size
        in_blocks = scores.unflatten(-1, (-1, span)).unflatten(-4, (-1, span))
        blocks = in_blocks.diagonal(dim1=-5, dim2=-2).movedim(-1, -5)
        return blocks[..., self.size :, :, : self.size] if self.neighbours else blocks

    def seen(self, pairs: Tensor) -> Tensor:
        """Zero, in place, the pairs [..., size, R, size] whose key comes later."""
        if self.neighbours:
            return pairs
        later = torch.ones(self.size, self.size, dtype=torch.bool, device=pairs.device).triu(1)
        return pairs.masked_fill_(later.unsqueeze(-2), 0)
