"""Linear attention with feature maps that need no drawing: elu + 1, and cosFormer's relu reweighed by a cosine."""

import math

import torch
from pydantic import PositiveFloat
from torch import Tensor
from torch.nn.functional import relu

from lra.mixers import MixerConfig, MixerInfo
from lra.mixers._kernel import KernelAttention
from lra.ops.packing import Packed


class Linear(KernelAttention):
    """Linear attention with phi(x) = elu(x) + 1 > 0, so that all weights are positive (eq. 7)."""

    info = MixerInfo(
        paper="Katharopoulos et al. 2020, Transformers are RNNs",
        formula="φ(Q) (φ(K)ᵀ V) / φ(Q) Σφ(K), φ = elu + 1",
        complexity="L D Dh",
        linear_memory=True,
        reference="the explicit L x L weights; flash-linear-attention's naive form",
    )
    commutes = True
    packs = True

    def features(
        self, q: Tensor, k: Tensor, key_mask: Tensor | None, packed: Packed | None = None
    ) -> tuple[Tensor, Tensor]:
        return _EluPlusOne.apply(q), _EluPlusOne.apply(k)


class _EluPlusOne(torch.autograd.Function):
    """phi(x) = exp(x) below zero and x + 1 above.

    Computed as elu(x) + 1 it would have the rounding error of numbers near 1, and be 0 in fp32 below -17. Its
    derivative is min(phi, 1), so only the output is saved; without this class a layer's step takes 1.13 times as long
    (L 2,000, width 256, one thread).
    """

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        phi = x.clamp(max=0).exp() + relu(x)  # not in place: see the rules in CONTRIBUTING.md
        ctx.save_for_backward(phi)
        return phi

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:
        (phi,) = ctx.saved_tensors
        return grad * phi.clamp(max=1)


class Cosformer(KernelAttention):
    """cosFormer: weights relu(q_i) . relu(k_j) cos(pi (i - j) / 2 M), normalised, so that near keys weigh more.

    cos(a - b) = cos a cos b + sin a sin b makes it linear: phi(x_i) = relu(x_i) [cos(pi i / 2 M), sin(pi i / 2 M)]. M
    is the task's longest sequence, so no weight is negative and none depends on the padding. No dropout of weights.

    The weights of a query depend on the direction of relu(q_i) alone, so its gradient grows as 1 / |relu(q_i)|: with
    inputs and projections in bf16 it is off by 2 to 20 %.

    Args:
        eps: lower bound of the denominator.
    """

    info = MixerInfo(
        paper="Qin et al. 2022, cosFormer: Rethinking Softmax in Attention",
        formula="φ(Q) (φ(K)ᵀ V) / φ(Q) Σφ(K), φ = relu ⊗ [cos, sin](πi / 2M)",
        complexity="L D Dh",
        linear_memory=True,
        reference="the explicit L x L weights",
    )

    def __init__(self, config: MixerConfig, *, eps: PositiveFloat) -> None:
        super().__init__(config, eps=eps)

    def features(self, q: Tensor, k: Tensor, key_mask: Tensor | None) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        # Angles in float64, rounded once: all positions of a long text lie within a quarter of a turn.
        position = torch.arange(k.shape[-2], dtype=torch.float64, device=q.device).unsqueeze(-1)
        angle = position * (math.pi / 2 / self.config.max_positions)
        turn = angle.cos().to(k.dtype), angle.sin().to(k.dtype)
        q, k = (torch.cat([relu(x) * part[: x.shape[-2]] for part in turn], dim=-1) for x in (q, k))
        return q, k

    def denominator(self, mass: Tensor) -> Tensor:
        return mass.clamp(min=self.eps)
