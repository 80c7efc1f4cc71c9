"""mLSTM: a memory matrix with an exponential input gate and a forget gate per head (eq. 19-27).

The input gate is g = exp(x w_g + b) and the forget gate f = sigmoid(x w_f + c). n is the gated sum of the keys in the
memory C: n_i = f_i n_{i-1} + g_i k_i / sqrt(Dh).
"""

import math
from collections.abc import Sequence

import torch
from pydantic import PositiveFloat
from torch import Tensor, nn
from torch.nn.functional import logsigmoid, pad

from lra.mixers import MixerConfig, MixerInfo, merge_heads, split_heads
from lra.mixers._recurrent import NORM, Recurrent
from lra.ops.device import cumulative_sum
from lra.ops.scan import SMALL_CHUNK, decayed_product


class Mlstm(Recurrent):
    """Matrix LSTM.

    Args:
        forget_min: initial bias of the forget gate in the first head; the biases of the heads are evenly spaced.
        forget_max: initial bias of the forget gate in the last head.
    """

    info = MixerInfo(
        paper="Beck et al. 2024, xLSTM",
        formula="σ(X Wo) ⊙ norm(h), hᵢ = Cᵢᵀ qᵢ / max(|nᵢᵀ qᵢ|, 1), Cᵢ = fᵢ Cᵢ₋₁ + gᵢ kᵢ vᵢᵀ / √width",
        complexity="L D (C + Dh), chunks of C",
        linear_memory=True,
        reference="the recurrence in float64; transformers' mLSTM in chunks",
        deviations=(
            "no up-projection, convolution or skip connection of the xLSTM block",
            "the norm divides by the root mean square and does not subtract the mean",
            "the gates read the input, as in the paper; in the authors' code they read q, k and v",
            NORM,
            "weights start as PyTorch initialises them; the authors' code sets those of the gates to 0 and draws "
            "those of q, k, v and o from N(0, 2 / (5 D)) and those of the output from N(0, 4 / (layers² D))",
        ),
    )

    def __init__(self, config: MixerConfig, *, forget_min: float, forget_max: float, norm_eps: PositiveFloat) -> None:
        super().__init__(config, norm_eps=norm_eps)
        self.gates = nn.Linear(config.dim, 2 * config.heads, bias=False)
        self.input_bias = nn.Parameter(0.1 * torch.randn(config.heads))
        self.forget_bias = nn.Parameter(torch.linspace(forget_min, forget_max, config.heads))

    def inputs(self, x: Tensor) -> tuple[Tensor, ...]:
        return self.query(x), self.key(x), self.value(x), self.gates(x)

    def recurrence(self, inputs: Sequence[Tensor], real: Tensor) -> Tensor:
        q, k, v = (split_heads(part, self.config.heads) for part in inputs[:3])
        log_in, forget = inputs[3].chunk(2, dim=-1)  # [B, L, H] each
        # At padding the input gate is 0 and the forget gate 1, so that the state does not change.
        log_in = (log_in + self.input_bias).masked_fill(real == 0, -torch.inf).transpose(1, 2)  # [B, H, L]
        log_keep = (logsigmoid(forget + self.forget_bias) * real).transpose(1, 2)  # [B, H, L]
        return gated_memory(q, k, v, *self.numbers(log_in, log_keep))

    def numbers(self, log_in: Tensor, log_keep: Tensor) -> list[Tensor]:
        """Return the arguments log_in, log_decay and log_floor of `gated_memory`, each [B, H, L].

        The states of its recurrence are divided by exp(m), where m is the result of `largest`.
        """
        top = largest(log_in.detach(), log_keep.detach())  # without gradient, because the divisor cancels in h
        log_decay = log_keep + (pad(top[..., :-1], (1, 0)) - top)  # the divisor changes from exp(m_{i-1}) to exp(m_i)
        # The input gate takes over the factor 1 / sqrt(Dh) of the keys.
        return [log_in - top - math.log(self.config.head_dim) / 2, log_decay, -top]

    def gated(self, y: Tensor, gate: Tensor) -> Tensor:
        return gate.sigmoid() * merge_heads(self.normed(y))


def gated_memory(q: Tensor, k: Tensor, v: Tensor, log_in: Tensor, log_decay: Tensor, log_floor: Tensor) -> Tensor:
    """Compute y_i = C_i^T q_i / max(|n_i . q_i|, floor_i).

    C_i = exp(log_decay_i) C_{i-1} + exp(log_in_i) k_i v_i^T, n_i = exp(log_decay_i) n_{i-1} + exp(log_in_i) k_i and
    floor_i = exp(log_floor_i).

    q, k [..., L, M], v [..., L, N]; log_in, log_decay and log_floor [..., L], none of these three positive
    -> y [..., L, N]. log_floor gets no gradient.
    """
    v = pad(v, (0, 1), value=1.0)  # a column of ones: its state is n
    y = decayed_product(q, k * log_in.exp().unsqueeze(-1), v, log_decay.unsqueeze(-1), SMALL_CHUNK)  # [..., L, N + 1]
    total, mass = y.split([v.shape[-1] - 1, 1], dim=-1)
    # Multiply by one reciprocal per position, because the gradient of a quotient would read all channels three times.
    return total * torch.maximum(mass.abs(), log_floor.detach().exp().unsqueeze(-1)).reciprocal()


def largest(log_in: Tensor, log_keep: Tensor) -> Tensor:
    """Return the logarithm m [..., L] of each state's divisor: m_i = max(m_{i-1} + log_keep_i, log_in_i, 0), m_0 = 0.

    The divisor cancels in h and keeps every exponential at most 1. log_in and log_keep are [..., L]. Sums over
    positions are in float64, because large sums cancel in the result.
    """
    kept = cumulative_sum(log_keep.double(), -1)
    top = kept + (log_in.double() - kept).cummax(dim=-1).values
    return top.clamp(min=0).to(log_in.dtype)
