"""FNet (Lee-Thorp et al. 2022, eq. 3): the real part of the Fourier transform over positions and width, not scaled.

No parameters, no heads, no mask: padding takes part. O(L D log(L D)) time, nothing kept for the backward pass.
"""

import torch
from torch import Tensor

from lra.attention import Card, Mixer
from lra.ops.precision import at_least_float32, full_precision


class FNet(Mixer):
    """No options."""

    card = Card(
        paper="Lee-Thorp et al. 2022, FNet",
        formula="Re(FFT over L (FFT over D (X)))",
        time="L D log(L D)",
        linear=True,
        oracle="explicit sums; transformers' FNetBasicFourierTransform",
    )
    maskable = False

    def forward(self, x: Tensor, key_mask: Tensor | None = None) -> Tensor:
        with full_precision(x.device):
            return torch.fft.fft2(at_least_float32(x)).real

    @property
    def extra_parameters(self) -> int:
        return -self.shape.projections
