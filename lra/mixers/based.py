"""Based: linear attention with the second-order Taylor expansion of exp(q . k / sqrt(d)) as its kernel (eq. 3).

Of the products x'_m x'_n those with m < n are computed once, times sqrt(2). The weights are positive, at least 1/2.
"""

import torch
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor, nn

from lra.mixers import MixerConfig, MixerInfo
from lra.mixers._kernel import KernelAttention


class Based(KernelAttention):
    """Linear attention with a Taylor kernel.

    Args:
        width: d, the width of a head's queries and keys.
    """

    info = MixerInfo(
        paper="Arora et al. 2024, Simple Linear Attention Language Models Balance the Recall-Throughput Tradeoff",
        formula="φ(Q) (φ(K)ᵀ V) / φ(Q) Σφ(K), φ = [1, x', x' ⊗ x' / √2], x' = x / d^¼",
        complexity="L D d², d columns of queries and keys",
        linear_memory=True,
        reference="the explicit L x L weights; flash-linear-attention's naive form",
        deviations=(
            "no sliding windows and no convolutions between these layers",
            "weights begin as PyTorch draws them; in the authors' code as N(0, 0.02²), those of the output projection "
            "divided by the root of twice the number of layers",
        ),
    )
    commutes = True

    def __init__(self, config: MixerConfig, *, width: PositiveInt, eps: PositiveFloat) -> None:
        super().__init__(config, eps=eps)
        self.width = width
        self.query, self.key = (nn.Linear(config.dim, config.heads * width, bias=config.bias) for _ in range(2))

    def features(self, q: Tensor, k: Tensor, key_mask: Tensor | None) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        return self.taylor(q), self.taylor(k)

    def taylor(self, x: Tensor) -> Tensor:
        """Return phi(x) [..., 1 + d + d (d + 1) / 2]."""
        x = x * self.width**-0.25
        first, second = torch.triu_indices(self.width, self.width, device=x.device)
        products = x[..., first] * x[..., second] * torch.where(first == second, 0.5, 1.0).to(x.dtype).sqrt()
        return torch.cat([torch.ones_like(x[..., :1]), x, products], dim=-1)
