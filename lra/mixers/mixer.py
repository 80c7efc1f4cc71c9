"""Token mixing of MLP-Mixer, with W1 [hidden, Lmax] and W2 [Lmax, hidden] (eq. 1).

One network for all channels; the block adds layer norm and skip. A text of L < Lmax positions uses the first L
columns of W1 and rows of W2; padded positions count as zero.
"""

from pydantic import PositiveInt
from torch import Tensor, nn
from torch.nn.functional import gelu

from lra.mixers import Mixer, MixerConfig, MixerInfo, without_padding
from lra.ops.dropout import Dropout


class TokenMixing(Mixer):
    """MLP over positions.

    Args:
        hidden: width of the network.
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
        y = self.out.weight[:length] @ self.dropout(gelu(h))
        return y if self.out.bias is None else y + self.out.bias[:length, None]
