"""RWKV-7: a recurrent state with a decay per channel, in which a write replaces the old value of its key (eq. 16-18).

The decay w, the rate a of replacement and the gate g are outputs of low-rank networks. The removed key k^ is k * xi,
normalised to length 1, and the written key is k * (1 + (a - 1) alpha). Every projection reads a mix of a token and the
previous token.
"""

import math
from collections.abc import Sequence
from typing import ClassVar

import torch
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor, nn
from torch.nn.functional import layer_norm, normalize, pad

from lra.mixers import MixerConfig, MixerInfo, merge_heads, split_heads
from lra.mixers._backend import Backend, Scan
from lra.mixers._recurrent import Recurrent
from lra.ops.scan import dplr_delta_rule

MIN_LOG_DECAY = -math.exp(-0.5)  # lower bound of the logarithm of w (section 3.2)


class Rwkv7(Recurrent):
    """Recurrent memory with the generalised delta rule.

    Args:
        decay_rank: rank of the network that computes w.
        rate_rank: rank of the network that computes a.
        gate_rank: rank of the network that computes g.
    """

    info = MixerInfo(
        paper="Peng et al. 2025, RWKV-7 Goose",
        formula="g ⊙ (norm(S r) + (r · (ρ ⊙ k)) v), Sᵢ = Sᵢ₋₁ (diag(wᵢ) − k̂ᵢᵀ (aᵢ ⊙ k̂ᵢ)) + vᵢᵀ kᵢ, tokens shifted",
        complexity="L D (C + Dh), chunks of C",
        linear_memory=True,
        reference="the recurrence in float64; flash-linear-attention's naive form",
        deviations=(
            "values are not mixed with those of the first layer",
            "the projections are computed in full precision under bf16",
            "initially the weights of the previous token are uniform, the biases of w are evenly spaced from −6 to 1, "
            "those of a are 0, ξ = 0.85, α = 1, ρ = 0, and projections start as PyTorch initialises them; in the "
            "authors' code "
            "those weights, biases, ξ and the norm's weights depend on channel and layer, α = 1.02, ρ = −0.04, the "
            "projections to r, k and v and the second one of each low-rank network are orthogonal, and the first one "
            "of each and the output projection are 0",
        ),
    )
    one_graph = False
    parameter_groups: ClassVar[dict[str, tuple[str, ...]]] = {
        "decay": ("decay_bias",),
        "undecayed": ("shares", "decay.0", "decay.2", "rate", "reveal", "rate_bias", "removal", "replacement", "bonus")
        + ("norm_weight", "norm_bias"),
    }

    def __init__(
        self,
        config: MixerConfig,
        *,
        decay_rank: PositiveInt,
        rate_rank: PositiveInt,
        gate_rank: PositiveInt,
        norm_eps: PositiveFloat,
        backend: Backend | None,
    ) -> None:
        super().__init__(config, norm_eps=norm_eps)
        dim, width = config.dim, config.qkv_dim
        self.scan = Scan("generalized_delta_rule", backend)
        self.gate = nn.Identity()  # g reads the previous token, so `recurrence` computes it for each direction
        self.shares = nn.Parameter(torch.rand(6, dim))  # weights of the previous token for r, w, k, v, a, g
        self.decay = nn.Sequential(low(dim, decay_rank), nn.Tanh(), low(decay_rank, width))
        self.rate = nn.Sequential(low(dim, rate_rank), low(rate_rank, width))
        self.reveal = nn.Sequential(low(dim, gate_rank), nn.Sigmoid(), low(gate_rank, width))
        self.decay_bias = nn.Parameter(torch.linspace(-6, 1, width))
        self.rate_bias = nn.Parameter(torch.zeros(width))
        self.removal = nn.Parameter(torch.full((width,), 0.85))  # xi
        self.replacement = nn.Parameter(torch.ones(width))  # alpha
        self.bonus = nn.Parameter(torch.zeros(width))  # rho
        self.norm_weight, self.norm_bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def inputs(self, x: Tensor) -> tuple[Tensor, ...]:
        return (x,)

    def recurrence(self, inputs: Sequence[Tensor], real: Tensor) -> Tensor:
        (x,) = inputs
        before = pad(x, (0, 0, 1, -1)) - x  # [B, L, D], the previous token minus this one
        for_r, for_w, for_k, for_v, for_a, for_g = (x + before * weight for weight in self.shares)
        log_w = MIN_LOG_DECAY * (self.decay_bias + self.decay(for_w)).sigmoid() * real  # [B, L, H Dh]
        a = (self.rate_bias + self.rate(for_a)).sigmoid()
        r, k, v = self.query(for_r), self.key(for_k), self.value(for_v)
        g, removed, k = self.reveal(for_g), k * self.removal, k * (1 + (a - 1) * self.replacement) * real
        parts = (r, k, v, a, g, removed, log_w)
        r, k, v, a, g, removed, log_w = (split_heads(part, self.config.heads) for part in parts)  # [B, H, L, Dh]
        removed = normalize(removed, dim=-1) * real.unsqueeze(1)  # zero at padding, which then removes nothing
        y = self.scan(dplr_delta_rule, r, -removed, a * removed, v, log_w, k)  # [B, H, L, Dh]
        y = merge_heads(layer_norm(y, y.shape[-1:], eps=self.norm_eps)) * self.norm_weight + self.norm_bias
        bonus = split_heads(self.bonus.view(1, 1, -1), self.config.heads)  # [1, H, 1, Dh]
        return g * (split_heads(y, self.config.heads) + (r * k * bonus).sum(dim=-1, keepdim=True) * v)

    def gated(self, y: Tensor, gate: Tensor) -> Tensor:
        """Return y with merged heads [B, L, H Dh]; `recurrence` has already applied the gate."""
        return merge_heads(y)


def low(inputs: int, outputs: int) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=False)
