"""Softmax attention with rotary positions (eq. 34).

Pairs of columns of q and k are rotated by angles that grow with the position, so that q_i . k_j depends on i and j only
through i - j. The pairs are (m, m + Dh / 2), as in most current code, not the paper's (2 m, 2 m + 1); this changes only
the order of the columns.
"""

import torch
from pydantic import PositiveFloat
from torch import Tensor

from lra.mixers import Attention, MixerConfig, MixerInfo
from lra.mixers._softmax import Scale, allowed, info_of, scale_of, weigh


class Rotary(Attention):
    """Softmax attention with rotary positions.

    Args:
        base: base of the angles: pair m at position i is rotated by i / base^(2 m / Dh).
    """

    info = MixerInfo(
        paper="Su et al. 2021, RoFormer",
        formula="softmax(T(Q) T(K)ᵀ / {root}) V, T turns pair m of row i by i / {base:g}^(2m / width)",
        complexity="L² D",
        linear_memory=False,
        reference="complex numbers; transformers' rotary embedding",
    )
    can_be_causal = True
    few_outputs = True

    def __init__(self, config: MixerConfig, *, base: PositiveFloat, scale: Scale) -> None:
        super().__init__(config)
        self.base = base
        self.scale = scale_of(config, scale)
        self.info = info_of(self, scale, base=base)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
        mask = allowed(q, k, key_mask, self.causal)
        return weigh(self.turned(q), self.turned(k), v, mask, self.scale, self.dropout)

    def turned(self, x: Tensor) -> Tensor:
        """Return x [B, H, L, Dh] rotated by the angles of its positions."""
        half = x.shape[-1] // 2
        pair = torch.arange(half, dtype=torch.float64, device=x.device)
        return turn(x, self.base ** (-2 * pair / x.shape[-1]))


def turn(x: Tensor, speed: Tensor) -> Tensor:
    """Rotate the pairs of columns (x_m, x_{m + w}) at position i by the angle i speed_m.

    Args:
        x: [..., L, 2 w] or [..., L, 2 w + 1]; an odd last column is unchanged.
        speed: angle per position of each pair [w], in float64, because large angles lose digits in fp32.
    """
    half = len(speed)
    angle = torch.arange(x.shape[-2], dtype=torch.float64, device=x.device).unsqueeze(-1) * speed  # [L, w]
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    first, second, rest = x.split([half, half, x.shape[-1] - 2 * half], dim=-1)
    return torch.cat([first * cos - second * sin, first * sin + second * cos, rest], dim=-1)
