"""Hyena of order 2: two gates around a long convolution h (Definition 3.1).

X0, X1 and V first pass a convolution of a few taps in each channel. The filter h is F(t) exp(-r t), with t the lag
divided by the longest lag. F is a network with sine activations that reads t and an encoding of the lag by sines and
cosines (section 3.3). The rate r differs between channels. Without causality F has a second output, the filter of later
positions, and the short convolutions are centred. The causal form is exactly causal: no rounding error of an FFT
reaches earlier outputs.
"""

import math
from dataclasses import replace
from typing import ClassVar

import torch
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor, nn

from lra.core.errors import UserError
from lra.mixers import Mixer, MixerConfig, MixerInfo, without_padding
from lra.ops.convolution import causal_convolution, convolve_both, short_convolution
from lra.ops.device import at_least_float32, full_precision
from lra.ops.dropout import Dropout

TWO_SIDED = "the paper is causal; here a second filter reads later positions, and the short convolutions are centred"
DECAYED = 1e-2  # value of exp(-r t) in the fastest channel at t = `fast`, and in the slowest one at t = `slow`


class Hyena(Mixer):
    """Gated long convolution with an implicit filter.

    Args:
        taps: number of taps of the short convolutions, odd.
        bands: number of frequencies that encode a lag, each as sine and cosine.
        width: width of the filter network F.
        frequency: initial factor w in the activations sin(w x) of F.
        fast: fraction of the longest input after which exp(-r t) is 0.01 in the channel with the fastest decay.
        slow: likewise, for the channel with the slowest decay.
    """

    info = MixerInfo(
        paper="Poli et al. 2023, Hyena Hierarchy",
        formula="(X₀ ⊙ (h ∗ Z + d Z)) W, Z = X₁ ⊙ V; X₀, X₁, V = conv(X Wᵢ), hₜ = exp(−r t) F(t), F with sines",
        complexity="L D log L; causal: L D log² L",
        linear_memory=True,
        reference="sums over pairs in float64, the filter lag by lag; the authors' standalone_hyena.py",
        deviations=(
            "V passes only a short convolution, as in the authors' code; the paper has a second long filter on V",
            "the sines and cosines of positions are fixed, not trained",
            "dropout acts on the input of the output projection; in the authors' code it acts on Z",
            "projections start as PyTorch initialises them; the authors' language models draw them from N(0, 0.02²) "
            "and divide those of the output by the square root of twice the number of layers",
        ),
    )
    can_be_causal = True
    one_graph = False
    projects_out = True
    parameter_groups: ClassVar[dict[str, tuple[str, ...]]] = {"filters": ("hidden", "frequency", "filters")}

    def __init__(
        self,
        config: MixerConfig,
        *,
        taps: PositiveInt,
        bands: PositiveInt,
        width: PositiveInt,
        frequency: PositiveFloat,
        fast: PositiveFloat,
        slow: PositiveFloat,
    ) -> None:
        super().__init__(config)
        if taps % 2 == 0:
            raise UserError(f"attention.taps={taps}: expected an odd number, so that a filter can be centred")
        if fast > slow:
            raise UserError(f"attention.fast={fast}: expected at most attention.slow={slow}")
        self.bands, self.fast, self.slow = bands, fast, slow
        self.directions = 1 if self.causal else 2
        if not self.causal:
            self.info = replace(self.info, deviations=(*self.info.deviations, TWO_SIDED))
        dim = config.dim
        self.inner = nn.Linear(dim, 3 * dim, bias=config.bias)
        self.taps = nn.Parameter((2 * torch.rand(3 * dim, taps) - 1) * taps**-0.5)
        self.taps_bias = nn.Parameter((2 * torch.rand(3 * dim) - 1) * taps**-0.5)
        sizes = (2 * bands + 1, width, width)
        self.hidden = nn.ModuleList(nn.Linear(size, width) for size in sizes)
        self.frequency = nn.Parameter(torch.full((width,), float(frequency)))  # one vector for all layers of F
        self.filters = nn.Linear(width, self.directions * dim, bias=False)
        self.skip = nn.Parameter(torch.randn(dim))
        self.dropout = Dropout(config.dropout, config.dropout_over)
        self.out = nn.Linear(dim, dim, bias=config.bias) if config.out_proj else nn.Identity()

    def forward(self, x: Tensor, key_mask: Tensor | None = None) -> Tensor:
        # Padding is zeroed after the projection, too, because its bias would reach real positions in the convolutions.
        x = without_padding(self.inner(without_padding(x, key_mask)), key_mask)  # [B, L, 3 D]
        with full_precision(x.device):
            x = at_least_float32(x)
            later = 0 if self.causal else self.taps.shape[1] // 2
            # [B, L, D] each.
            gate, key, value = (short_convolution(x, self.taps, later) + self.taps_bias).chunk(3, dim=-1)
            z = without_padding(key * value, key_mask)  # the short convolutions have filled padding again
            y = gate * (self.convolve(z) + self.skip * z)
        return self.out(self.dropout(y))

    def convolve(self, z: Tensor) -> Tensor:
        """Convolve z [B, L, D] with h -> [B, L, D]; lag 0 belongs to the filter of earlier positions."""
        kernels = self.kernels(z.shape[1])
        if self.causal:
            return causal_convolution(z, kernels[0])
        earlier, later = kernels
        return convolve_both(z, earlier, later[:, 1:])

    def kernels(self, length: int) -> Tensor:
        """Return h [directions, D, length] at lags 0 to length - 1; the value at a lag does not depend on `length`."""
        skip, longest = self.skip, self.config.max_positions
        lag = torch.arange(length, dtype=skip.dtype, device=skip.device)
        time = lag / max(1, longest - 1)  # relative to the longest input, so h does not depend on `length`
        band = torch.linspace(1e-4, self.bands - 1, self.bands, dtype=skip.dtype, device=skip.device)
        angle = 2 * math.pi / longest * lag.unsqueeze(-1) * band  # [L, bands]
        x = torch.cat([time.unsqueeze(-1), angle.cos(), angle.sin()], dim=-1)  # [L, 2 bands + 1]
        for layer in self.hidden:
            x = (self.frequency * layer(x)).sin()  # [L, width]
        # [D], from the slowest to the fastest decay.
        rates = -math.log(DECAYED) * torch.linspace(
            1 / self.slow, 1 / self.fast, len(skip), dtype=skip.dtype, device=skip.device
        )
        h = self.filters(x).T.unflatten(0, (self.directions, -1))  # [directions, D, L]
        return h * (-rates.unsqueeze(-1) * time).exp()
