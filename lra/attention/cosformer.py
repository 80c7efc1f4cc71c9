"""cosFormer: weights relu(q_i) . relu(k_j) cos(pi (i - j) / 2 M), normalised, so that near keys weigh more.

cos(a - b) = cos a cos b + sin a sin b makes it linear: phi(x_i) = relu(x_i) [cos(pi i / 2 M), sin(pi i / 2 M)]. M is
the task's longest sequence, so that no weight is negative and none depends on the padding. O(L D Dh) time. There is
no dropout of weights.

The weights of a query depend on the direction of relu(q_i) alone, so its gradient grows as 1 / |relu(q_i)|. A few
queries with nearly zero features dominate the gradient and its rounding: with inputs and projections in bf16 the
gradient is off by 2 to 20 %, however exact the rest is.

Source:
    Qin et al. 2022.
"""

import math

import torch
from pydantic import PositiveFloat
from torch import Tensor
from torch.nn.functional import relu

from lra.attention import Card, Shape
from lra.ops.kernel_attention import KernelAttention


class Cosformer(KernelAttention):
    """Linear attention with a cosine kernel.

    Args:
        eps: lower bound of the denominator.
    """

    card = Card(
        paper="Qin et al. 2022, cosFormer: Rethinking Softmax in Attention",
        formula="φ(Q) (φ(K)ᵀ V) / φ(Q) Σφ(K), φ = relu ⊗ [cos, sin](πi / 2M)",
        time="L D Dh",
        linear=True,
        oracle="the explicit L x L weights",
    )

    def __init__(self, shape: Shape, *, eps: PositiveFloat) -> None:
        super().__init__(shape, eps=eps)

    def features(self, q: Tensor, k: Tensor, key_mask: Tensor | None) -> tuple[Tensor, Tensor]:
        # Angles in float64, rounded once: all positions of a long text lie within a quarter of a turn.
        position = torch.arange(k.shape[-2], dtype=torch.float64, device=q.device).unsqueeze(-1)
        angle = position * (math.pi / 2 / self.shape.max_positions)
        turn = angle.cos().to(k.dtype), angle.sin().to(k.dtype)
        q, k = (torch.cat([relu(x) * part[: x.shape[-2]] for part in turn], dim=-1) for x in (q, k))
        return q, k

    def denominator(self, mass: Tensor) -> Tensor:
        return mass.clamp(min=self.eps)
