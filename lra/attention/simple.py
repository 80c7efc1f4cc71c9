"""SimpleAttention (SimpleTRON, Yorsh et al. 2022, section 3): Q (K^T V) / sqrt(L), no softmax.

O(L D Dh) time, O(D Dh) state. Dropout acts on the state K^T V, as in the authors' code. The causal form, which the
paper leaves open, sums over the positions up to one's own with the same scale.
"""

from typing import Literal

from torch import Tensor

from lra.attention import Attention, Card, Shape
from lra.attention.kernel import causal_product
from lra.errors import UserError


class Simple(Attention):
    """`scale`: 1/sqrt of the padded length (`length`), of the real one (`valid`), of it times Dh, or `none`.

    `dropout_on`: the state K^T V (`state`), or the output (`output`).
    """

    card = Card(
        paper="Yorsh et al. 2022, SimpleTRON",
        formula="Q (Kᵀ V) / √L",
        time="L D Dh",
        linear=True,
        oracle="the quadratic order in float64",
    )
    can_be_causal = True
    commutes = True

    def __init__(
        self,
        shape: Shape,
        *,
        scale: Literal["length", "valid", "valid_head", "none"],
        dropout_on: Literal["state", "output"],
    ) -> None:
        super().__init__(shape)
        self.scale = scale
        if shape.causal and shape.dropout > 0 and dropout_on == "state":
            raise UserError(
                "attention.dropout_on=state: causal SimpleAttention has a state for every position; "
                "use attention.dropout_on=output or model.dropout=0"
            )
        self.drop_state = dropout_on == "state"

    def attend(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
        if key_mask is not None:
            k = k * key_mask[:, None, :, None]  # after the projection: a bias must not leak from padding
        k = k * self._factor(k, key_mask)
        if self.causal:
            return self.dropout(causal_product(q, k, v))
        state = k.transpose(-2, -1) @ v  # [B, H, Dh, Dh]
        if self.drop_state:
            return q @ self.dropout(state)
        return self.dropout(q @ state)

    def _factor(self, k: Tensor, key_mask: Tensor | None) -> Tensor | float:
        """1 / sqrt(...), a number or [B, 1, 1, 1]."""
        if self.scale == "none":
            return 1.0
        if self.scale == "length":
            return self.shape.max_len**-0.5
        width = k.shape[-1] if self.scale == "valid_head" else 1
        if key_mask is None:
            return (k.shape[-2] * width) ** -0.5
        valid = key_mask.sum(dim=1).clamp(min=1)
        return (valid * width).to(k.dtype).rsqrt()[:, None, None, None]
