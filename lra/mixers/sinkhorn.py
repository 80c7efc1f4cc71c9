"""Sparse Sinkhorn attention: blocks of keys are sorted by a learned soft permutation P.

There are N = ceil(L / b) blocks of b positions. The sorting logits are R = s W_s plus noise, where s_n is the sum of
the keys of the real tokens in block n, and W_s has the first N columns of a learned matrix for the longest input. A
query of block n attends to the keys of block n and to the n-th sorted block, the sum of all blocks weighted by row n of
P. The memory is O(H (L b + N^2)).
"""

from dataclasses import replace

import torch
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor, nn
from torch.nn.functional import pad

from lra.mixers import Attention, MixerConfig, MixerInfo, without_padding
from lra.mixers._softmax import Scale, info_of, scale_of, weigh
from lra.ops.device import at_least_float32, full_precision
from lra.ops.dropout import Gumbel
from lra.ops.scan import in_chunks

LINEAR_FROM = 32  # minimum b for `linear_memory`: for smaller b, N^2 dominates at Long Range Arena's lengths


class Sinkhorn(Attention):
    """Attention within blocks and to sorted blocks.

    Blocks without a real token are not sorted. A position of a sorted block is masked if no real token contributes to
    its key.

    Args:
        block: b, the number of positions in a block.
        iterations: number of times that the rows and then the columns of P are normalised.
        temperature: divisor of the sorting logits.
        gumbel: add Gumbel noise to the sorting logits in training.
    """

    info = MixerInfo(
        paper="Tay et al. 2020, Sparse Sinkhorn Attention",
        formula="softmax(Qₙ [Kₙ; Σₘ Pₙₘ Kₘ]ᵀ / {root}) [Vₙ; Σₘ Pₙₘ Vₘ], P = Sinkhorn(exp(R / {temperature:g})), "
        "blocks of {block}",
        complexity="L (b + L / b) D",
        linear_memory=True,
        reference="explicit loops; sinkhorn-transformer",
        deviations=("R is computed from sums of keys; the paper computes it from sums of inputs",),
    )

    def __init__(
        self,
        config: MixerConfig,
        *,
        block: PositiveInt,
        iterations: PositiveInt,
        temperature: PositiveFloat,
        gumbel: bool,
        scale: Scale,
    ) -> None:
        super().__init__(config)
        self.block = min(block, config.max_positions)
        blocks = -(-config.max_positions // self.block)
        self.iterations = iterations
        self.temperature = temperature
        self.scale = scale_of(config, scale)
        self.sort = nn.Parameter(torch.randn(config.heads, config.head_dim, blocks) * config.head_dim**-0.5)
        self.noise = Gumbel() if gumbel else nn.Identity()
        self.commutes = self.full_pattern = blocks == 1
        info = info_of(self, scale, temperature=temperature, block=self.block)
        self.info = replace(info, linear_memory=block >= LINEAR_FROM)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
        length = q.shape[2]
        if key_mask is None:
            key_mask = torch.ones(len(q), length, dtype=torch.bool, device=q.device)
        else:  # zeros, so that padding adds nothing to the sum of its block or to sorted blocks
            k, v = (without_padding(x, key_mask) for x in (k, v))
        fill = -length % self.block
        q, k, v = in_chunks(self.block, q, k, v)  # [B, H, N, b, Dh]
        real = pad(key_mask, (0, fill)).unflatten(1, (-1, self.block))[:, None]  # [B, 1, N, b]

        order = self.permutation(k, real)
        # [B, H, N, 2 b, Dh]: the keys of each block, then those of its sorted block.
        keys, values = (torch.cat([x, (order @ x.flatten(3)).view_as(x)], dim=3) for x in (k, v))
        with full_precision(q.device):
            reached = order @ real.to(order.dtype) > 0  # [B, H, N, b]
        mask = torch.cat([real.expand_as(reached), reached], dim=3).unsqueeze(3)  # [B, H, N, 1, 2 b]
        y = weigh(q, keys, values, mask, self.scale, self.dropout)
        return y.flatten(2, 3)[:, :, :length]

    def permutation(self, k: Tensor, real: Tensor) -> Tensor:
        """Return P [B, H, N, N] for keys k [B, H, N, b, Dh] with the mask `real` [B, 1, N, b].

        Rows and columns of blocks without a real token are zero.
        """
        with full_precision(k.device):
            logits = at_least_float32(k).sum(dim=3) @ self.sort[..., : k.shape[2]]  # [B, H, N, Dh] @ [H, Dh, N]
            return doubly_stochastic(self.noise(logits) / self.temperature, real.any(dim=3), self.iterations)


def doubly_stochastic(logits: Tensor, valid: Tensor, iterations: int) -> Tensor:
    """Return exp(logits) [..., N, N] with rows and columns normalised in turn.

    Rows and columns that are not `valid` [..., N] are zero.
    """
    row, column = valid.unsqueeze(-1), valid.unsqueeze(-2)
    logits = logits.masked_fill(~(row & column), torch.finfo(logits.dtype).min)
    for _ in range(iterations):
        # Rows and columns that are not valid stay at the lowest number: normalised, they would have the sum 1.
        logits = logits - logits.logsumexp(dim=-1, keepdim=True).masked_fill(~row, 0)
        logits = logits - logits.logsumexp(dim=-2, keepdim=True).masked_fill(~column, 0)
    return logits.exp()
