"""Linformer: softmax(Q (E^T K)^T scale) F^T V, with learned E, F [Lmax, k] over positions (eq. 7).

O(L k D) time, O(L k H) memory. A text of L < Lmax positions uses the first L rows of E and F.
"""

from typing import Literal

import torch
from pydantic import PositiveInt
from torch import Tensor, nn

from lra.attention import Attention, Card, Shape, without_padding
from lra.ops.softmax import Scale, card_of, scale_of, weigh


class Linformer(Attention):
    """Attention over projected positions.

    Args:
        rank: k, the number of projected positions.
        share: one E for keys, values and all heads (`key_value`), E and F for all heads (`heads`), or E and F per head
            (`none`), as in section 4 of the paper.
    """

    card = Card(
        paper="Wang et al. 2020, Linformer",
        formula="softmax(Q (Eᵀ K)ᵀ / {root}) {values}ᵀ V, {rank} columns",
        time="L k D",
        linear=True,
        oracle="linformer 0.2.3; softmax where E = F = I",
        deviations=("padding is left out where the model masks it, which Google's code does not do",),
    )
    reads_few = True

    def __init__(
        self, shape: Shape, *, rank: PositiveInt, share: Literal["key_value", "heads", "none"], scale: Scale
    ) -> None:
        super().__init__(shape)
        size = (shape.heads if share == "none" else 1, shape.max_positions, rank)
        spread = shape.max_positions**-0.5  # a sum over all positions then keeps the variance of a key
        self.project_keys = nn.Parameter(torch.randn(size) * spread)
        self.project_values = None if share == "key_value" else nn.Parameter(torch.randn(size) * spread)
        self.scale = scale_of(shape, scale)
        self.card = card_of(self, scale, rank=rank, values="E" if share == "key_value" else "F")

    def attend(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
        k, v = (without_padding(x, key_mask) for x in (k, v))  # after the projection: a bias must not leak from padding
        k = project_positions(self.project_keys, k)
        v = project_positions(self.project_keys if self.project_values is None else self.project_values, v)
        return weigh(q, k, v, None, self.scale, self.dropout)


def project_positions(matrix: Tensor, x: Tensor) -> Tensor:
    """Project positions: matrix [H or 1, Lmax, k], x [B, H, L, Dh] -> [B, H, k, Dh]."""
    return torch.einsum("hlk,bhld->bhkd", matrix[:, : x.shape[2]], x)
