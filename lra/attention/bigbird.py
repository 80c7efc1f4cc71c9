"""BigBird (Zaheer et al. 2020, section 2): blocks that read their neighbours, two global blocks and random ones.

O(L (3 + 2 + r) b D) time for blocks of b and r random blocks. What a block reads depends on its number alone, for
inputs as long as `max_positions`: the last block is the last of these, and an input that ends before it has none, as
if it were padded that far and masked. So outputs do not depend on the padding, which the last block of the batch would
make them do; random blocks beyond the end of an input are not there either. The original pads and masks likewise.
"""

import torch
from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor

from lra.attention import Card, Shape
from lra.ops.block_sparse import Blocks, KeyPart, PatternAttention, band
from lra.ops.softmax import Scale


class BigBird(PatternAttention):
    """`block`: b; `random_blocks`: r, drawn per layer and head when the model is made, and kept with its weights.

    The random blocks of a row are distinct and neither neighbours nor global; fewer where there are no more, so that
    few blocks give full attention.
    """

    card = Card(
        paper="Zaheer et al. 2020, Big Bird",
        formula="softmax(qᵢ Kₛᵀ / {root}) Vₛ, S = {keys}; all of K in the first and last",
        time="L (5 + r) b D",
        linear=True,
        oracle="dense mask; transformers",
        deviations=("the last block stays that of the task's longest input, which shorter inputs do not have",),
    )
    can_be_causal = False

    def __init__(self, shape: Shape, *, block: PositiveInt, random_blocks: NonNegativeInt, scale: Scale) -> None:
        keys = f"own block of {block} ± 1, first, last, random: {random_blocks}"
        super().__init__(shape, scale=scale, keys=keys)
        self.block = block
        self.last = (shape.max_positions - 1) // block
        self.register_buffer("table", draw_blocks(shape.heads, self.last + 1, random_blocks))

    @property
    def full_pattern(self) -> bool:
        free = free_blocks(torch.arange(self.last + 1, device="cpu"))[1:-1]  # the first and the last read all
        return bool((free.sum(dim=-1) <= self.table.shape[-1]).all())

    def width(self, length: int) -> int:
        return self.block

    def parts(self, places: Tensor) -> list[KeyPart]:
        near = Blocks(table=band(places, self.block, causal=False), rule=self._near)
        return [near, Blocks(table=self.table[:, : len(places)])]

    def reads(self, i: Tensor, j: Tensor) -> Tensor:
        drawn = (self.table[:, i // self.block] == j[:, None] // self.block).any(dim=-1)
        return drawn | self._near(i, j)

    def _near(self, i: Tensor, j: Tensor) -> Tensor:
        return (i // self.block - j // self.block).abs() <= 1

    def global_places(self, places: Tensor) -> Tensor:
        return torch.cat([places[: self.block], places[max(self.last, 1) * self.block :]])


def draw_blocks(heads: int, blocks: int, count: int) -> Tensor:
    """`count` random blocks for every block, [H, N, count]: distinct, neither neighbours nor the first or last; -1
    where no more are left, and fewer columns where no block has so many."""
    free = free_blocks(torch.arange(blocks))
    order, chosen = torch.rand(heads, blocks, blocks).masked_fill(~free, -1).topk(min(count, max(blocks - 3, 0)))
    return chosen.masked_fill(order < 0, -1)


def free_blocks(n: Tensor) -> Tensor:
    """Which of the blocks `n` [N] a block may draw, [N, N]: all but its neighbours, the first and the last."""
    return ((n[:, None] - n).abs() > 1) & (n > 0) & (n < len(n) - 1)
