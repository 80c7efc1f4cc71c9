"""Scaled dot-product attention: softmax(Q K^T scale) V, O(L^2 D) time.

Source:
    Vaswani et al. 2017, eq. 1.
"""

from dataclasses import replace

import torch
from torch import Tensor

from lra.attention import Attention, Card, Shape
from lra.ops import flash
from lra.ops.packing import CHUNK, Packed
from lra.ops.softmax import Scale, allowed, card_of, scale_of, weigh


class Softmax(Attention):
    """Softmax attention.

    Packed batches in half precision are computed by FlashAttention on CUDA. The noise of its dropout follows from seed,
    step, layer and the documents of a part, so a resumed run has the same, but one with another `micro_batch` has not.

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
    packs = True

    def __init__(self, shape: Shape, *, scale: Scale) -> None:
        super().__init__(shape)
        self.scale = scale_of(shape, scale)
        self.card = replace(card_of(self, scale), deviations=())

    def attend(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
        return weigh(q, k, v, allowed(q, k, key_mask, self.causal), self.scale, self.dropout)

    def can_pack(self, dtype: torch.dtype, device: torch.device) -> bool:
        return super().can_pack(dtype, device) and flash.available(dtype, device, self.shape.head_dim)

    def attend_packed(self, q: Tensor, k: Tensor, v: Tensor, packed: Packed) -> Tensor:
        longest = max(packed.mask.shape[1], CHUNK)
        few = len(q) == len(packed.mask)
        q_starts, q_longest = (packed.first_pieces, 1) if few else (packed.pieces, longest)
        noise = 0.0, None
        if self.dropout.drops:
            self.dropout.check_key(q, packed)
            noise = self.dropout.p, self.dropout.seed
        return flash.flash_attention(q, k, v, q_starts, packed.pieces, q_longest, longest, self.scale, *noise)[0]

    def score_scale(self, length: int, key_mask: Tensor | None) -> float:
        return self.scale
