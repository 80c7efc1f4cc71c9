"""Sparse Transformer: two sparse patterns whose union a query reads.

With stride s and c summary columns, position i reads j where
  fixed:    i // s == j // s (its block), or j % s >= s - c (the last c positions of every block);
  strided:  |i - j| < s, or (i - j) % s == 0.
The paper is causal and adds j <= i; the two-sided form here only drops that condition. A query reads s + c L / s or
2 s + L / s keys, so time is O(L sqrt(L) D) for s near sqrt(L), but O(L^2 D) for a fixed s.
"""

from typing import Literal

from pydantic import PositiveInt
from torch import Tensor

from lra.attention import Card, Shape
from lra.core.errors import UserError
from lra.ops.block_sparse import Blocks, Columns, KeyPart, PatternAttention, Strides, band
from lra.ops.softmax import Scale


class Sparse(PatternAttention):
    """Fixed or strided sparse attention.

    Args:
        pattern: `fixed` or `strided`.
        stride: s.
        summary: c, of `fixed` alone.
        cls_global: position 0 reads all and is read by all, as in Long Range Arena for the CLS.
    """

    card = Card(
        paper="Child et al. 2019, Sparse Transformers",
        formula="softmax(qᵢ Kₛᵀ / {root}) Vₛ, S = {{j: {keys}}}",
        time="L (s + c L / s) D",
        linear=False,
        oracle="dense mask",
    )

    def __init__(
        self,
        shape: Shape,
        *,
        pattern: Literal["fixed", "strided"],
        stride: PositiveInt,
        summary: PositiveInt,
        cls_global: bool,
        scale: Scale,
    ) -> None:
        keys = f"|i − j| < {stride} or (i − j) mod {stride} = 0"
        if pattern == "fixed":
            keys = f"⌊j/{stride}⌋ = ⌊i/{stride}⌋ or j mod {stride} ≥ {stride - summary}"
        super().__init__(shape, scale=scale, keys=keys + " or min(i, j) = 0" * cls_global)
        self.fixed = pattern == "fixed"
        if self.fixed and summary > stride:
            raise UserError(f"attention.summary={summary}: expected at most attention.stride={stride}")
        self.stride = stride
        self.summary = summary
        self.cls_global = cls_global

    def width(self, length: int) -> int:
        return self.stride

    def parts(self, places: Tensor) -> list[KeyPart]:
        if self.fixed:
            columns = places[:, -self.summary :].flatten()
            elsewhere = Columns(columns=columns, rule=self._other_block)
            return [Blocks(table=band(places, 0, self.causal)), elsewhere]
        near = Blocks(table=band(places, self.stride, self.causal), rule=self._near)
        return [near, Strides(rule=lambda i, j: ~self._near(i, j))]

    def reads(self, i: Tensor, j: Tensor) -> Tensor:
        if self.fixed:
            return ~self._other_block(i, j) | (j % self.stride >= self.stride - self.summary)
        return self._near(i, j) | ((i - j) % self.stride == 0)

    def global_places(self, places: Tensor) -> Tensor:
        return places[: int(self.cls_global)]

    def _other_block(self, i: Tensor, j: Tensor) -> Tensor:
        return i // self.stride != j // self.stride

    def _near(self, i: Tensor, j: Tensor) -> Tensor:
        return (i - j).abs() < self.stride
