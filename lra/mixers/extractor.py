"""Extractor: a convolution over l lags whose taps W are D x D matrices, times a gate, without biases (eq. 18-20).

W_opt is the output projection, which `model.out_proj` switches. The paper has only the causal form; the two-sided form
has the lags -(l - 1) to l - 1.

Full matrices need l D^2 parameters, too many for long inputs. Therefore W_k = U G_k V, with U [D, r] and V [r, D]
shared by all lags and G_k [r, r] block-diagonal. For t taps and g blocks in a G_k, the convolution takes time
O(L t r^2 / g) directly or O(L r^2 / g + L r log t) by FFT, and U and V take O(L D r).
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

# Minimum number of taps for the FFT. In processor time at D = 128 and 256, direct convolution is faster up to 15 taps,
# and the FFT from 31 taps on (63 if G_k is diagonal).
FFT_TAPS = 24


class Extractor(Mixer):
    """Gated convolution with matrix taps.

    The paper has no dropout. Here dropout acts on the gated features, before W_opt.

    Args:
        lags: l, the number of lags; larger values are cut to `max_positions`.
        rank: r, or None for r = D without U and V.
        groups: g, the number of diagonal blocks of G_k, or None for a diagonal G_k.
        adjust: multiply by the gate x W_adj.
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
        self.lags = min(lags, config.max_positions)
        self.taps = self.lags if self.causal else 2 * self.lags - 1
        self.width = rank or config.dim
        self.groups = groups or self.width
        if self.width % self.groups:
            source = "attention.rank" if rank else "model.dim"
            raise UserError(f"attention.groups={groups} does not divide {source}={self.width}")
        self.down = nn.Linear(config.dim, rank, bias=False) if rank else nn.Identity()
        block = self.width // self.groups
        # weight[o, i, t] is the entry of G_k, k = l - 1 - t, from input i of o's block to output o: conv1d's layout.
        self.weight = nn.Parameter(torch.randn(self.width, block, self.taps) * (block * self.taps) ** -0.5)
        self.up = nn.Linear(rank, config.dim, bias=False) if rank else nn.Identity()
        self.adjust = nn.Linear(config.dim, config.dim, bias=False) if adjust else None
        if not adjust:
            self.info = replace(self.info, formula=self.info.formula.replace("((x W_adj) ∘ e)", "e"))
        self.dropout = Dropout(config.dropout, config.dropout_over)
        self.out = nn.Linear(config.dim, config.dim, bias=False) if config.out_proj else nn.Identity()

    def forward(self, x: Tensor, key_mask: Tensor | None = None) -> Tensor:
        x = without_padding(x, key_mask)  # else real positions near the end would read padding
        y = self.up(self.convolve(self.down(x)))
        if self.adjust is not None:
            y = self.adjust(x) * y
        return self.out(self.dropout(y))

    def convolve(self, x: Tensor) -> Tensor:
        """Convolve x [B, L, r], which counts as zero outside its L positions, with the taps -> [B, L, r]."""
        later = 0 if self.causal else self.lags - 1
        # The causal form avoids the FFT, whose rounding would leak later positions into earlier outputs.
        if not self.causal and min(self.taps, x.shape[1]) >= FFT_TAPS:
            with full_precision(x.device):
                x, weight = map(at_least_float32, (x, self.weight))
                return fft_convolution(x, weight, self.groups, self.lags - 1)
        x = pad(x.transpose(1, 2), (self.lags - 1, later))  # [B, r, L + taps - 1]
        return conv1d(x, self.weight, groups=self.groups).transpose(1, 2)


def fft_convolution(x: Tensor, weight: Tensor, groups: int, earlier: int) -> Tensor:
    """Compute the grouped conv1d of x [B, L, c] with weight [c, c / groups, t] by overlap-save FFT -> [B, L, c].

    x is padded with `earlier` zeros on the left, and on the right so that the last window is full. It is cut into
    windows of n >= 2 t - 1 positions that overlap by t - 1. n depends only on t, so the transform of the taps has a
    size that does not depend on L, about n c^2 / (2 groups) complex numbers.
    """
    length, taps = x.shape[1], weight.shape[-1]
    window = 1 << (2 * taps - 2).bit_length()
    hop = window - taps + 1  # number of valid outputs of a window; the first t - 1 outputs wrap around
    total = -(-length // hop) * hop + taps - 1
    windows = pad(x, (0, 0, earlier, total - earlier - length)).unfold(1, window, hop)  # [B, windows, c, n]
    signal = torch.fft.rfft(windows).unflatten(2, (groups, -1))  # [B, windows, g, c / g, n / 2 + 1]
    # A product of transforms is a convolution, which flips the weight. conv1d does not, so the weight is flipped here.
    # [g, c / g outputs, c / g inputs, n / 2 + 1]
    response = torch.fft.rfft(weight.flip(-1), window).unflatten(0, (groups, -1))
    product = torch.einsum("bmgif,goif->bmgof", signal, response).flatten(2, 3)  # [B, windows, c, n / 2 + 1]
    y = torch.fft.irfft(product, window)[..., taps - 1 :]  # [B, windows, c, hop]
    return y.transpose(2, 3).flatten(1, 2)[:, :length]
