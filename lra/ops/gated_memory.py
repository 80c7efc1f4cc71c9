"""Gated memories in one or both directions: y_i = sum over directions of C_i^T q_i / max(|n_i . q_i|, least_i).

In the first direction C_i = exp(g_i) C_{i-1} + exp(a_i) k_i v_i^T and n_i = exp(g_i) n_{i-1} + exp(a_i) k_i; the second
runs from the end to the beginning, with its own a, g and least. Queries, keys and values are shared, so that one matrix
per chunk weighs the values, and the states of both are side by side. Gradients are explicit.
Legend: as in `lra.ops.decayed_product`; W directions, 1 or 2; S chunks in all, b = T H chunks of all heads in a tile.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from lra.ops.decayed_product import FAR, read_tile, tiles, write_tile
from lra.ops.device import cumulative_sum


def gated_memory(
    q: Tensor, k: Tensor, v: Tensor, log_in: Tensor, log_decay: Tensor, log_least: Tensor, chunk: int
) -> Tensor:
    """Compute y.

    q, k [..., L, M], v [..., L, N], log_in a, log_decay g and log_least [..., L, W], none of them positive
    -> y [..., L, N]; log_least, the logarithm of least, gets no gradient. `chunk`: positions of a chunk.
    """
    return _GatedMemory.apply(q, k, v, torch.cat([log_in, log_decay, log_least.detach()], dim=-1), chunk)


class _GatedMemory(torch.autograd.Function):
    """Saves its inputs, the masses n_i . q_i, and the states before each chunk."""

    @staticmethod
    def forward(ctx, q: Tensor, k: Tensor, v: Tensor, numbers: Tensor, chunk: int) -> Tensor:
        y, masses = torch.empty_like(v), numbers[..., : numbers.shape[-1] // 3].clone()
        places = [*tiles(y, q.shape[-1] * masses.shape[-1], chunk)]
        parts = [_Tile(*(read_tile(x, place, chunk) for x in (q, k, v, numbers))) for place in places]
        states = _carried([part.written() for part in parts], parts, v.shape[:-2].numel())
        for part, place, before in zip(parts, places, _of_tiles(states, parts), strict=True):
            read, mass = part.read(*before)
            write_tile(read, y[..., place, :])
            write_tile(mass, masses[..., place, :])
        ctx.save_for_backward(q, k, v, numbers, masses, *states)
        ctx.chunk = chunk
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, d_y: Tensor) -> tuple[Tensor | None, ...]:
        *inputs, masses, memory, mass = ctx.saved_tensors
        grads = [torch.zeros_like(x) for x in inputs]
        places = [*tiles(d_y, inputs[0].shape[-1] * masses.shape[-1], ctx.chunk)]
        parts = [_Tile(*(read_tile(x, place, ctx.chunk) for x in inputs)) for place in places]
        befores = [*_of_tiles([memory, mass], parts)]
        by_reads = [
            part.by_reads(*(read_tile(x, place, ctx.chunk) for x in (d_y, masses)), *before)
            for part, place, before in zip(parts, places, befores, strict=True)
        ]
        d_states = _carried(by_reads, parts, d_y.shape[:-2].numel(), turned=True)
        for part, place, before, after in zip(parts, places, befores, _of_tiles(d_states, parts), strict=True):
            for whole, gradient in zip(grads, part.gradients(before, after), strict=True):
                write_tile(gradient, whole[..., place, : gradient.shape[-1]])
        return *grads, None


class _Tile:
    """q, k, v [b, C, .] and the numbers a, g, log(least) [b, C, 3 W] of a tile; states [b, W, M, N] and [b, W, M].

    The second direction is the first one reversed.
    """

    def __init__(self, q: Tensor, k: Tensor, v: Tensor, numbers: Tensor) -> None:
        self.q, self.k, self.v = q, k, v
        arrives, decay, least = numbers.chunk(3, dim=-1)
        within = cumulative_sum(decay, -2)
        whole = within[:, -1:]
        self.second = torch.arange(decay.shape[-1], device=q.device) == 1
        self.rows = torch.where(self.second, decay - within, within)
        self.columns = arrives - self.rows
        self.since = (self.rows + whole * self.second).exp_()
        self.until = (self.columns + whole * ~self.second).exp_()
        self.whole, self.least = whole.exp(), least.exp()

    def between(self) -> Tensor:
        """exp of the input gate of each key plus the log decays up to each query [b, W, C, C]."""
        rows, columns = self.rows.mT.contiguous(), self.columns.mT.contiguous()
        pairs = (rows.unsqueeze(-1) + columns.unsqueeze(-2)).clamp_(min=FAR, max=0).exp_()
        for way, seen in enumerate(pairs.unbind(1)):
            seen.triu_() if way else seen.tril_()
        return pairs

    def written(self) -> tuple[Tensor, Tensor]:
        """Additions of the chunks to the states."""
        written = by_direction(self.k, self.until)
        return (written.flatten(2).mT @ self.v).unflatten(1, written.shape[2:]), written.sum(dim=1)

    def read(self, memory: Tensor, mass: Tensor) -> tuple[Tensor, Tensor]:
        """Return y and the masses [b, C, W]."""
        weights = self.between().mul_((self.q @ self.k.mT).unsqueeze(1))
        reads = by_direction(self.q, self.since)
        masses = weights.sum(dim=-1).mT + (reads * mass.unsqueeze(1)).sum(dim=-1)
        share = self.share(masses)
        y = joined(weights, share) @ self.v
        return y.baddbmm_(reads.mul_(share.unsqueeze(-1)).flatten(2), memory.flatten(1, 2)), masses

    def share(self, masses: Tensor) -> Tensor:
        return torch.maximum(masses.abs(), self.least).reciprocal_()

    def by_reads(self, d_y: Tensor, masses: Tensor, memory: Tensor, mass: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradients of the states, and store those of the inputs as far as they come from reads."""
        between, share = self.between(), self.share(masses)
        weights = between * (self.q @ self.k.mT).unsqueeze(1)
        reads = by_direction(self.q, self.since)
        d_joined = (d_y @ self.v.mT).unsqueeze(1)
        d_reads = (d_y @ memory.flatten(1, 2).mT).unflatten(-1, mass.shape[1:])
        d_share = (d_joined * weights).sum(dim=-1).mT + (d_reads * reads).sum(dim=-1)
        d_masses = torch.where(masses.abs() > self.least, -masses.sign() * share.square() * d_share, 0)
        d_weights = torch.addcmul(d_masses.mT.unsqueeze(-1), d_joined, share.mT.unsqueeze(-1))
        d_reads.mul_(share.unsqueeze(-1)).addcmul_(d_masses.unsqueeze(-1), mass.unsqueeze(1))
        pairs = d_weights * weights
        self.by_column = pairs.sum(dim=-2).mT
        self.by_since = (d_reads * reads).sum(dim=-1)
        self.by_row = pairs.sum(dim=-1).mT + self.by_since
        d_mass = (reads * d_masses.unsqueeze(-1)).sum(dim=1)
        d_memory = (reads.mul_(share.unsqueeze(-1)).flatten(2).mT @ d_y).unflatten(1, mass.shape[1:])
        d_scores = d_weights.mul_(between).sum(dim=1)
        self.d_q = d_reads.mul_(self.since.unsqueeze(-1)).sum(dim=2).baddbmm_(d_scores, self.k)
        self.d_k, self.d_v = d_scores.mT @ self.q, joined(weights, share).mT @ d_y
        return d_memory, d_mass

    def gradients(self, before: Sequence[Tensor], after: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Gradients of q, k, v, a and g, given those of the states after each chunk."""
        d_memory, d_mass = after
        written = by_direction(self.k, self.until)
        d_written = (self.v @ d_memory.flatten(1, 2).mT).unflatten(-1, d_mass.shape[1:]).add_(d_mass.unsqueeze(1))
        self.d_v.baddbmm_(written.flatten(2), d_memory.flatten(1, 2))
        by_until = written.mul_(d_written).sum(dim=-1)
        self.d_k += d_written.mul_(self.until.unsqueeze(-1)).sum(dim=2)
        by_column = self.by_column + by_until
        kept = (before[0] * d_memory).sum(dim=(-1, -2)) + (before[1] * d_mass).sum(dim=-1)
        d_whole = torch.where(self.second, self.by_since, by_until).sum(dim=1) + self.whole.squeeze(1) * kept
        d_rows = self.by_row - by_column
        d_within = torch.where(self.second, -d_rows, d_rows)
        d_within[:, -1] += d_whole
        onwards = d_within.new_ones((d_within.shape[1],) * 2).tril()
        d_decay = (d_within.mT @ onwards).mT + d_rows * self.second
        return self.d_q, self.d_k, self.d_v, torch.cat([by_column, d_decay], dim=-1)


def by_direction(x: Tensor, numbers: Tensor) -> Tensor:
    """x [b, C, M] times the numbers [b, C, W] of each direction: [b, C, W, M]."""
    return x.unsqueeze(-2) * numbers.unsqueeze(-1)


def joined(weights: Tensor, share: Tensor) -> Tensor:
    """Sum of the weights [b, W, C, C] of all directions times their share, [b, C, C], in place."""
    return weights.mul_(share.mT.unsqueeze(-1)).sum(dim=1)


def _carried(
    fresh: Sequence[Sequence[Tensor]], parts: Sequence[_Tile], heads: int, turned: bool = False
) -> list[Tensor]:
    """Memories and masses [S H, W, M, .] before each chunk, or after it if `turned`, given the additions of chunks."""
    whole = torch.cat([part.whole for part in parts]).squeeze(1).unflatten(0, (-1, heads))
    between = []
    for each in zip(*fresh, strict=True):
        added = torch.cat(each).unflatten(0, (-1, heads))
        states = torch.empty_like(added)
        kept = whole.reshape(*whole.shape, *(1,) * (added.dim() - 3))
        for way in range(whole.shape[-1]):
            fresh_of, state, keep = (x[:, :, way].unbind() for x in (added, states, kept))
            order = range(len(fresh_of))[:: -1 if (way == 1) != turned else 1]
            state[order[0]].zero_()
            for here, there in pairwise(order):
                state[there].copy_(torch.addcmul(fresh_of[here], keep[here], state[here]))
        between.append(states.flatten(0, 1))
    return between


def _of_tiles(states: Sequence[Tensor], parts: Sequence[_Tile]) -> Iterator[tuple[Tensor, ...]]:
    return zip(*(state.split([len(part.q) for part in parts]) for state in states), strict=True)
