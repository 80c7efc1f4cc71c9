"""Synthesizer: softmax(S) V, where the scores S are learned, or computed from the token of the query alone.

factorized   S_h = A_h B_h^T, A and B [Lmax, k]
random       S_h = R_h, a table [Lmax, Lmax]
dense        S_h,i = W2 relu(W1,h x_i), W2 [Lmax, Dh] for all heads

With `dot_product` the scores are S + Q K^T scale, the paper's mixture. A, B, R and W2 are cut to the L positions of an
input, and padded keys are masked. Training takes O(L^2 H) memory.
"""

from dataclasses import replace
from typing import Literal

import torch
from pydantic import PositiveInt
from torch import Tensor, nn
from torch.nn.functional import pad

from lra.mixers import Mixer, MixerConfig, MixerInfo, merge_heads, project_in, project_out, split_heads
from lra.mixers._softmax import Scale, allowed, info_of, scale_of, weigh
from lra.ops.dropout import Dropout


class Synthesizer(Mixer):
    """Attention with synthetic scores.

    Args:
        kind: form of S: `factorized`, `random` or `dense`.
        rank: k, the rank of a factorized S_h.
        dot_product: add Q K^T scale to S; without it there are no query and key projections.
    """

    info = MixerInfo(
        paper="Tay et al. 2021, Synthesizer",
        formula="softmax({synthetic} + Q Kᵀ / {root}) V",
        complexity="L² D",
        linear_memory=False,
        reference="explicit loops; softmax where S = Q Kᵀ / √Dh",
    )
    can_be_causal = True
    projects_out = True

    def __init__(
        self,
        config: MixerConfig,
        *,
        kind: Literal["factorized", "random", "dense"],
        rank: PositiveInt,
        dot_product: bool,
        scale: Scale,
    ) -> None:
        super().__init__(config)
        self.kind = kind
        self.dot_product = dot_product
        self.scale = scale_of(config, scale)
        synthetic = {"factorized": "A Bᵀ", "random": "R", "dense": "W₂ relu(W₁ X)"}[kind]
        if dot_product:
            self.info = info_of(self, scale, synthetic=synthetic)
            self.query = project_in(config)
            self.key = project_in(config)
        else:
            self.info = replace(self.info, formula=f"softmax({synthetic}) V")
        self.value = project_in(config)
        self.out = project_out(config)
        self.dropout = Dropout(config.dropout)
        # Learned scores start with variance 1, so that the weights of a query differ, but none dominates.
        if kind == "factorized":
            self.rows = nn.Parameter(torch.randn(config.heads, config.max_positions, rank) * rank**-0.25)
            self.columns = nn.Parameter(torch.randn(config.heads, config.max_positions, rank) * rank**-0.25)
        elif kind == "random":
            self.table = nn.Parameter(torch.randn(config.heads, config.max_positions, config.max_positions))
        else:
            self.hidden = project_in(config)
            self.synthesise = nn.Linear(config.head_dim, config.max_positions, bias=config.bias)

    def forward(self, x: Tensor, key_mask: Tensor | None = None) -> Tensor:
        length = x.shape[1]
        v = split_heads(self.value(x), self.config.heads)  # [B, H, L, Dh]
        mask = allowed(v, v, key_mask, self.causal)
        if self.kind != "random":
            return self.out(merge_heads(self._weigh_factors(x, v, mask)))
        scores = self.table[None, :, :length, :length]  # [1, H, L, L]
        if self.dot_product:
            query, key = self._query_key(x)
            scores = scores + query @ key.mT  # [B, H, L, L]
        if mask is not None:
            scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
        # Expand the weights to all documents, because each document has its own dropout noise.
        weights = self.dropout(scores.softmax(dim=-1).expand(len(x), -1, -1, -1))  # [B, H, L, L]
        return self.out(merge_heads(weights @ v))

    def _weigh_factors(self, x: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """Return the outputs [B, H, L, Dh] for an S that is a product of factors.

        With `dot_product` these factors are concatenated with the queries and keys, so that a fused kernel computes all
        scores as one product. Such kernels need q, k and v of the same width, so the narrower ones are padded.
        """
        length = x.shape[1]
        if self.kind == "factorized":
            q, k = (table[:, :length].expand(len(x), -1, -1, -1) for table in (self.rows, self.columns))  # [B, H, L, k]
        else:
            q, k = split_heads(self.hidden(x), self.config.heads).relu(), self.synthesise.weight[:length]
            if self.synthesise.bias is not None:  # a column of ones in q, and the bias as one more column of W2
                q = pad(q, (0, 1), value=1.0)  # [B, H, L, Dh + 1]
                k = torch.cat([k, self.synthesise.bias[:length, None]], dim=-1)  # [L, Dh + 1]
            k = k.expand(*q.shape[:2], -1, -1)  # [B, H, L, Dh (+ 1)]
        if self.dot_product:
            query, key = self._query_key(x)
            q, k = torch.cat([q, query], dim=-1), torch.cat([k, key], dim=-1)
        width = max(q.shape[-1], v.shape[-1])
        q, k, padded = (pad(part, (0, width - part.shape[-1])) for part in (q, k, v))  # [B, H, L, width]
        return weigh(q, k, padded, mask, 1.0, self.dropout)[..., : v.shape[-1]]

    def _query_key(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the queries, times the scale, and the keys, both [B, H, L, Dh]."""
        query, key = (split_heads(project(x), self.config.heads) for project in (self.query, self.key))
        return query * self.scale, key
