"""Compute recurrences over positions in chunks: matrix products within a chunk, a state passed between chunks.

All are exactly causal, with time and memory linear in the length L. Decays are given as logarithms, none positive, so
no decay from an earlier to a later position exceeds 1.
Legend: M width of queries and keys, N width of values, a state is [M, N]; C positions per chunk, T chunks per tile.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.linalg import solve_triangular
from torch.nn.functional import pad
from torch.utils.checkpoint import checkpoint

from lra.ops.device import cumulative_sum

CHUNK = 64  # number of positions in a chunk
SMALL_CHUNK = 32  # number of positions in a chunk of a recurrence with a decay per channel or a delta rule
BLOCK = 4  # number of positions in a block of `channel_scores`
# Maximum number of query (or, if wider, value) elements in a tile on a CPU; with half or twice as many elements a step
# was 5 % slower.
TILE = 1 << 19
# Summed log decays below this count as -inf, because `exp` and products of denormal numbers are many times slower.
MIN_LOG_DECAY = -80.0
# Fraction of the exponent range for the decays of a block; the rest is for the queries and keys that they multiply.
HEADROOM = 0.75


def both_ways(recurrence: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    """Return recurrence(*inputs) plus the recurrence from the last position to the first; inputs [..., L, .]."""
    # The second `flip` puts the outputs back in the order of the positions.
    return recurrence(*inputs) + recurrence(*(x.flip(-2) for x in inputs)).flip(-2)


def causal_product(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor | None = None) -> Tensor:
    """Compute y_i = sum_{j <= i} (q_i . k_j) exp(g_{j+1} + ... + g_i) v_j.

    Time O(L (CHUNK + M) (M + N)), memory O(L (M + CHUNK) + L M N / CHUNK).

    q, k [..., L, M], v [..., L, N], log_decay g [..., L], not positive, or None for no decay -> y [..., L, N].
    """
    if log_decay is not None:
        return decayed_product(q, k, v, log_decay.unsqueeze(-1))
    length = q.shape[-2]
    q, k, v = in_chunks(min(CHUNK, length), q, k, v)  # [..., chunks, C, M or N]
    y = (q @ k.mT).tril() @ v  # [..., chunks, C, N]
    if y.shape[-3] > 1:
        state = cumulative_sum((k.mT @ v)[..., :-1, :, :], -3)  # [..., chunks - 1, M, N]
        y = y + q @ pad(state, (0, 0, 0, 0, 1, 0))  # the first chunk starts from zero
    return y.flatten(-3, -2)[..., :length, :]


def decayed_product(q: Tensor, k: Tensor, v: Tensor, log_decay: Tensor, chunk: int = CHUNK) -> Tensor:
    """Compute y_i = sum_{j <= i} sum_m q_im k_jm exp(g_{j+1,m} + ... + g_{i,m}) v_j in time O(L (C + M) (M + N)).

    q, k [..., L, M], v [..., L, N], log_decay g [..., L, 1], shared by all channels, or [..., L, M], not positive
    -> y [..., L, N]. `chunk`: number C of positions in a chunk, used only with a decay shared by all channels.
    """
    length = q.shape[-2]
    # `channel_scores` needs chunks whose length is a power of 2.
    chunk = min(chunk, length) if log_decay.shape[-1] == 1 else min(SMALL_CHUNK, 1 << (length - 1).bit_length())
    return by_tiles(_with_decays, chunk, q, k, v, log_decay)


def delta_rule(q: Tensor, k: Tensor, v: Tensor, strength: Tensor, log_decay: Tensor) -> Tensor:
    """Compute the gated delta rule in time O(L (SMALL_CHUNK + M) (M + N)).

    S_i = exp(g_i) S_{i-1} + b_i k_i e_i^T, e_i = v_i - exp(g_i) S_{i-1}^T k_i, y_i = S_i^T q_i.

    q, k [..., L, M], v [..., L, N], strength b [..., L], log_decay g [..., L], not positive -> y [..., L, N].

    Source:
        Yang et al. 2025, Gated Delta Networks, section 3.3.
    """
    chunk = min(SMALL_CHUNK, q.shape[-2])
    return by_tiles(_with_corrections, chunk, q, k, v, strength.unsqueeze(-1), log_decay.unsqueeze(-1))


def dplr_delta_rule(q: Tensor, a: Tensor, b: Tensor, v: Tensor, log_decay: Tensor, k: Tensor) -> Tensor:
    """Compute y_i = S_i^T q_i for the state S_i = exp(g_i) S_{i-1} + b_i a_i^T S_{i-1} + k_i v_i^T.

    In a chunk that starts from the state S, the matrix z with the rows z_i = S_{i-1}^T a_i is (1 - A)^-1 (A' v + a' S).
    For j < i, A_ij = sum_m a_im b_jm exp(g_{j+1,m} + ... + g_{i-1,m}), and A'_ij is the same sum with k_j instead of
    b_j. Other entries are 0. a'_i is a_i times the decay from the chunk's start through position i - 1. So the state
    after the chunk is a matrix [M, M] times S, plus a term without S. Time O(L (SMALL_CHUNK + M) (M + N)).

    q, a, b, k [..., L, M], v [..., L, N], log_decay g [..., L, M], not positive -> y [..., L, N].

    Source:
        Yang et al. 2024, Parallelizing Linear Transformers with the Delta Rule over Sequence Length.
    """
    length = q.shape[-2]
    # Each is [..., chunks, C, M or N]; C is a power of 2, as `channel_scores` requires.
    q, a, b, v, decay, k = in_chunks(min(SMALL_CHUNK, 1 << (length - 1).bit_length()), q, a, b, v, log_decay, k)
    next_a = pad(a[..., 1:, :], (0, 0, 0, 1))  # shifted by one: a_i reads the state after position i - 1
    # Shapes [..., 2, 2, C, C], [..., 2, C, M], [..., 2, C, M] and [..., 1, M].
    scores, reads, writes, kept = channel_scores(torch.stack([q, next_a], -3), torch.stack([b, k], -3), decay)
    (seen_b, seen_k), (read_b, read_k) = (by_query.unbind(-3) for by_query in scores.unbind(-4))  # each [..., C, C]
    read_b, read_k = (pad(x[..., :-1, :], (0, 0, 1, 0)) for x in (read_b, read_k))  # undo the shift
    read_q, read_a = reads.unbind(-3)  # [..., C, M]
    # Undo the shift here, too. The chunk's first position reads the state before the chunk without a decay.
    read_a = torch.cat([a[..., :1, :], read_a[..., :-1, :]], dim=-2)
    write_b, write_k = (x.mT for x in writes.unbind(-3))  # [..., M, C]
    system = torch.eye(q.shape[-2], dtype=q.dtype, device=q.device) - read_b  # 1 - A [..., C, C]
    solved = solve_triangular(system, torch.cat([read_k @ v, read_a], dim=-1), upper=False)  # [..., C, N + M]
    z, z_by_state = solved.split([v.shape[-1], q.shape[-1]], dim=-1)  # [..., C, N] and [..., C, M]
    added = write_b @ z + write_k @ v  # [..., chunks, M, N]
    carry = torch.diag_embed(kept.squeeze(-2)) + write_b @ z_by_state  # [..., chunks, M, M]
    state, before = torch.zeros_like(added[..., 0, :, :]), []
    for new, keep in zip(added.unbind(-3), carry.unbind(-3), strict=True):
        before.append(state)
        state = new + keep @ state
    # `before` has one state per chunk; stacked, they are [..., chunks, M, N].
    y = seen_b @ z + seen_k @ v + (read_q + seen_b @ z_by_state) @ torch.stack(before, dim=-3)
    return y.flatten(-3, -2)[..., :length, :]


def in_chunks(chunk: int, *inputs: Tensor) -> list[Tensor]:
    """Cut each input [..., L, .] into chunks [..., chunks, C, .], padded with zeros."""
    return [pad(x, (0, 0, 0, -x.shape[-2] % chunk)).unflatten(-2, (-1, chunk)) for x in inputs]


def by_tiles(recurrence: Callable[..., tuple[Tensor, Tensor]], chunk: int, *inputs: Tensor) -> Tensor:
    """Return the outputs [..., L, N] of a recurrence, computed tile by tile; a tile is T consecutive chunks.

    The backward pass recomputes each tile, so only its inputs and the state before it are saved. Saving the scores of
    all chunks would triple the memory of a step. On a CPU, T is chosen so that most tensors of a tile fit in the cache;
    on an accelerator, one tile holds all chunks.

    Args:
        recurrence: called as `recurrence(*tiles, state)`, with one tile [T, ..., C, .] of each input, and with the
            state [..., M, N] before the tile; returns y [T, ..., C, N] and the state after the tile.
        chunk: number of positions in a chunk, C.
        inputs: q and k [..., L, M], v [..., L, N], and others [..., L, .]; leading axes broadcast.
    """

    def tile_of(*parts: Tensor) -> tuple[Tensor, Tensor]:
        *tile, state = parts
        # Move the chunk axis first and make tiles contiguous; otherwise every product would copy its factors.
        chunks = [x.movedim(-3, 0).contiguous() for x in in_chunks(chunk, *tile)]
        y, state = recurrence(*chunks, state)
        # [T, ..., C, N] -> [..., T C, N], then cut to the positions of the tile.
        return y.movedim(0, -3).flatten(-3, -2)[..., : tile[0].shape[-2], :], state

    q, _, v, *_ = inputs
    lead, size = torch.broadcast_shapes(*(x.shape[:-2] for x in inputs)), q.shape[-2]
    if q.device.type == "cpu":
        size = chunk * max(1, TILE // (lead.numel() * chunk * max(q.shape[-1], v.shape[-1])))
    state, outputs = v.new_zeros(*lead, q.shape[-1], v.shape[-1]), []
    # Give all inputs the same number of axes, so that they broadcast after `tile_of` has moved the chunk axis first.
    aligned = (x[(None,) * (len(lead) + 2 - x.dim())] for x in inputs)
    for tile in zip(*(x.split(size, dim=-2) for x in aligned), strict=True):
        y, state = checkpoint(tile_of, *tile, state, use_reentrant=False, preserve_rng_state=False)
        outputs.append(y)
    return torch.cat(outputs, dim=-2)


def _with_decays(q: Tensor, k: Tensor, v: Tensor, g: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Return y and the next state for a tile of `decayed_product`, with log decays g [T, ..., C, 1 or M]."""
    if g.shape[-1] == 1:
        between, since, until = head_decays(g)
        scores, reads, writes, kept = q @ k.mT * between, q * since, k * until, since[..., -1:, :]
    else:  # `channel_scores` has axes for several queries and keys of each position; here they have size 1
        scores, reads, writes, kept = channel_scores(q.unsqueeze(-3), k.unsqueeze(-3), g)
        scores, reads, writes = scores.squeeze((-4, -3)), reads.squeeze(-3), writes.squeeze(-3)
    before = []  # the state before each chunk
    for keep, added in zip(kept.mT.unbind(), (writes.mT @ v).unbind(), strict=True):
        before.append(state)
        state = torch.addcmul(added, keep, state)  # [..., M, N]
    return scores @ v + reads @ torch.stack(before), state


