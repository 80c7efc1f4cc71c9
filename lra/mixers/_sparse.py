"""Define sparse attention: a softmax over the keys of a pattern, without an L x L matrix.

Positions form N blocks of b positions. In each head, all queries of a block share one set of m candidate keys, which
consists of parts. A part is either whole blocks, listed in a table, or a list of positions that is the same for all
blocks. A part may have a `rule(i, j)`, True where query i may read key j. One softmax is over the keys of all parts, so
the result equals attention with a dense mask. Computing it takes O(L m D) time and O(H L m) memory.
Legend: as in `lra.mixers.base`; N blocks, b positions per block, m candidate keys per query. In a `KeyPart`, m counts
only the keys of that part.
"""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from lra.mixers._softmax import Scale, info_of, scale_of, weigh
from lra.mixers.base import Attention, MixerConfig
from lra.ops.dropout import Dropout
from lra.ops.scan import in_chunks

MAX_WIDTH = 128  # maximum block width for a window; wider blocks would gather more keys that are then masked

Rule = Callable[[Tensor, Tensor], Tensor]  # (query positions i, key positions j) -> mask


@dataclass(frozen=True, kw_only=True)
class KeyPart:
    """Part of the keys that queries read; query i reads key j only if `rule(i, j)`.

    No query may read one key through two parts, because the key would then count twice.
    """

    rule: Rule | None = None

    @abstractmethod
    def positions(self, by_block: Tensor) -> Tensor:
        """Return the positions [1 or H, 1 or N, 1, m] of the keys, given all positions `by_block` [N, b].

        The result may contain positions outside of the sequence, which `visible` masks.
        """

    @abstractmethod
    def pick(self, x: Tensor) -> Tensor:
        """Return the part's keys (or values) [B, H, 1 or N, m, Dh] from those of all positions, x [B, H, N, b, Dh]."""


@dataclass(frozen=True, kw_only=True)
class Blocks(KeyPart):
    """Keys of whole blocks: row n of `table` [1 or H, N, listed] lists the indices of the blocks that block n reads.

    Indices may be outside of 0 to N - 1; `visible` masks their keys.
    """

    table: Tensor

    def positions(self, by_block: Tensor) -> Tensor:
        width = by_block.shape[1]
        # [1 or H, N, listed, b] -> [1 or H, N, 1, listed b]
        return (self.table[..., None] * width + by_block[0]).flatten(-2).unsqueeze(-2)

    def pick(self, x: Tensor) -> Tensor:
        heads, blocks = x.shape[1:3]
        first = torch.arange(heads, device=x.device).view(-1, 1, 1) * blocks  # index of each head's block 0
        # [H, N, listed]; clamp indices outside of 0 to N - 1, because `index_select` needs valid ones.
        rows = first + self.table.clamp(0, blocks - 1)
        picked = x.flatten(1, 2).index_select(1, rows.flatten())  # [B, H N listed, b, Dh]
        return picked.unflatten(1, rows.shape).flatten(3, 4)  # [B, H, N, listed b, Dh]


@dataclass(frozen=True, kw_only=True)
class Columns(KeyPart):
    """Keys at the positions `columns` [m], the same for all queries."""

    columns: Tensor

    def positions(self, by_block: Tensor) -> Tensor:
        return self.columns.view(1, 1, 1, -1)

    def pick(self, x: Tensor) -> Tensor:
        return x.flatten(2, 3).index_select(2, self.columns).unsqueeze(2)  # [B, H, 1, m, Dh]


