"""Gated linear attention (GLA, eq. 3): a recurrent state with a separate decay for each channel of the keys.

There is no dropout on attention weights.
"""

from collections.abc import Sequence

from pydantic import PositiveFloat, PositiveInt
from torch import Tensor, nn
from torch.nn.functional import logsigmoid

from lra.mixers import MixerConfig, MixerInfo, split_heads
from lra.mixers._backend import Backend, Scan
from lra.mixers._recurrent import NORM, Recurrent
from lra.ops.device import at_least_float32
from lra.ops.scan import decayed_product


class GatedLinear(Recurrent):
    """Gated linear attention.

    Args:
        rank: rank of W_1 W_2, the projection to the decays.
        tau: a decay is sigmoid(.)^(1 / tau), so a larger tau gives decays nearer to 1.
    """

    info = MixerInfo(
        paper="Yang et al. 2024, Gated Linear Attention Transformers with Hardware-Efficient Training",
        formula="swish(X Wg) ⊙ norm(y), yᵢ = Sᵢᵀ qᵢ / √width, Sᵢ = diag(aᵢ) Sᵢ₋₁ + kᵢ vᵢᵀ, a = σ(X W₁ W₂ + b)^(1/τ)",
        complexity="L D (C + Dh), chunks of C",
        linear_memory=True,
        reference="the recurrence in float64; flash-linear-attention's naive form",
        deviations=(
            "values are as wide as queries and keys, not twice as wide",
            "weights start as PyTorch initialises them; the authors' code draws those of q, k and the decay from "
            "Xavier's uniform distribution with a gain of 2^-2.5, and the others from N(0, 0.02²)",
            "the norm divides by the root mean square and, unlike the paper's, does not subtract the mean",
            NORM,
        ),
    )
    one_graph = False

    def __init__(
        self,
        config: MixerConfig,
        *,
        rank: PositiveInt,
        tau: PositiveFloat,
        norm_eps: PositiveFloat,
        backend: Backend | None,
    ) -> None:
        super().__init__(config, norm_eps=norm_eps)
        self.tau = tau
        self.scan = Scan("gla", backend)
        self.decay = nn.Sequential(nn.Linear(config.dim, rank, bias=False), nn.Linear(rank, config.qkv_dim))

    def inputs(self, x: Tensor) -> tuple[Tensor, ...]:
        # The log decays [B, L, H Dh] are in fp32, because sums over a chunk would add up the rounding errors of bf16.
        decay = logsigmoid(at_least_float32(self.decay(x))) / self.tau
        query = at_least_float32(self.query(x)) * self.config.head_dim**-0.5
        return query, self.key(x), self.value(x), decay

    def recurrence(self, inputs: Sequence[Tensor], real: Tensor) -> Tensor:
        # `real` is not needed: at padding the inputs are 0, so the key is 0 and a log decay of 0 keeps the state.
        return self.scan(decayed_product, *(split_heads(part, self.config.heads) for part in inputs))
