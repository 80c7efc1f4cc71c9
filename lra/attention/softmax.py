"""Scaled dot-product attention: softmax(Q K^T scale) V, O(L^2 D) time.

Source:
    Vaswani et al. 2017, eq. 1.
"""

from dataclasses import replace

from torch import Tensor

from lra.attention import Attention, Card, Shape
from lra.ops.softmax import Scale, allowed, card_of, scale_of, weigh


class Softmax(Attention):
    """Softmax attention.

    Args:
        scale: 1/sqrt(Dh) (`head_dim`), or 1/sqrt(H Dh) (`qkv_dim`), as in the SimpleTRON authors' code.
    """

    card = Card(
        paper="Vaswani et al. 2017, Attention Is All You Need",
        formula="softmax(Q Kᵀ / {root}) V",
        time="L² D",
        linear=False,
        oracle="explicit loops; torch scaled_dot_product_attention",
    )
    can_be_causal = True
    commutes = True
    reads_few = True

    def __init__(self, shape: Shape, *, scale: Scale) -> None:
        super().__init__(shape)
        self.scale = scale_of(shape, scale)
        self.card = replace(card_of(self, scale), deviations=())

    def attend(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
        return weigh(q, k, v, allowed(q, k, key_mask, self.causal), self.scale, self.dropout)

    def score_scale(self, length: int, key_mask: Tensor | None) -> float:
        return self.scale
