"""Token mixing of MLP-Mixer: an MLP over positions, with W1 [hidden, Lmax] and W2 [Lmax, hidden] (eq. 1).

All channels share the MLP. The block supplies the layer norm and the residual connection. An input of L < Lmax
positions uses the first L columns of W1 and the first L rows of W2. Padded positions count as zero.
"""

from pydantic import PositiveInt
from torch import Tensor, nn
from torch.nn.functional import gelu

from lra.mixers import Mixer, MixerConfig, MixerInfo, without_padding
from lra.ops.dropout import Dropout


class TokenMixing(Mixer):
    """MLP over positions.

    Args:
        hidden: width of the MLP's hidden layer.
    """

    info = MixerInfo(
        paper="Tolstikhin et al. 2021, MLP-Mixer",
        formula="W₂ gelu(W₁ X), over positions",
        complexity="L D hidden",
        linear_memory=True,
        reference="explicit loops; mlp-mixer-pytorch 0.3.1",
    )

    def __init__(self, config: MixerConfig, *, hidden: PositiveInt) -> None:
        super().__init__(config)
        self.hidden = nn.Linear(config.max_positions, hidden, bias=config.bias)
        self.dropout = Dropout(config.dropout)
        self.out = nn.Linear(hidden, config.max_positions, bias=config.bias)

    def forward(self, x: Tensor, key_mask: Tensor | None = None) -> Tensor:
        length = x.shape[1]
        h = self.hidden.weight[:, :length] @ without_padding(x, key_mask)  # [B, hidden, D]
        if self.hidden.bias is not None:
            h = h + self.hidden.bias[:, None]
        y = self.out.weight[:length] @ self.dropout(gelu(h))  # [B, L, D]
        return y if self.out.bias is None else y + self.out.bias[:length, None]