def _with_corrections(q: Tensor, k: Tensor, v: Tensor, b: Tensor, g: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Return y and the next state for a tile of `delta_rule`.

    In a chunk that starts from the state S, the errors are (1 + A)^-1 (V - K' S) with k'_i = exp(g_1 + ... + g_i) k_i
    and A_ij = (k_i . b_j k_j) exp(g_{j+1} + ... + g_i) for j < i. (1 + A)^-1 V and (1 + A)^-1 K' are computed for all
    chunks at once; the loop over chunks then combines them with S.
    """
    between, since, until = head_decays(g)
    writes = b * k
    system = k @ writes.mT * between  # `solve_triangular` reads only entries below the diagonal
    # [T, ..., C, N + M]
    solved = solve_triangular(system, torch.cat([v, k * since], dim=-1), upper=False, unitriangular=True)
    from_values, by_state = solved.split([v.shape[-1], k.shape[-1]], dim=-1)
    errors, before = [], []
    # Per chunk: its decay [..., 1, 1], `from_values` [..., C, N], `by_state` [..., C, M] and the writes [..., M, C].
    by_chunk = (x.unbind() for x in (since[..., -1:, :], from_values, by_state, (writes * until).mT))
    for whole, from_value, by, write in zip(*by_chunk, strict=True):
        before.append(state)
        errors.append(from_value - by @ state)  # [..., C, N]
        state = whole * state + write @ errors[-1]  # [..., M, N]
    read = q @ writes.mT * between  # [T, ..., C, C]
    return read @ torch.stack(errors, dim=0) + (q * since) @ torch.stack(before, dim=0), state


def head_decays(g: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the decays between positions of a chunk from log decays g [..., C, 1].

    Returns:
        between: [..., C, C], exp(g_{j+1} + ... + g_i) for j <= i, else 0.
        since: [..., C, 1], decay from the chunk's start through each position.
        until: [..., C, 1], decay after each position to the chunk's end.
    """
    # Sum in float64, so that differences of sums keep all digits of fp32 after a strong decay, and so that the two
    # terms of each diagonal entry of `between` cancel in the gradient of g.
    within = cumulative_sum(g.double(), -2)  # [..., C, 1]
    later = torch.ones(g.shape[-2], g.shape[-2], dtype=torch.bool, device=g.device).triu(1)
    apart = (within - within.mT).to(g.dtype)  # [..., C, C]; above the diagonal it is not a decay
    between = apart.masked_fill((apart < MIN_LOG_DECAY) | later, -torch.inf).exp()
    return between, within.to(g.dtype).exp(), (within[..., -1:, :] - within).to(g.dtype).exp()


def channel_scores(q: Tensor, k: Tensor, g: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compute the scores sum_m q_im k_jm exp(g_{j+1,m} + ... + g_{i,m}) for j <= i, else 0; C is a power of 2.

    Within blocks of `BLOCK` positions, the decay from j to i is the quotient of their decays since the block's start.
    Then neighbouring spans, at first the blocks, are joined in pairs. For a query in the second span and a key in the
    first, the query is multiplied by the decay since the middle of the pair, and the key by the decay until the middle.
    Neither decay exceeds 1.

    Args:
        q: P queries of each position [..., P, C, M].
        k: R keys of each position [..., R, C, M].
        g: log decays [..., C, M].

    Returns:
        scores: [..., P, R, C, C].
        reads: [..., P, C, M], queries times the decay from the chunk's start through their position.
        writes: [..., R, C, M], keys times the decay after their position to the chunk's end.
        kept: [..., 1, M], decay of the whole chunk.
    """
    chunk, size = g.shape[-2], min(BLOCK, g.shape[-2])
    # Clamp decays to at least exp(-22) in fp32, so that no quotient within a block overflows. Contributions with a
    # smaller decay are below the rounding error.
    lowest = -HEADROOM * math.log(torch.finfo(g.dtype).max) / (BLOCK - 1)
    first, *others = g.clamp(min=lowest).exp().unflatten(-2, (-1, size)).unbind(-2)  # each [..., blocks, M]
    rows = [torch.ones_like(first)]
    for decay in others:
        rows.append(rows[-1] * decay)
    within = torch.stack(rows, dim=-2).unsqueeze(-4)  # [..., 1, blocks, size, M], decays after a block's position 0
    reads = q.unflatten(-2, (-1, size)) * within  # [..., P, blocks, size, M]
    writes = k.unflatten(-2, (-1, size)) / within  # [..., R, blocks, size, M]
    scores = (reads.unsqueeze(-4) @ writes.unsqueeze(-5).mT).tril()  # [..., P, R, blocks, size, size]
    # `reads` and `writes` are relative to the first position of their block, so each block of a span needs two
    # decays [..., spans, blocks of a span, M]: from the span's start through that position, and after that position to
    # the span's end.
    since, until = first.unsqueeze(-2), rows[-1].unsqueeze(-2)
    kept = since * until
    while size < chunk:
        since_1, since_2 = since.unflatten(-3, (-1, 2)).unbind(-3)  # for the first and the second span of each pair
        until_1, until_2 = until.unflatten(-3, (-1, 2)).unbind(-3)
        kept_1, kept_2 = kept.unflatten(-3, (-1, 2)).unbind(-3)  # [..., pairs, 1, M]
        scores_1, scores_2 = scores.unflatten(-3, (-1, 2)).unbind(-3)  # [..., P, R, pairs, size, size]
        pairs = (-1, 2, since.shape[-2])
        late = reads.unflatten(-3, pairs).unbind(-4)[1]  # [..., P, pairs, blocks of a span, BLOCK, M]
        early = writes.unflatten(-3, pairs).unbind(-4)[0]
        late = (late * since_2[..., None, :, :, None, :]).flatten(-3, -2)  # [..., P, pairs, size, M]
        early = (early * until_1[..., None, :, :, None, :]).flatten(-3, -2)
        across = late.unsqueeze(-4) @ early.unsqueeze(-5).mT  # [..., P, R, pairs, size, size]
        # [..., P, R, pairs, 2 size, 2 size]; the upper right quarter is zero, because its keys are later.
        scores = torch.cat([pad(scores_1, (0, size)), torch.cat([across, scores_2], dim=-1)], dim=-2)
        since = torch.cat([since_1, kept_1 * since_2], dim=-2)
        until = torch.cat([until_1 * kept_2, until_2], dim=-2)
        kept = kept_1 * kept_2
        size *= 2
    # Now there is one span, the chunk: since and until [..., 1, blocks, M] become [..., 1, blocks, 1, M].
    reads = (reads * since.transpose(-3, -2).unsqueeze(-4)).flatten(-3, -2)
    writes = (writes * until.transpose(-3, -2).unsqueeze(-4)).flatten(-3, -2)
    return scores.squeeze(-3), reads, writes, kept.squeeze(-3)
