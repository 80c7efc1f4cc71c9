"""Based: linear attention with the second-order Taylor expansion of exp(q . k / sqrt(d)) as its kernel (eq. 3).

With s = q . k / sqrt(d), a weight before normalisation is 1 + s + s^2 / 2 >= 1/2, so the denominator is positive.
"""

import torch
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor, nn

from lra.mixers import MixerConfig, MixerInfo
from lra.mixers._kernel import KernelAttention


class Based(KernelAttention):
    """Linear attention with a second-order Taylor kernel.

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
            "all layers are of this kind; the paper's models also have layers of sliding windows and of convolutions",
            "weights start as PyTorch initialises them; the authors' code draws them from N(0, 0.02²) and divides "
            "those of the output projection by the square root of twice the number of layers",
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
        """Return the features phi(x) [..., 1 + d + d (d + 1) / 2] of x [..., d]."""
        x = x * self.width**-0.25  # so that q' . k' = q . k / sqrt(d)
        # Columns m and n, m <= n, of each product x'_m x'_n; both [d (d + 1) / 2].
        first, second = torch.triu_indices(self.width, self.width, device=x.device)
        # x' ⊗ x' / √2 has each square once, with factor √½, and each product x'_m x'_n of two columns twice. Here these
        # products are taken once, with factor √½ √2 = 1.
        products = x[..., first] * x[..., second] * torch.where(first == second, 0.5, 1.0).to(x.dtype).sqrt()
        return torch.cat([torch.ones_like(x[..., :1]), x, products], dim=-1)
