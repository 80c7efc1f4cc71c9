"""Local attention: softmax over the keys near the query, within a window or within blocks that do not overlap."""

from typing import Literal

from pydantic import PositiveInt
from torch import Tensor

from lra.mixers import MixerConfig, MixerInfo
from lra.mixers._softmax import Scale
from lra.mixers._sparse import MAX_WIDTH, Blocks, KeyPart, PatternAttention, band


class Local(PatternAttention):
    """Sliding-window or block attention.

    Args:
        kind: with `sliding`, a query reads the keys at most `window` positions away; with `block`, it reads the keys of
            its block of `window` positions. The causal form of `sliding` leaves out later keys. `block` has no causal
            form, because the first position of a block could read only itself.
        window: w, in positions.
    """

    info = MixerInfo(
        paper="Tay et al. 2021, Long Range Arena",
        formula="softmax(qᵢ Kₛᵀ / {root}) Vₛ, S = {{j: {keys}}}",
        complexity="L w D",
        linear_memory=True,
        reference="dense mask; local-attention",
        deviations=("a block holds adjacent positions; in Long Range Arena's code it holds every (L / 50)th position",),
    )

    def __init__(
        self, config: MixerConfig, *, kind: Literal["sliding", "block"], window: PositiveInt, scale: Scale
    ) -> None:
        near = f"|i − j| ≤ {window}" if kind == "sliding" else f"⌊j/{window}⌋ = ⌊i/{window}⌋"
        super().__init__(config, scale=scale, keys=near)
        self.sliding = kind == "sliding"
        self.window = min(window, config.max_positions)
        self.can_be_causal = self.sliding

    def width(self, length: int) -> int:
        return min(self.window, length, *([MAX_WIDTH] if self.sliding else []))

    def parts(self, by_block: Tensor) -> list[KeyPart]:
        if self.sliding:
            table = band(by_block, self.window, self.causal)
            return [Blocks(table=table, rule=self.pattern)]
        return [Blocks(table=band(by_block, 0, self.causal))]

    def pattern(self, i: Tensor, j: Tensor) -> Tensor:
        return (i - j).abs() <= self.window if self.sliding else i // self.window == j // self.window
