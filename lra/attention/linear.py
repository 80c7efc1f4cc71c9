"""Linear attention with elu + 1 (Katharopoulos et al. 2020, eq. 7)."""

from torch import Tensor
from torch.nn.functional import elu

from lra.attention import Card
from lra.attention.kernel import KernelAttention


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

    def features(self, q: Tensor, k: Tensor, key_mask: Tensor | None) -> tuple[Tensor, Tensor]:
        return elu(q) + 1, elu(k) + 1
