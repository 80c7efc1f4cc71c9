"""Sparse Transformer, fixed pattern: softmax over the keys of the query's block and the last keys of every block.

A block has s positions. Its last c positions are its summary, which all queries read. The paper's pattern is causal: it
also requires j <= i. The two-sided form only drops this condition. A query reads about s + c L / s keys, so time is
O(L sqrt(L) D) for s near sqrt(L), but O(L^2 D) for a fixed s.
"""

from pydantic import PositiveInt
from torch import Tensor

from lra.core.errors import UserError
from lra.mixers import MixerConfig, MixerInfo
from lra.mixers._softmax import Scale
from lra.mixers._sparse import Blocks, Columns, KeyPart, PatternAttention, band


class Sparse(PatternAttention):
    """Sparse attention with the fixed pattern.

    Args:
        stride: s, the width of a block.
        summary: c, the number of summary positions in a block.
        cls_global: position 0 reads all positions and is read by all, like the CLS in Long Range Arena.
    """

    info = MixerInfo(
        paper="Child et al. 2019, Sparse Transformers",
        formula="softmax(qᵢ Kₛᵀ / {root}) Vₛ, S = {{j: {keys}}}",
        complexity="L (s + c L / s) D",
        linear_memory=False,
        reference="dense mask",
    )

    def __init__(
        self, config: MixerConfig, *, stride: PositiveInt, summary: PositiveInt, cls_global: bool, scale: Scale
    ) -> None:
        keys = f"⌊j/{stride}⌋ = ⌊i/{stride}⌋ or j mod {stride} ≥ {stride - summary}"
        super().__init__(config, scale=scale, keys=keys + " or min(i, j) = 0" * cls_global)
        if summary > stride:
            raise UserError(f"attention.summary={summary}: expected at most attention.stride={stride}")
        self.stride = stride
        self.summary = summary
        self.cls_global = cls_global

    def width(self, length: int) -> int:
        return self.stride

    def parts(self, by_block: Tensor) -> list[KeyPart]:
        # Summaries of other blocks only: the table below already has all keys of the query's block.
        elsewhere = Columns(columns=by_block[:, -self.summary :].flatten(), rule=self._other_block)
        return [Blocks(table=band(by_block, 0, self.causal)), elsewhere]

    def pattern(self, i: Tensor, j: Tensor) -> Tensor:
        return ~self._other_block(i, j) | (j % self.stride >= self.stride - self.summary)

    def select_global(self, positions: Tensor) -> Tensor:
        return positions[: int(self.cls_global)]

    def _other_block(self, i: Tensor, j: Tensor) -> Tensor:
        return i // self.stride != j // self.stride
