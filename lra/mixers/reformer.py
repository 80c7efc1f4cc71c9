"""LSH attention of the Reformer: queries are hashed, and a query attends to keys with the same or a near hash.

Queries also serve as keys: k_j = q_j / |q_j|. In each round the hash h(q) = argmax [qR; -qR], with R [Dh, n / 2] drawn
from a standard normal, gives one of n = 2 ceil(Lmax / c) buckets; Lmax is the length of the longest input. Positions
are sorted by (bucket, position) and cut into chunks of c. A query attends to the keys of its chunk and of the previous
chunk; the key of its own position counts only if there is no other. A key that is read in several rounds counts once:
in each of them, log(number of these rounds) is subtracted from its score. The memory is O(H rounds L c).

A hash is discontinuous: if rounding changes the bucket of one position, the rank of this position changes, and all
positions between the old and the new rank move by one. Therefore the gradient under bf16 differs from that in fp32 by
3 to 40 %, but by only 0.5 % if the hashes are equal.
"""

import numpy as np
import torch
from pydantic import PositiveInt
from torch import Tensor
from torch.nn.functional import embedding, normalize, pad

from lra.mixers import Mixer, MixerConfig, MixerInfo, merge_heads, project_in, project_out, split_heads
from lra.mixers._softmax import ScaleOrNone, info_of, scale_of
from lra.ops.device import at_least_float32, full_precision, to_device
from lra.ops.dropout import Dropout

ONESELF = -1e5  # bias of the score of a query with the key of its own position (appendix A)
PADDED = -2  # chunk index of padded positions, neither equal nor adjacent to that of a real one


