"""Attention as a kernel of feature maps: phi(q) . phi(k) in place of exp(q . k), hence linear in the length.

Katharopoulos et al. 2020, eq. 5-6: y_i = phi(q_i) S / (phi(q_i) . z), S = sum_j phi(k_j) v_j, z = sum_j phi(k_j).
"""

from abc import abstractmethod

import torch
from torch import Tensor

from lra.attention import Attention, Shape, at_least_float32, full_precision

CHUNK = 64


class KernelAttention(Attention):
    """The shell of a feature map; `eps` is added to the denominator.

    Features and sums are in fp32 or higher under autocast. Padded keys get features of zero, after the map.
    """

    can_be_causal = True

    def __init__(self, shape: Shape, *, eps: float) -> None:
        super().__init__(shape)
        self.eps = eps

    @abstractmethod
    def features(self, q: Tensor, k: Tensor, key_mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """q, k [B, H, L, Dh] -> phi(q), phi(k) [B, H, L, M]; maxima over keys must leave padded ones out."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
        with full_precision(q.device):
            q, k, v = map(at_least_float32, (q, k, v))
            phi_q, phi_k = self.features(q, k, key_mask)
            if key_mask is not None:
                phi_k = phi_k.masked_fill(~key_mask[:, None, :, None], 0)
            weighted = causal_product if self.causal else product
            mass = phi_k.cumsum(dim=-2) if self.causal else phi_k.sum(dim=-2, keepdim=True)
            return weighted(phi_q, phi_k, v) / ((phi_q * mass).sum(dim=-1, keepdim=True) + self.eps)


def product(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """sum_j (q_i . k_j) v_j, in time linear in L; q, k [..., L, M], v [..., L, N] -> [..., L, N]."""
    return q @ (k.transpose(-2, -1) @ v)


def causal_product(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """`product` over j <= i: chunks of `CHUNK` positions directly, what lies before them through their summed state.

    Time O(L (CHUNK + M) (M + N)), memory O(L M + L M N / CHUNK).
    """
    length = q.shape[-2]
    pad = -length % CHUNK
    q, k, v = (torch.nn.functional.pad(x, (0, 0, 0, pad)).unflatten(-2, (-1, CHUNK)) for x in (q, k, v))
    states = k.transpose(-2, -1) @ v  # [..., chunks, M, N]
    before = states.cumsum(dim=-3) - states
    inside = (q @ k.transpose(-2, -1)).tril() @ v
    return (inside + q @ before).flatten(-3, -2)[..., :length, :]