def band(by_block: Tensor, window: int, causal: bool) -> Tensor:
    """Return a table [1, N, listed] of the blocks within `window` positions of each block; if causal, none after it.

    All rows list the same number of blocks. The first rows are exceptions: they begin with block 0 instead of a
    negative index, so they also list blocks beyond the window, which a rule must mask, and, if causal, later blocks,
    which `visible` masks.
    """
    blocks, width = by_block.shape
    reach = -(-window // width)  # number of blocks before a block that its window reaches
    count = min(reach + 1 if causal else 2 * reach + 1, blocks)
    first = (torch.arange(blocks, device=by_block.device) - reach).clamp(min=0)
    return (first[:, None] + torch.arange(count, device=by_block.device))[None]


def visible(part: KeyPart, by_block: Tensor, readable: Tensor, causal: bool) -> Tensor:
    """Return a mask, True where queries may read a part's keys, broadcastable to [B, H, N, b, m].

    `readable` [B or 1, N b] is True at positions that this part may have as keys.
    """
    i, j = by_block.unsqueeze(-1), part.positions(by_block)  # [N, b, 1] and [1 or H, 1 or N, 1, m]
    # [B or 1, 1 or H, 1 or N, 1, m]
    seen = readable[:, j.clamp(0, by_block.numel() - 1)] & (j >= 0) & (j < by_block.numel())
    if part.rule is not None:
        seen = seen & part.rule(i, j)
    return seen & (j <= i) if causal else seen


class PatternAttention(Attention, abstract=True):
    """Base class of attentions in which `pattern` defines the keys of a query, and `parts` how they are gathered.

    The g global positions read all positions and are read by all. The weights of their queries are computed as dense
    rows with a separate dropout layer, in O(g L D) time and O(H g L) memory. `keys` is the text for the keys of query i
    in the formula of `info`.
    """

    can_be_causal = True

    def __init__(self, config: MixerConfig, *, scale: Scale, keys: str) -> None:
        super().__init__(config)
        self.scale = scale_of(config, scale)
        self.info = info_of(self, scale, keys=f"({keys}) and j ≤ i" if config.causal else keys)
        self.row_dropout = Dropout(config.dropout)

    @abstractmethod
    def width(self, length: int) -> int:
        """Return the number b of positions in a block, for inputs of `length` positions."""

    @abstractmethod
    def parts(self, by_block: Tensor) -> list[KeyPart]:
        """Return the keys that blocks `by_block` [N, b] read; `attend` masks keys at global positions."""

    @abstractmethod
    def pattern(self, i: Tensor, j: Tensor) -> Tensor:
        """Return a mask, True where position i reads position j, leaving aside global positions and causality.

        i and j broadcast.
        """

    def select_global(self, positions: Tensor) -> Tensor:
        """Return the global positions [g] among `positions` [L]; by default none."""
        return positions[:0]

    @property
    def commutes(self) -> bool:  # type: ignore[override]
        return self.full_pattern and not self.causal

    @property
    def full_pattern(self) -> bool:  # type: ignore[override]
        """True if each of `max_positions` positions reads all others, or, if causal, all earlier positions."""
        positions = torch.arange(self.config.max_positions, device="cpu")
        is_global = torch.isin(positions, self.select_global(positions))
        for i in positions[~is_global]:  # row by row, because an early row usually has a gap and ends the loop
            seen = self.pattern(i, positions) | is_global
            if not (seen | (positions > i) if self.causal else seen).all():
                return False
        return True

    def attend(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
        length = q.shape[2]
        width = self.width(length)
        blocks = -(-length // width)
        missing = blocks * width - length  # the last block is padded with positions that no query reads
        by_block = torch.arange(blocks * width, device=q.device).view(blocks, width)  # [N, b]
        real = by_block.flatten()[None] < length if key_mask is None else pad(key_mask, (0, missing))  # [B or 1, N b]
        is_global = self.select_global(by_block.flatten()[:length])  # [g]
        # Global keys form a separate part, so the other parts leave them out: each key counts once.
        parts = self.parts(by_block)
        readable = [real.index_fill(1, is_global, False)] * len(parts)
        if len(is_global):
            parts, readable = [*parts, Columns(columns=is_global)], [*readable, real]
        positions = [part.positions(by_block) for part in parts]
        outer = torch.broadcast_shapes(*(of_part.shape[:-1] for of_part in positions))
        columns = torch.cat([of_part.expand(*outer, -1) for of_part in positions], dim=-1)  # [1 or H, 1 or N, 1, m]
        seen = [visible(part, by_block, keys, self.causal) for part, keys in zip(parts, readable, strict=True)]
        outer = torch.broadcast_shapes(*(of_part.shape[:-1] for of_part in seen))
        mask = torch.cat([of_part.expand(*outer, -1) for of_part in seen], dim=-1)  # [B or 1, 1 or H, N, 1 or b, m]
        by_query, by_key, by_value = in_chunks(width, q, k, v)  # [B, H, N, b, Dh]
        keys, values = (  # [B, H, N, m, Dh], so that one softmax is over the keys of all parts
            torch.cat([part.pick(x).expand(*x.shape[:3], -1, -1) for part in parts], dim=-2) for x in (by_key, by_value)
        )
        mixed = weigh(by_query, keys, values, mask, self.scale, self.dropout, columns).flatten(2, 3)[:, :, :length]
        if not len(is_global):
            return mixed
        # Queries of global positions read all positions or, if causal, all up to their own; `rows` is [B, H, g, Dh].
        row_mask = None if key_mask is None else key_mask[:, None, None, :]
        if self.causal:
            earlier = torch.arange(length, device=k.device) <= is_global[:, None]  # [g, L]
            row_mask = earlier if row_mask is None else row_mask & earlier
        rows = weigh(q.index_select(2, is_global), k, v, row_mask, self.scale, self.row_dropout)
        return mixed.index_copy(2, is_global, rows)
