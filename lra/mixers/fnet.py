"""FNet: the real part of the Fourier transform over positions and width, unscaled (eq. 3).

There are no parameters and no heads. Padding cannot be masked: it is mixed like tokens. The transform is linear, so no
tensor is saved for the backward pass.
"""

import torch
from torch import Tensor

from lra.mixers import Mixer, MixerInfo
from lra.ops.device import at_least_float32, full_precision


class FNet(Mixer):
    """Fourier mixing, without options."""

    info = MixerInfo(
        paper="Lee-Thorp et al. 2022, FNet",
        formula="Re(FFT over L (FFT over D (X)))",
        complexity="L D log(L D)",
        linear_memory=True,
        reference="explicit sums; transformers' FNetBasicFourierTransform",
    )
    maskable = False

    def forward(self, x: Tensor, key_mask: Tensor | None = None) -> Tensor:
        with full_precision(x.device):
            return torch.fft.fft2(at_least_float32(x)).real
