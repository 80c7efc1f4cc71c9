"""Luna: attention packs the input into a memory P' of M rows, from which a second attention unpacks the output.

The memory P [M, H Dh] of the first layer is a parameter. Each layer passes P + P' to the next layer, which applies its
layer norm: the paper's P <- LN(P + P'). The first layer applies its norm to the parameter, as in the authors' code. As
in the paper, P' has no output projection, and each attention uses one projection for both keys and values. The
attention weights are O(L M H) numbers.
"""

import torch
from pydantic import PositiveInt
from torch import Tensor, nn

from lra.mixers import Mixer, MixerConfig, MixerInfo, merge_heads, project_in, project_out, split_heads
from lra.mixers._softmax import Scale, info_of, scale_of, weigh
from lra.ops.dropout import Dropout


class Luna(Mixer):
    """Nested attention through a memory.

    Args:
        memory: M, the number of rows of P.
    """

    info = MixerInfo(
        paper="Ma et al. 2021, Luna",
        formula="P′ = softmax(P Kᵀ / {root}) V, Y = softmax(Q K′ᵀ / {root}) V′ with K′, V′ of P′, {memory} rows",
        complexity="L M D",
        linear_memory=True,
        reference="explicit loops",
        deviations=(
            "no dropout on P′ before it is added to P",
            "P has M rows for every input, even for one shorter than M",
            "P has no embedding scale and no position embeddings",
        ),
    )
    commutes = True
    projects_out = True
    few_outputs = True

    def __init__(self, config: MixerConfig, *, memory: PositiveInt, scale: Scale) -> None:
        super().__init__(config)
        self.scale = scale_of(config, scale)
        self.info = info_of(self, scale, memory=memory)
        if config.layer == 0:
            self.memory = nn.Parameter(torch.randn(memory, config.qkv_dim) * config.qkv_dim**-0.5)
        self.norm = nn.LayerNorm(config.qkv_dim)
        self.pack_query = self._project_memory()
        self.pack_key = project_in(config)
        self.query = project_in(config)
        self.key = self._project_memory()
        self.out = project_out(config)
        self.pack_dropout = Dropout(config.dropout)
        self.dropout = Dropout(config.dropout)
        self._from_earlier: list[Tensor] = []  # at most one memory [B, M, H Dh], of the current forward pass
        self._to_later: list[Tensor] | None = None  # the next layer's `_from_earlier`; None in the last layer

    def follow(self, earlier: "Luna") -> None:
        self._from_earlier = earlier._to_later = []

    def forward(self, x: Tensor, key_mask: Tensor | None = None, num_outputs: int | None = None) -> Tensor:
        if self.config.layer == 0:
            memory = self.memory.expand(len(x), -1, -1)  # [B, M, H Dh]
        elif self._from_earlier:
            memory = self._from_earlier.pop()  # left in the list, it would keep the autograd graph alive
        else:
            raise RuntimeError(f"Luna: layer {self.config.layer} has no memory of the layer before: call follow first")
        memory = self.norm(memory)
        mask = None if key_mask is None else key_mask[:, None, None, :]
        packed = self._attend(self.pack_query(memory), self.pack_key(x), mask, self.pack_dropout)
        # The memory has no padding, so unpacking needs no mask.
        unpacked = self._attend(self.query(x[:, :num_outputs]), self.key(packed), None, self.dropout)
        if self._to_later is not None:
            self._to_later[:] = [memory + packed]  # in place, because the next layer holds this list
        return self.out(unpacked)

    def _attend(self, q: Tensor, k: Tensor, mask: Tensor | None, dropout: Dropout) -> Tensor:
        """Attend from queries q [B, n, H Dh] to k [B, m, H Dh], used as keys and as values -> [B, n, H Dh]."""
        q, k = (split_heads(part, self.config.heads) for part in (q, k))  # [B, H, n, Dh] and [B, H, m, Dh]
        return merge_heads(weigh(q, k, k, mask, self.scale, dropout))

    def _project_memory(self) -> nn.Linear:
        return nn.Linear(self.config.qkv_dim, self.config.qkv_dim, bias=self.config.bias)
