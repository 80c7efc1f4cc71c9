"""Linear attention with elu + 1 (Katharopoulos et al. 2020, eq. 7)."""

import torch
from torch import Tensor
from torch.nn.functional import relu

from lra.attention import Card
from lra.ops.kernel_attention import KernelAttention


class Linear(KernelAttention):
    """phi(x) = elu(x) + 1, positive, so all weights are."""

    card = Card(
        paper="Katharopoulos et al. 2020, Transformers are RNNs",
        formula="φ(Q) (φ(K)ᵀ V) / φ(Q) Σφ(K), φ = elu + 1",
        time="L D Dh",
        linear=True,
        oracle="the explicit L x L weights; flash-linear-attention's naive form",
    )
    commutes = True
    packs = True

    def features(self, q: Tensor, k: Tensor, key_mask: Tensor | None) -> tuple[Tensor, Tensor]:
        return _EluPlusOne.apply(q), _EluPlusOne.apply(k)


class _EluPlusOne(torch.autograd.Function):
    """exp(x) below zero and x + 1 above. As elu(x) + 1 it would be rounded as a number near 1 is, and 0 in fp32 below
    -17. Its derivative is min(phi, 1), so the output is all that is kept."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        phi = x.clamp(max=0).exp_().add_(relu(x))
        ctx.save_for_backward(phi)
        return phi

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:
        (phi,) = ctx.saved_tensors
        return grad * phi.clamp(max=1)
