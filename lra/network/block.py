"""Define the encoder block: a mixer and a feed-forward net with norms and residual connections.

Legend: B documents, N positions (including the CLS, if there is one), D width.
"""

import torch
from torch import Tensor, nn

from lra.mixers.base import Mixer, without_padding
from lra.network.architecture import Architecture
from lra.network.layers import FeedForward, make_norm, normed
from lra.ops.convolution import short_convolution
from lra.ops.dropout import Dropout
from lra.ops.packing import Packed


class Block(nn.Module):
    """One encoder block around a mixer A and a feed-forward net F.

    Pre-norm:  h = x + A(n1(x));  y = h + F(n2(h)) [+ x].  Post-norm:  h = n1(x + A(x));  y = n2(h + F(h) [+ x]).
    Without norms, n1 and n2 are the identity. Without a feed-forward net, y = h [+ x] if pre-norm, and y = n1(h [+ x])
    with h = x + A(x) if post-norm. The term in brackets is the extra skip of SimpleTRON's Simple-Res and Simple-ResL
    (section 5.2). With `short_conv`, a short convolution precedes A.
    """

    def __init__(self, mixer: Mixer, architecture: Architecture) -> None:
        super().__init__()
        width = architecture.mlp_dim if architecture.feed_forward_dim is None else architecture.feed_forward_dim
        there = architecture.norm != "none"
        self.post_norm = architecture.norm == "post"
        self.extra_skip = architecture.extra_skip
        self.mixer_norm = make_norm(architecture, there=there)
        self.mixer = mixer
        self.short_conv = None
        if architecture.short_conv is not None:
            self.short_conv = ShortConvolution(architecture.dim, architecture.short_conv, causal=mixer.causal)
        after_mixer = architecture.dropout if architecture.mixer_dropout else 0.0
        self.mixer_dropout = Dropout(after_mixer, architecture.dropout_over)
        self.feed_forward = None
        if width:
            self.feed_forward_norm = make_norm(architecture, there=there)
            self.feed_forward = FeedForward(architecture, width)

    def forward(
        self, x: Tensor, key_mask: Tensor | None, num_outputs: int | None = None, packed: Packed | None = None
    ) -> Tensor:
        """Return the block's output [B, N or num_outputs, D] for x [B, N, D].

        The arguments, and the shapes with a packed batch, are those of `Mixer.mix`.
        """
        # [B, N or num_outputs, D], or [R, D]
        mixed = self.mixer.mix(self.mixer_input(x, key_mask), key_mask, num_outputs, packed)
        if num_outputs is not None:  # the other positions are dropped, so the batch is no longer packed
            x, packed = x[:, :num_outputs] if packed is None else packed.firsts(x).unsqueeze(1), None
        stream = x + self.mixer_dropout(mixed, packed)
        if self.feed_forward is not None:
            if self.post_norm:
                stream = inner = normed(self.mixer_norm, stream, key_mask)
            else:
                inner = normed(self.feed_forward_norm, stream, key_mask)
            stream = stream + self.feed_forward(inner, packed)
        if self.extra_skip:
            stream = stream + x
        if not self.post_norm:
            return stream
        return normed(self.mixer_norm if self.feed_forward is None else self.feed_forward_norm, stream, key_mask)

    def mixer_input(self, x: Tensor, key_mask: Tensor | None) -> Tensor:
        """Return the mixer's input, shaped like x: x after the norm, if pre-norm, and the short convolution, if any."""
        x = x if self.post_norm else normed(self.mixer_norm, x, key_mask)
        return x if self.short_conv is None else self.short_conv(x, key_mask)


class ShortConvolution(nn.Module):
    """Depthwise convolution before a mixer, as in Mamba-2, Gated DeltaNet and Based.

    y_i = sum_l w_l x_{i - l} + b in every channel. Output i reads position i and `taps - 1` other positions. If
    `causal`, all of them come before i, otherwise `(taps - 1) // 2` of them come after i. Padded positions are read as
    zeros.
    """

    def __init__(self, dim: int, taps: int, *, causal: bool) -> None:
        super().__init__()
        self.later = 0 if causal else (taps - 1) // 2
        bound = taps**-0.5
        self.taps = nn.Parameter(torch.empty(dim, taps).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(dim).uniform_(-bound, bound))

    def forward(self, x: Tensor, key_mask: Tensor | None) -> Tensor:
        """Return the convolution [B, N, D] of x [B, N, D]; key_mask [B, N] is True at real positions."""
        x = without_padding(x, key_mask)
        return short_convolution(x, self.taps.to(x.dtype), self.later) + self.bias.to(x.dtype)
