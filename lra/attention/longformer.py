"""Longformer: a sliding window, and global positions that read all positions and are read by all.

O(L (w + g) D) time for a window of w and g global positions, the first ones: the CLS if there is one.
"""

from copy import deepcopy
from typing import Annotated

import torch
from pydantic import Field, NonNegativeInt
from torch import Tensor

from lra.attention import Card, Shape, merge_heads, split_heads
from lra.core.errors import UserError
from lra.ops.block_sparse import WIDEST, Blocks, KeyPart, PatternAttention, band
from lra.ops.softmax import Scale


class Longformer(PatternAttention):
    """Sliding-window attention with global positions.

    The causal form leaves out later keys, also those of a global query.

    Args:
        window: w in all, so |i - j| <= w / 2.
        global_positions: g.
        global_projections: queries of global positions, and the keys and values that they read, have projections of
            their own, 3 (D + 1) H Dh parameters that start as copies of the ordinary ones. Other queries read a global
            position by its ordinary key and value.
    """

    card = Card(
        paper="Beltagy et al. 2020, Longformer",
        formula="softmax(qᵢ Kₛᵀ / {root}) Vₛ, S = {{j: {keys}}}",
        time="L (w + g) D",
        linear=True,
        oracle="dense mask; transformers",
    )

    def __init__(
        self,
        shape: Shape,
        *,
        window: Annotated[int, Field(ge=2, multiple_of=2)],
        global_positions: NonNegativeInt,
        global_projections: bool,
        scale: Scale,
    ) -> None:
        everywhere = f" or min(i, j) < {global_positions}" if global_positions else ""
        super().__init__(shape, scale=scale, keys=f"|i − j| ≤ {window // 2}{everywhere}")
        if global_projections and not global_positions:
            raise UserError("attention.global_projections=true: expected attention.global_positions of 1 or more")
        self.half = min(window // 2, shape.max_positions)
        self.global_positions = global_positions
        self.global_projections = global_projections
        if global_projections:
            self.global_query, self.global_key, self.global_value = map(deepcopy, (self.query, self.key, self.value))

    def width(self, length: int) -> int:
        return min(self.half, length, WIDEST)

    def parts(self, places: Tensor) -> list[KeyPart]:
        return [Blocks(table=band(places, self.half, self.causal), rule=self.reads)]

    def reads(self, i: Tensor, j: Tensor) -> Tensor:
        return (i - j).abs() <= self.half

    def global_places(self, places: Tensor) -> Tensor:
        return places[: self.global_positions]

    def forward(self, x: Tensor, key_mask: Tensor | None = None) -> Tensor:
        if not self.global_projections:
            return super().forward(x, key_mask)
        first = x[:, : self.global_positions]
        mixed = self.gather(*self.project(x), key_mask)
        inputs = ((self.global_query, first), (self.global_key, x), (self.global_value, x))
        q, k, v = (split_heads(projection(part), self.shape.heads) for projection, part in inputs)
        rows = torch.arange(first.shape[1], device=x.device)
        return self.out(merge_heads(self.fill_rows(mixed, rows, q, k, v, key_mask)))
