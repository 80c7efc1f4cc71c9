"""Nyströmformer: softmax attention approximated through m landmarks (eq. 13-15).

The landmarks Q~ and K~ are means of queries and keys over m segments of an input's real tokens. The pseudo-inverse of
softmax(Q~ K~^T scale) is computed by an iteration. A convolution of V over positions, with one kernel per head, is
added to the output. There is no dropout, as in the authors' code. The memory is O(L (m + D)).
"""

import torch
from pydantic import PositiveInt
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from lra.core.errors import UserError
from lra.mixers import Attention, MixerConfig, MixerInfo, merge_heads, split_heads, without_padding
from lra.mixers._softmax import Scale, info_of, scale_of
from lra.ops.device import at_least_float32, full_precision


class Nystromformer(Attention):
    """Attention through landmarks.

    In an input of at most m tokens each token is a landmark. Without the convolution the result is then softmax
    attention, up to the error of the iteration.

    Args:
        landmarks: m, the maximum number of landmarks.
        iterations: number of iterations for the pseudo-inverse.
        conv_kernel: number of taps of the convolution, odd, or None for no convolution.
    """

    info = MixerInfo(
        paper="Xiong et al. 2021, Nyströmformer",
        formula="softmax(Q K̃ᵀ / {root}) softmax(Q̃ K̃ᵀ / {root})⁺ softmax(Q̃ Kᵀ / {root}) V{conv}, {landmarks} landmarks",
        complexity="L m D + m³ H",
        linear_memory=True,
        reference="nystrom-attention 0.0.14; transformers' NystromformerSelfAttention; softmax where m ≥ L",
        deviations=("the iteration's start is divided by norms of its matrix, not by their maxima over the batch",),
    )

    def __init__(
        self,
        config: MixerConfig,
        *,
        landmarks: PositiveInt,
        iterations: PositiveInt,
        conv_kernel: PositiveInt | None,
        scale: Scale,
    ) -> None:
        super().__init__(config)
        if conv_kernel is not None and conv_kernel % 2 == 0:
            raise UserError(f"attention.conv_kernel={conv_kernel}: expected an odd number or null")
        self.landmarks = landmarks
        self.iterations = iterations
        self.conv_kernel = conv_kernel
        self.full_pattern = landmarks >= config.max_positions
        self.scale = scale_of(config, scale)
        self.info = info_of(self, scale, landmarks=landmarks, conv="" if conv_kernel is None else " + conv(V)")
        if conv_kernel is not None:
            size, border = (conv_kernel, 1), (conv_kernel // 2, 0)
            self.conv = nn.Conv2d(config.heads, config.heads, size, padding=border, groups=config.heads, bias=False)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
        with full_precision(q.device):
            q, k, v = map(at_least_float32, (q, k, v))
            v = without_padding(v, key_mask)  # because the convolution does not mask
            # Of n real tokens, token r = 0, 1, ... is in segment floor(r m / n). If n < m, each token forms a segment.
            length = q.shape[2]
            count = min(self.landmarks, length)
            real = torch.ones(1, length, dtype=torch.bool, device=q.device) if key_mask is None else key_mask
            total = real.sum(dim=1, keepdim=True).clamp(min=1)  # n; 1 instead of 0, because it is a divisor
            segment = (real.cumsum(dim=1) - 1) * total.clamp(max=count) // total  # [B or 1, L]
            # [B or 1, m, L], True where a real token belongs to a segment.
            member = (segment[:, None, :] == torch.arange(count, device=q.device)[:, None]) & real[:, None, :]
            means = member.to(q.dtype) / member.sum(dim=-1, keepdim=True).clamp(min=1)  # [B or 1, m, L]
            # [B, H, m, Dh]; heads are merged, so that one product per document serves all of them.
            landmark_q, landmark_k = (split_heads(means @ merge_heads(x), self.config.heads) for x in (q, k))
            # An input with fewer than m tokens leaves landmarks unused; their rows and columns in the inverse are zero.
            used = (means != 0).any(dim=-1)  # [B or 1, m]
            columns = used[:, None, None, :]
            scores = (landmark_q * self.scale) @ landmark_k.transpose(-2, -1)  # [B, H, m, m]
            weights = scores.masked_fill(~columns, torch.finfo(scores.dtype).min).softmax(dim=-1)
            inverse = pseudo_inverse(weights * used[:, None, :, None], self.iterations)
            keys = None if key_mask is None else key_mask[:, None, None, :]
            gathered = scaled_dot_product_attention(landmark_q, k, v, attn_mask=keys, scale=self.scale)  # [B, H, m, Dh]
            y = scaled_dot_product_attention(q, landmark_k, inverse @ gathered, attn_mask=columns, scale=self.scale)
            return y if self.conv_kernel is None else y + self.conv(v)


def pseudo_inverse(matrix: Tensor, iterations: int) -> Tensor:
    """Return Moore-Penrose inverses of matrices [..., m, m] whose rows sum to 1 or are zero, by the paper's iteration.

    The initial value is divided by norms of the same matrix, so an output does not depend on other documents; the
    authors' code divides by the maxima of these norms over the batch.
    """
    # The paper divides by the largest column sum and the largest row sum. The latter is 1.
    largest_column_sum = matrix.sum(dim=-2).amax(dim=-1).clamp(min=1)  # below 1 only where all rows are zero
    inverse = matrix.transpose(-2, -1) / largest_column_sum[..., None, None]
    identity = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    for _ in range(iterations):
        product = matrix @ inverse
        inverse = inverse @ (13 * identity - product @ (15 * identity - product @ (7 * identity - product))) / 4
    return inverse
