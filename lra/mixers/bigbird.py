"""BigBird: blocks that read their neighbours, two global blocks and r random ones, each block of b positions.

The pattern is that of `max_positions`: the last block is global, and a shorter input is treated as if it were padded to
`max_positions` and masked.
"""

import torch
from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor

from lra.mixers import MixerConfig, MixerInfo
from lra.mixers._softmax import Scale
from lra.mixers._sparse import Blocks, KeyPart, PatternAttention, band


class BigBird(PatternAttention):
    """Block-sparse attention.

    The random blocks of a row are distinct and neither neighbours nor global. If too few are left,
    a row reads all of them, so a short input gets full attention.

    Args:
        block: b.
        random_blocks: r, drawn per layer and head at construction, and saved with the weights.
    """

    info = MixerInfo(
        paper="Zaheer et al. 2020, Big Bird",
        formula="softmax(qᵢ Kₛᵀ / {root}) Vₛ, S = {keys}; all of K in the first and last",
        complexity="L (5 + r) b D",
        linear_memory=True,
        reference="dense mask; transformers",
        deviations=("the last block stays that of the task's longest input, which shorter inputs do not have",),
    )
    can_be_causal = False
    table: Tensor  # [H, blocks, random blocks]

    def __init__(self, config: MixerConfig, *, block: PositiveInt, random_blocks: NonNegativeInt, scale: Scale) -> None:
        keys = f"own block of {block} ± 1, first, last, random: {random_blocks}"
        super().__init__(config, scale=scale, keys=keys)
        self.block = block
        self.last = (config.max_positions - 1) // block
        self.register_buffer("table", draw_blocks(config.heads, self.last + 1, random_blocks))

    @property
    def full_pattern(self) -> bool:  # type: ignore[override]
        free = free_blocks(torch.arange(self.last + 1, device="cpu"))[1:-1]  # the first and the last read all
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
        return torch.cat([positions[: self.block], positions[max(self.last, 1) * self.block :]])


def draw_blocks(heads: int, blocks: int, count: int) -> Tensor:
    """Draw `count` distinct random blocks for every block, none of them neighbour, first or last.

    Returns:
        Indices of blocks [H, N, at most count]; -1 where fewer blocks are left.
    """
    free = free_blocks(torch.arange(blocks))
    order, chosen = torch.rand(heads, blocks, blocks).masked_fill(~free, -1).topk(min(count, max(blocks - 3, 0)))
    return chosen.masked_fill(order < 0, -1)


def free_blocks(n: Tensor) -> Tensor:
    """Return a mask [N, N] of blocks that each block of `n` [N] may draw: all but neighbours, first and last."""
    return ((n[:, None] - n).abs() > 1) & (n > 0) & (n < len(n) - 1)
