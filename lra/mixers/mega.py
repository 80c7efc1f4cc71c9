"""Mega: one head of attention whose queries, keys and gates read an exponential moving average of the input.

X' = EMA(X): each channel has n damped averages h_i = a beta x_i + (1 - a d) h_{i-1}, and x'_i is g . h_i / sqrt(n)
(eq. 5, 6). Without causality, X' also includes averages from right to left. Z = swish(X' W) has width z. The queries
are Q = c_q Z + b_q, the keys K = c_k Z + b_k, and the values V = swish(X W_v). The bias b of the scores depends on
i - j (eq. 9-15). The residual connection of the block adds the output to X.
"""

import math
from dataclasses import replace

import torch
from pydantic import PositiveInt
from torch import Tensor, nn
from torch.nn.functional import silu

from lra.mixers import Mixer, MixerConfig, MixerInfo, without_padding
from lra.ops.convolution import convolve_both, convolve_modes, mode_kernel
from lra.ops.device import at_least_float32, full_precision
from lra.ops.dropout import Dropout
from lra.ops.scan import in_chunks


class Mega(Mixer):
    """Gated attention with a moving average.

    Args:
        averages: n, the number of averages per channel and direction.
        width: z, the width of queries and keys.
        chunk: number of positions in a chunk, or None for a single chunk. Positions attend only within their chunk, but
            the averages run across chunks.
    """

    info = MixerInfo(
        paper="Ma et al. 2023, Mega",
        formula="σ(X′ Wᵤ) ⊙ (H − X), H = swish(X′ Wₕ + (swish(X′ Wᵣ) ⊙ softmax(Q Kᵀ / √z + b) V) U), X′ = EMA(X)",
        complexity="L² D + L D (n + log L)",
        linear_memory=False,
        reference="the averages by a loop and explicit weights; mega-pytorch 0.1.0",
        deviations=(
            "no ωX and no swish on X′, which are in the authors' code but not in the paper",
            "values are as wide as the model, not twice as wide",
            "with pre-norm, the X of H − X is the normalised input",
            "softmax on every task; the paper uses a Laplace function on images",
            "β starts from N(0, 0.2²), the gains of q and k from 1 + N(0, 0.02²), and projections as PyTorch "
            "initialises them; in the authors' code β starts from ±1 + N(0, 0.02²) with alternating signs, gains and "
            "projections from N(0, 0.02²), and biases from 0",
        ),
    )
    can_be_causal = True
    one_graph = False

    def __init__(
        self, config: MixerConfig, *, averages: PositiveInt, width: PositiveInt, chunk: PositiveInt | None
    ) -> None:
        super().__init__(config)
        self.averages, self.width, self.chunk = averages, width, chunk
        self.directions = 1 if self.causal else 2
        if chunk is not None:
            formula = self.info.formula.replace(" + b) V", f" + b) V in chunks of {chunk}")
            self.info = replace(
                self.info, formula=formula, complexity="L c D + L D (n + log L), chunks of c", linear_memory=True
            )
        dim, bias, each = config.dim, config.bias, (self.directions, config.dim, averages)
        # For each average: the logits of a and d, then the factors beta and g.
        self.keep, self.damp = nn.Parameter(0.2 * torch.randn(each)), nn.Parameter(0.2 * torch.randn(each))
        self.expand, self.reduce = nn.Parameter(0.2 * torch.randn(each)), nn.Parameter(torch.randn(each))
        self.shared = nn.Linear(dim, width, bias=bias)
        self.scales = nn.Parameter(1 + 0.02 * torch.randn(2, width))  # c_q and c_k
        self.shifts = nn.Parameter(torch.zeros(2, width))  # b_q and b_k
        self.value, self.reset, self.update, self.by_average = (nn.Linear(dim, dim, bias=bias) for _ in range(4))
        self.by_attention = nn.Linear(dim, dim, bias=False)
        self.bias = nn.Parameter(0.02 * torch.randn(2 * self.reach - 1))  # one per i - j, from 1 - reach to reach - 1
        self.dropout = Dropout(config.dropout)

    @property
    def reach(self) -> int:
        """Number of positions in a chunk, or in the longest input if there are no chunks."""
        return self.config.max_positions if self.chunk is None else self.chunk

    def forward(self, x: Tensor, key_mask: Tensor | None = None) -> Tensor:
        x = without_padding(x, key_mask)
        with full_precision(x.device):
            average = self.average(at_least_float32(x))
        z = silu(self.shared(average))
        q, k = (scale * z + shift for scale, shift in zip(self.scales, self.shifts, strict=True))  # [B, L, z]
        attended = self.attend(q, k, silu(self.value(x)), key_mask)
        hidden = silu(self.by_average(average) + self.by_attention(silu(self.reset(average)) * attended))
        return self.update(average).sigmoid() * (hidden - x)

    def average(self, x: Tensor) -> Tensor:
        """Return X' [B, L, D], the moving averages of x [B, L, D]."""
        a = self.keep.sigmoid()
        # Clamp the product of a and d below 1, so that log1p is finite even if both sigmoids round to 1.
        taken = (a * self.damp.sigmoid()).clamp(max=1 - torch.finfo(a.dtype).eps / 2)
        rate = torch.log1p(-taken)  # [directions, D, n]
        rate, c = torch.complex(rate, torch.zeros_like(rate)), a * self.expand * self.reduce * self.averages**-0.5 / 2
        # c is halved above, because the convolutions count each mode as a conjugate pair.
        c = torch.complex(c, torch.zeros_like(c))
        if self.causal:
            return convolve_modes(x, rate[0], c[0])
        # Step of the tables in `mode_kernel`. It does not depend on the length of x, so the rounding does not, either.
        step = math.isqrt(self.config.max_positions - 1) + 1
        # Kernels [D, L + 1] at lags 0 to L; `convolve_both` reads the second one from lag 1 on.
        forward, backward = (mode_kernel(rate[way], c[way : way + 1], x.shape[1] + 1, step)[0] for way in (0, 1))
        # `convolve_both` has one term at lag 0, from the first kernel; that of the second kernel is added.
        return convolve_both(x, forward[:, :-1], backward[:, 1:]) + backward[:, 0] * x

    def attend(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
        """Compute softmax(q k^T / sqrt(z) + bias) v within each chunk, with dropout on the weights.

        q, k [B, L, z], v [B, L, D] -> [B, L, D].
        """
        length, size = q.shape[1], q.shape[1] if self.chunk is None else self.chunk
        real = torch.ones_like(q[..., 0], dtype=torch.bool) if key_mask is None else key_mask
        chunks = in_chunks(size, q, k, v, real.unsqueeze(-1))
        q, k, v, real = (part.unsqueeze(1) for part in chunks)  # [B, 1, chunks, size, .]
        position = torch.arange(size, device=q.device)
        distance = position.unsqueeze(-1) - position  # i - j [size, size]
        scores = q @ k.mT * self.width**-0.5 + self.bias[distance + self.reach - 1]  # [B, 1, chunks, size, size]
        seen = real.mT & (distance >= 0) if self.causal else real.mT
        # Mask with the lowest number, because -inf would give NaN for queries without a real key.
        weights = scores.masked_fill(~seen, torch.finfo(scores.dtype).min).softmax(dim=-1)
        return (self.dropout(weights) @ v).flatten(1, 3)[:, :length]
