"""Linear attention with deterministic feature maps: elu + 1, and cosFormer's relu reweighted by a cosine."""

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
    """Feature map phi(x) = exp(x) for x < 0, and x + 1 for x >= 0.

    The sum elu(x) + 1 would have the rounding error of numbers near 1, and would be 0 in fp32 for x < -17.4. The
    derivative is min(phi, 1), so the backward pass needs only the output. Without this class a step of a layer takes
    1.1 times as long and keeps 1.49 times the bytes (L 2,000 and 4,000, width 256, one thread).
    """

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        # Compute phi out of place, because torch.compile (torch 2.11) loses the `backward` if `forward` returns a
        # tensor that it changed in place.
        phi = x.clamp(max=0).exp() + relu(x)
        ctx.save_for_backward(phi)
        return phi

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:
        (phi,) = ctx.saved_tensors
        return grad * phi.clamp(max=1)


class Cosformer(KernelAttention):
    """cosFormer: attention with the weights relu(q_i) . relu(k_j) cos(pi (i - j) / 2 M), normalised over j.

    The cosine gives near keys larger weights. Because cos(a - b) = cos a cos b + sin a sin b, this is linear attention
    with phi(x_i) = relu(x_i) [cos(pi i / 2 M), sin(pi i / 2 M)]. M is the length of the task's longest input, so that
    no weight is negative or depends on the padding. There is no dropout on the weights.

    The weights of a query depend only on the direction of relu(q_i), so the gradient with respect to q_i grows as
    1 / |relu(q_i)|: if inputs and projections are in bf16, the error of this gradient is 2 to 20 %.

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
        # Angles are computed in float64 and rounded once, because neighbours in a long input have nearly equal angles.
        position = torch.arange(k.shape[-2], dtype=torch.float64, device=q.device).unsqueeze(-1)  # [L, 1]
        angle = position * (math.pi / 2 / self.config.max_positions)
        turn = angle.cos().to(k.dtype), angle.sin().to(k.dtype)
        # q may have only the first n positions, so `part` is cut to the length of x: [B, H, n or L, 2 Dh].
        q, k = (torch.cat([relu(x) * part[: x.shape[-2]] for part in turn], dim=-1) for x in (q, k))
        return q, k

    def denominator(self, mass: Tensor) -> Tensor:
        return mass.clamp(min=self.eps)
