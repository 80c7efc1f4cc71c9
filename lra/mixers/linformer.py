"""Linformer: softmax attention over k positions, to which a learned E [Lmax, k] projects keys and values (eq. 7).

Keys, values and all heads of a layer share E (section 4). An input of L < Lmax positions uses the first L rows of E.
The memory is O(L k H).
"""

import torch
from pydantic import PositiveInt
from torch import Tensor, nn

from lra.mixers import Attention, MixerConfig, MixerInfo, without_padding
from lra.mixers._softmax import Scale, info_of, scale_of, weigh


class Linformer(Attention):
    """Attention over projected positions.

    Args:
        rank: k, the number of projected positions.
    """

    info = MixerInfo(
        paper="Wang et al. 2020, Linformer",
        formula="softmax(Q (Eᵀ K)ᵀ / {root}) Eᵀ V, {rank} columns",
        complexity="L k D",
        linear_memory=True,
        reference="linformer 0.2.3; softmax where E = I",
        deviations=("padding is masked if the model masks it; Google's code never masks it",),
    )
    few_outputs = True

    def __init__(self, config: MixerConfig, *, rank: PositiveInt, scale: Scale) -> None:
        super().__init__(config)
        spread = config.max_positions**-0.5  # sd of E: a sum over all positions then has about the variance of a key
        self.project_keys = nn.Parameter(torch.randn(1, config.max_positions, rank) * spread)
        self.scale = scale_of(config, scale)
        self.info = info_of(self, scale, rank=rank)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
        # Zero the padding of k and v before E mixes positions: biases of the key and value projections made it nonzero.
        k, v = (without_padding(x, key_mask) for x in (k, v))
        weight = self.project_keys[:, : k.shape[2]]  # [1, L, k]
        k, v = (torch.einsum("hlk,bhld->bhkd", weight, x) for x in (k, v))  # [B, H, k, Dh]
        return weigh(q, k, v, None, self.scale, self.dropout)  # no mask: projected positions have no padding
