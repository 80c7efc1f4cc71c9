"""Longformer: each position reads a window of w positions and g global positions, which read all positions.

The first g positions are global; position 0 is the CLS if there is one. Global positions have no separate projections,
because these would add 23 % to the parameters on text, where Long Range Arena allows 10 %.
"""

from typing import Annotated

from pydantic import Field, NonNegativeInt
from torch import Tensor

from lra.mixers import MixerConfig, MixerInfo
from lra.mixers._softmax import Scale
from lra.mixers._sparse import MAX_WIDTH, Blocks, KeyPart, PatternAttention, band


class Longformer(PatternAttention):
    """Sliding-window attention with global positions.

    In the causal form no query, not even one at a global position, reads later keys.

    Args:
        window: w, on both sides of the query together: |i - j| <= w / 2.
        global_positions: g, the number of global positions.
    """

    info = MixerInfo(
        paper="Beltagy et al. 2020, Longformer",
        formula="softmax(qᵢ Kₛᵀ / {root}) Vₛ, S = {{j: {keys}}}",
        complexity="L (w + g) D",
        linear_memory=True,
        reference="dense mask; transformers",
        deviations=("queries, keys and values of global positions have no separate projections",),
    )

    def __init__(
        self,
        config: MixerConfig,
        *,
        window: Annotated[int, Field(ge=2, multiple_of=2)],
        global_positions: NonNegativeInt,
        scale: Scale,
    ) -> None:
        everywhere = f" or min(i, j) < {global_positions}" if global_positions else ""
        super().__init__(config, scale=scale, keys=f"|i − j| ≤ {window // 2}{everywhere}")
        self.reach = min(window // 2, config.max_positions)
        self.global_positions = global_positions

    def width(self, length: int) -> int:
        return min(self.reach, length, MAX_WIDTH)

    def parts(self, by_block: Tensor) -> list[KeyPart]:
        return [Blocks(table=band(by_block, self.reach, self.causal), rule=self.pattern)]

    def pattern(self, i: Tensor, j: Tensor) -> Tensor:
        return (i - j).abs() <= self.reach

    def select_global(self, positions: Tensor) -> Tensor:
        return positions[: self.global_positions]