class Reformer(Mixer):
    """Attention within chunks of positions sorted by hash.

    Padded positions are sorted behind all real ones. The first chunk has no previous chunk. There is no causal form:
    even with a mask j <= i, later positions would influence which positions share a chunk.

    Args:
        chunk: c, the number of positions in a chunk.
        hashes: number of hash rounds.
        within_bucket: leave out keys of other buckets, as in eq. 3 but not in the authors' settings.
        redraw_every: number of training steps between two draws of R.
    """

    info = MixerInfo(
        paper="Kitaev et al. 2020, Reformer",
        formula="softmax(Q K̂ᵀ / {root}) V in chunks of {chunk} sorted by LSH buckets, rounds: {hashes}, K̂ = Q / |Q|",
        complexity="rounds L (c + L / c) D",
        linear_memory=True,
        reference="explicit loops; reformer-pytorch; transformers",
    )
    projects_out = True

    rotations: Tensor  # R [H, Dh, rounds, n / 2]

    def __init__(
        self,
        config: MixerConfig,
        *,
        chunk: PositiveInt,
        hashes: PositiveInt,
        within_bucket: bool,
        redraw_every: PositiveInt,
        scale: ScaleOrNone,
    ) -> None:
        super().__init__(config)
        self.query = project_in(config)
        self.value = project_in(config)
        self.out = project_out(config)
        self.dropout = Dropout(config.dropout)
        self.chunk = min(chunk, config.max_positions)
        self.within_bucket = within_bucket
        self.redraw_every = redraw_every
        self.scale = scale_of(config, scale)
        self.info = info_of(self, scale, hashes=hashes, chunk=self.chunk)
        half = -(-config.max_positions // self.chunk)  # n / 2, half the number of buckets
        self.register_buffer("rotations", torch.randn(config.heads, config.head_dim, hashes, half))
        self.commutes = half == 1
        self.full_pattern = half == 1 and not within_bucket

    def draw(self, rng: np.random.Generator) -> None:
        drawn = torch.from_numpy(rng.standard_normal(tuple(self.rotations.shape)))
        self.rotations.copy_(to_device(drawn, self.rotations.device))

    def forward(self, x: Tensor, key_mask: Tensor | None = None) -> Tensor:
        q, v = (split_heads(project(x), self.config.heads) for project in (self.query, self.value))
        return self.out(merge_heads(self.attend(q, v, key_mask)))

    def attend(self, q: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
        """Attend within sorted chunks: q, v [B, H, L, Dh] -> [B, H, L, Dh]. C is the number of chunks."""
        length, width = q.shape[2:]
        buckets = self.buckets(q, key_mask)
        order, rank = sort(buckets)  # [B, H, rounds, L] each
        both = cut(take(torch.cat([q, v], dim=-1).unsqueeze(2), order), self.chunk)  # [B, H, rounds, C, c, 2 Dh]
        q, v = both.split(width, dim=-1)
        keys = look_back(normalize(at_least_float32(q), dim=-1).to(q.dtype))  # [B, H, rounds, C, 2c, Dh]
        scores = at_least_float32((q * self.scale) @ keys.transpose(-2, -1))  # [B, H, rounds, C, c, 2c]
        scores = scores + self.bias(buckets, order, rank, key_mask, scores.dtype)
        with full_precision(q.device):
            # One softmax over the keys of all rounds: the sums of exp(scores) of each round are put back in the order
            # of positions, added over the rounds, and sorted again.
            mass = scores.logsumexp(dim=-1).flatten(3)[..., :length].gather(3, rank)  # [B, H, rounds, L]
            mass = mass.logsumexp(dim=2, keepdim=True).expand_as(rank).gather(3, order)
            weights = (scores - cut(mass.unsqueeze(-1), self.chunk)).exp()
        weights = self.dropout(weights.flatten(1, 2)).view_as(weights)  # the rounds of a head have separate noise
        y = weights.to(v.dtype) @ look_back(v)  # [B, H, rounds, C, c, Dh]
        # Put the outputs back in the order of positions and add the rounds: [B, H, L, Dh].
        return take(y.flatten(3, 4)[:, :, :, :length], rank).sum(dim=2)

    @torch.no_grad()
    def buckets(self, q: Tensor, key_mask: Tensor | None) -> Tensor:
        """Return the bucket h(q) of each position and round [B, H, rounds, L], 0 to n - 1, or n at padding."""
        half = self.rotations.shape[-1]
        with full_precision(q.device):
            turned = at_least_float32(q) @ self.rotations.flatten(2)  # [B, H, L, rounds n / 2]
        turned = turned.unflatten(-1, self.rotations.shape[2:])  # [B, H, L, rounds, n / 2]
        best = turned.abs().argmax(dim=-1, keepdim=True)  # [B, H, L, rounds, 1]
        # The argmax of [qR; -qR] is in the second half if the product with the largest absolute value is negative.
        buckets = (best + half * (turned.gather(-1, best) < 0)).squeeze(-1).transpose(2, 3)
        return buckets if key_mask is None else buckets.masked_fill(~key_mask[:, None, None, :], 2 * half)

    @torch.no_grad()
    def bias(self, buckets: Tensor, order: Tensor, rank: Tensor, key_mask: Tensor | None, dtype: torch.dtype) -> Tensor:
        """Return the bias [B, H, rounds, C, c, 2c] of the scores of a chunk's queries with keys of two chunks.

        The keys are those of the previous chunk, then those of the chunk itself. The bias is -log(number of rounds in
        which the query reads the key), -inf for keys that are not read, and ONESELF for the query's own key.
        """
        in_chunk = rank // self.chunk
        if self.within_bucket:
            in_chunk = in_chunk + buckets * (buckets.shape[-1] + 2)  # so indices in two buckets differ by over 1
        if key_mask is not None:
            in_chunk = in_chunk.masked_fill(~key_mask[:, None, None, :], PADDED)
        in_chunk = in_chunk.int()  # int32 to save memory: `may_read` forms differences [B, H, rounds, C, c, 2c]
        here = may_read(in_chunk, order, self.chunk)
        times = here.byte()
        for shift in range(1, in_chunk.shape[2]):  # count the other rounds in which the query reads the key
            times += may_read(in_chunk.roll(-shift, dims=2), order, self.chunk)
        bias = times.to(dtype).log_().neg_().masked_fill_(~here, -torch.inf)
        # In a row of 2c keys, the query's own key follows those of the previous chunk, at index c + i.
        bias.diagonal(self.chunk, -2, -1).fill_(ONESELF)
        return bias


def may_read(in_chunk: Tensor, order: Tensor, chunk: int) -> Tensor:
    """Return a mask [B, H, rounds, C, c, 2c], True where a query's chunk index equals a key's or is one more.

    `in_chunk` [B, H, rounds, L] has the chunk index of each position. `order` sorts positions into chunks; the queries
    of each chunk are compared with the keys of the previous chunk and of the chunk itself.
    """
    queries = cut(in_chunk.gather(-1, order).unsqueeze(-1), chunk, PADDED)  # [B, H, rounds, C, c, 1]
    steps = queries - look_back(queries, PADDED).transpose(-2, -1)
    return (steps >> 1) == 0  # steps is 0 or 1


def sort(buckets: Tensor) -> tuple[Tensor, Tensor]:
    """Return the positions sorted by (bucket, position), and the rank of each position, both [B, H, rounds, L]."""
    order = buckets.sort(dim=-1, stable=True).indices
    positions = torch.arange(order.shape[-1], device=order.device).expand_as(order)
    return order, torch.empty_like(order).scatter_(-1, order, positions)


def take(x: Tensor, index: Tensor) -> Tensor:
    """Return the rows of x [B, H, rounds or 1, L, D] at index [B, H, rounds, L] -> [B, H, rounds, L, D]."""
    # `gather` would need an index for each of the D columns; `embedding` needs one per row.
    lists = torch.arange(x.shape[:-2].numel(), device=x.device).view(*x.shape[:-2], 1)
    return embedding(index + lists * x.shape[-2], x.reshape(-1, x.shape[-1]))


def cut(x: Tensor, chunk: int, fill: int = 0) -> Tensor:
    """Cut x into chunks, the last one padded with `fill`: [..., L, D] -> [..., C, c, D]."""
    return pad(x, (0, 0, 0, -x.shape[-2] % chunk), value=fill).unflatten(-2, (-1, chunk))


def look_back(x: Tensor, fill: int = 0) -> Tensor:
    """Prepend to each chunk the previous one, and `fill` to the first: [..., C, c, D] -> [..., C, 2c, D]."""
    before = pad(x, (0, 0, 0, 0, 1, -1), value=fill)
    return torch.cat([before, x], dim=-2)
