"""One block of the encoder: the only place that knows the block equations.

Legend: B examples, N positions (the CLS counts, if there is one), D width.
"""

from torch import Tensor, nn

from lra.attention import Mixer
from lra.core.dropout import Dropout
from lra.core.fused import at_once, join
from lra.core.hooks import hooked
from lra.core.precision import autocast_dtype
from lra.model.architecture import Architecture
from lra.model.feed_forward import FeedForward


class Block(nn.Module):
    """One encoder block around a mixer A and a feed-forward net F.

    Pre-norm:  h = x + A(n1(x));  y = h + F(n2(h)) [+ x].  Post-norm:  h = n1(x + A(x));  y = n2(h + F(h) [+ x]).
    Without norms, n1 and n2 are nothing. The bracket is the extra skip of SimpleTRON's Simple-Res and Simple-ResL
    (section 5.2): from the input of the block to its output.
    """

    def __init__(self, mixer: Mixer, architecture: Architecture) -> None:
        super().__init__()
        dim, eps = architecture.dim, architecture.norm_eps
        no_norm = architecture.norm == "none"
        self.post_norm = architecture.norm == "post"
        self.extra_skip = architecture.extra_skip
        self.mixer_norm = nn.Identity() if no_norm else nn.LayerNorm(dim, eps)
        self.mixer = mixer
        self.mixer_dropout = Dropout(architecture.dropout if architecture.mixer_dropout else 0.0)
        self.feed_forward_norm = nn.Identity() if no_norm else nn.LayerNorm(dim, eps)
        self.feed_forward = FeedForward(
            dim,
            architecture.mlp_dim,
            architecture.dropout,
            activation=architecture.feed_forward_activation,
            output_gelu=architecture.feed_forward_output_gelu,
            bias=architecture.bias,
        )

    def forward(self, x: Tensor, key_mask: Tensor | None, reads: int | None = None) -> Tensor:
        """x [B, N, D] -> [B, N, D], or the outputs at the first `reads` positions alone."""
        mixed = self.mixer.mix(self.mixer_input(x), key_mask, reads)
        x, last = x[:, :reads], self.feed_forward[-1]
        joined = at_once(x.device, last) and not hooked(last)  # the last dropout is done where its result is added
        if self.post_norm:
            _, h = join(x, mixed, self.mixer_dropout, self.mixer_norm)
            inner, norm = h, self.feed_forward_norm
        else:
            h, inner = join(x, mixed, self.mixer_dropout, self.feed_forward_norm, dtype=autocast_dtype(x))
            norm = nn.Identity()
        branch = self.feed_forward(inner, undropped=joined)
        return join(h, branch, last if joined else None, norm, extra=x if self.extra_skip else None)[1]

    def mixer_input(self, x: Tensor) -> Tensor:
        """What the mixer reads where x enters the block."""
        return x if self.post_norm else self.mixer_norm(x)
