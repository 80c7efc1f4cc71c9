"""BigBird: each block of b positions reads itself, its neighbours, two global blocks and r random blocks.

Each input is treated as if it were padded to `max_positions` and masked. The first and the last block of this padded
input are global.
"""

import torch
from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor

from lra.mixers import MixerConfig, MixerInfo
from lra.mixers._softmax import Scale
from lra.mixers._sparse import Blocks, KeyPart, PatternAttention, band


class BigBird(PatternAttention):
    """Attention to neighbouring, global and random blocks.

    The random blocks that a block reads are distinct, and none of them is a neighbour or global. If fewer than r
    such blocks exist, the block reads all of them. So the attention is full if `max_positions` is small.

    Args:
        block: b, the number of positions in a block.
        random_blocks: r, the number of random blocks that a block reads. They are drawn at construction, for each layer
            and head, and saved with the weights.
    """

    info = MixerInfo(
        paper="Zaheer et al. 2020, Big Bird",
        formula="softmax(qᵢ Kₛᵀ / {root}) Vₛ, S = {keys}; all of K in the first and last",
        complexity="L (5 + r) b D",
        linear_memory=True,
        reference="dense mask; transformers",
        deviations=("the last block is that of the task's longest input, so shorter inputs lack this global block",),
    )
    can_be_causal = False
    table: Tensor  # [H, N, r or fewer] indices of the random blocks that a block reads; -1: none

    def __init__(self, config: MixerConfig, *, block: PositiveInt, random_blocks: NonNegativeInt, scale: Scale) -> None:
        keys = f"own block of {block} ± 1, first, last, random: {random_blocks}"
        super().__init__(config, scale=scale, keys=keys)
        self.block = block
        self.last = (config.max_positions - 1) // block
        self.register_buffer("table", draw_blocks(config.heads, self.last + 1, random_blocks))

    @property
    def full_pattern(self) -> bool:  # type: ignore[override]
        free = free_blocks(torch.arange(self.last + 1, device="cpu"))[1:-1]  # the first and last read all blocks
        return bool((free.sum(dim=-1) <= self.table.shape[-1]).all())

    def width(self, length: int) -> int:
        return self.block

    def parts(self, by_block: Tensor) -> list[KeyPart]:
        near = Blocks(table=band(by_block, self.block, causal=False), rule=self._near)
        return [near, Blocks(table=self.table[:, : len(by_block)])]

    def pattern(self, i: Tensor, j: Tensor) -> Tensor:
        drawn = (self.table[:, i // self.block] == j[:, None] // self.block).any(dim=-1)
        return drawn | self._near(i, j)

    def _near(self, i: Tensor, j: Tensor) -> Tensor:
        return (i // self.block - j // self.block).abs() <= 1

    def select_global(self, positions: Tensor) -> Tensor:
        # Begin the second slice at block 1 or later, so that a single block, both first and last, is not listed twice.
        return torch.cat([positions[: self.block], positions[max(self.last, 1) * self.block :]])


def draw_blocks(heads: int, blocks: int, count: int) -> Tensor:
    """Draw `count` distinct random blocks for each of N blocks and each head.

    Returns:
        Indices of the drawn blocks [H, N, min(count, max(N - 3, 0))], filled up with -1 if a block may draw fewer.
    """
    free = free_blocks(torch.arange(blocks))
    # No block may draw more than N - 3 blocks: the first one excludes itself, its neighbour and the last block.
    # The `count` largest random numbers of a row select its blocks; -1 marks blocks that may not be drawn.
    order, chosen = torch.rand(heads, blocks, blocks).masked_fill(~free, -1).topk(min(count, max(blocks - 3, 0)))
    return chosen.masked_fill(order < 0, -1)


def free_blocks(n: Tensor) -> Tensor:
    """Return a mask [N, N], True where the block of a row may draw the block of a column.

    `n` [N] holds the indices 0 to N - 1. A block may draw all blocks but itself, its neighbours, the first and the
    last.
    """
    return ((n[:, None] - n).abs() > 1) & (n > 0) & (n < len(n) - 1)
