"""Extractor: a convolution over l lags whose taps are D x D matrices, and a gate, without biases (eq. 18-20).

W_opt is the output projection that the variants switch. Without causality, which the paper leaves open, the lags are
-(l-1) ... l-1.

Taps of D x D need l D^2 parameters, too many for long texts. Hence W_k = U G_k V, with U [D, r] and V [r, D] shared by
all lags and G_k block-diagonal. With t taps and G_k in g blocks: time O(L t r^2 / g) directly,
O(L r^2 / g + L r log t) by FFT, and 2 L D r for U, V.
"""

from dataclasses import replace

import torch
from pydantic import PositiveInt
from torch import Tensor, nn
from torch.nn.functional import conv1d, pad

from lra.core.errors import UserError
from lra.mixers import Mixer, MixerConfig, MixerInfo, without_padding
from lra.ops.device import at_least_float32, full_precision
from lra.ops.dropout import Dropout

FFT_TAPS = 24  # measured in processor time, D 128 and 256: direct wins up to 15 taps, FFT from 31 (63 if diagonal)


class Extractor(Mixer):
    """Gated convolution with matrix taps.

    The paper has no dropout; here it acts on the adjusted features, before W_opt.

    Args:
        lags: l, at most max_positions.
        rank: r, or None for r = D without U and V.
        groups: blocks of G_k, or None for a diagonal G_k.
        adjust: use the gate x W_adj.
    """

    info = MixerInfo(
        paper="Chen 2023, Attention Is Not All You Need Anymore",
        formula="((x W_adj) ∘ e) W_opt, eᵢ = Σⱼ xⱼ Wᵢ₋ⱼ₊₁",
        complexity="L D² by FFT, L l D² directly",
        linear_memory=True,
        reference="the double sum in float64; torch conv1d",
    )
    can_be_causal = True
    projects_out = True

    def __init__(
        self,
        config: MixerConfig,
        *,
        lags: PositiveInt,
        rank: PositiveInt | None,
        groups: PositiveInt | None,
        adjust: bool,
    ) -> None:
        super().__init__(config)
        self.rank = rank
        self.lags = min(lags, config.max_positions)
        self.taps = self.lags if self.causal else 2 * self.lags - 1
        self.width = rank or config.dim
        self.groups = groups or self.width
        if self.width % self.groups:
            source = "attention.rank" if rank else "model.dim"
            raise UserError(f"attention.groups={groups} does not divide {source}={self.width}")
        self.down = nn.Linear(config.dim, rank, bias=False) if rank else nn.Identity()
        block = self.width // self.groups
        # weight[o, i, t] is entry (i, o) of the matrix of lag l - 1 - t, as conv1d wants it.
        self.weight = nn.Parameter(torch.randn(self.width, block, self.taps) * (block * self.taps) ** -0.5)
        self.up = nn.Linear(rank, config.dim, bias=False) if rank else nn.Identity()
        self.adjust = nn.Linear(config.dim, config.dim, bias=False) if adjust else None
        if not adjust:
            self.info = replace(self.info, formula=self.info.formula.replace("((x W_adj) ∘ e)", "e"))
        self.dropout = Dropout(config.dropout, config.dropout_over)
        self.out = nn.Linear(config.dim, config.dim, bias=False) if config.out_proj else nn.Identity()

    def forward(self, x: Tensor, key_mask: Tensor | None = None) -> Tensor:
        x = without_padding(x, key_mask)  # real positions near the end would read padding as their neighbours
        y = self.up(self.convolve(self.down(x)))
        if self.adjust is not None:
            y = self.adjust(x) * y
        return self.out(self.dropout(y))

    def convolve(self, x: Tensor) -> Tensor:
        """Compute the sum over lags of x [B, L, r] -> [B, L, r], with zeros outside of x."""
        later = 0 if self.causal else self.lags - 1
        if not self.causal and min(self.taps, x.shape[1]) >= FFT_TAPS:  # causal: rounding would leak
            with full_precision(x.device):
                x, weight = map(at_least_float32, (x, self.weight))
                return fft_convolution(x, weight, self.groups, self.lags - 1)
        x = pad(x.transpose(1, 2), (self.lags - 1, later))
        return conv1d(x, self.weight, groups=self.groups).transpose(1, 2)


def fft_convolution(x: Tensor, weight: Tensor, groups: int, earlier: int) -> Tensor:
    """Compute conv1d of x [B, L, c] by overlap-save FFT.

    Windows have n >= 2 t - 1 positions, the first t - 1 for context, so that the transform of the taps has
    n c^2 / (2 groups) complex numbers, whatever the length.

    x [B, L, c], padded with `earlier` zeros on the left and on the right to give L outputs, weight [c, c / groups, t]
    -> [B, L, c].
    """
    length, taps = x.shape[1], weight.shape[-1]
    window = 1 << (2 * taps - 2).bit_length()
    hop = window - taps + 1  # outputs of a window: the others wrap around
    total = -(-length // hop) * hop + taps - 1
    windows = pad(x, (0, 0, earlier, total - earlier - length)).unfold(1, window, hop)  # [B, windows, c, n]
    signal = torch.fft.rfft(windows).unflatten(2, (groups, -1))
    response = torch.fft.rfft(weight.flip(-1), window).unflatten(0, (groups, -1))
    product = torch.einsum("bmgif,goif->bmgof", signal, response).flatten(2, 3)  # [B, windows, c, n / 2 + 1]
    y = torch.fft.irfft(product, window)[..., taps - 1 :]
    return y.transpose(2, 3).flatten(1, 2)[:, :length]
