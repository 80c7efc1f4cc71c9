"""Define linear attention: a feature map phi, fixed or random, replaces exp(q . k) by phi(q) . phi(k).

Katharopoulos et al. 2020, eq. 5-6: y_i = phi(q_i) S / (phi(q_i) . z), S = sum_j phi(k_j)^T v_j, z = sum_j phi(k_j).
Legend: M features, N width of the values.
"""

from abc import abstractmethod

import torch
from pydantic import NonNegativeFloat
from torch import Tensor
from torch.nn.functional import pad

from lra.mixers.base import Attention, MixerConfig, without_padding
from lra.ops.device import at_least_float32, full_precision
from lra.ops.packing import Packed
from lra.ops.scan import causal_product

EVAL_DRAW = "evaluation uses the last draw of training"


class KernelAttention(Attention, abstract=True):
    """Base class of attentions with a feature map; by default `eps` is added to the denominator.

    Features and sums are computed in fp32 or higher. Features of padded keys are set to zero.
    """

    can_be_causal = True
    few_outputs = True

    def __init__(self, config: MixerConfig, *, eps: NonNegativeFloat) -> None:
        super().__init__(config)
        self.eps = eps

    @abstractmethod
    def features(
        self, q: Tensor, k: Tensor, key_mask: Tensor | None, packed: Packed | None = None
    ) -> tuple[Tensor, ...]:
        """Return phi(q) [B, H, n, M] and phi(k) [B, H, L, M] for q and k of `attend`.

        phi may use a maximum over the real keys.

        A causal form may also return a log decay [B, H, L] for `causal_product`. Classes with `packs` also get chunks
        q, k [C, H, CHUNK, Dh] of a packed batch with the layout `packed`; q may then have only the first position of
        each document, [B, H, 1, Dh].
        """

    def attend(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
        with full_precision(q.device):
            q, k, v = map(at_least_float32, (q, k, v))
            phi_q, phi_k, *log_decay = self.features(q, k, key_mask)
            phi_k = without_padding(phi_k, key_mask)  # a padded key adds nothing to either sum
            v = pad(v, (0, 1), value=1.0)  # a column of ones: its weighted sum is the denominator
            weighted = causal_product if self.causal else product
            y = weighted(phi_q, phi_k, v, *log_decay)  # [B, H, n, Dh + 1]
            total, mass = y.split([v.shape[-1] - 1, 1], dim=-1)
            return total / self.denominator(mass)

    def attend_packed(self, q: Tensor, k: Tensor, v: Tensor, packed: Packed) -> Tensor:
        with full_precision(q.device):
            q, k, v = (packed.by_chunk(at_least_float32(x)) for x in (q, k, v))
            phi_q, phi_k = self.features(q, k, packed.chunk_mask, packed)
            phi_k = without_padding(phi_k, packed.chunk_mask)
            v = pad(v, (0, 1), value=1.0)
            state = packed.sum_chunks(v.mT @ phi_k)  # [B, H, Dh + 1, M], one state per document
            # Repeat the state for each chunk, [C, H, Dh + 1, M], unless q has only first positions, [B, H, 1, Dh].
            state = state if q.shape[2] == 1 else packed.of_chunks(state, state.dtype)
            total, mass = (phi_q @ state.mT).split([v.shape[-1] - 1, 1], dim=-1)
            return packed.by_row(total / self.denominator(mass))

    def denominator(self, mass: Tensor) -> Tensor:
        """Return the denominator [..., n, 1] for `mass` = phi(q_i) . z [..., n, 1]; `eps` prevents 0 / 0."""
        return mass + self.eps


def exponentials(log_q: Tensor, log_k: Tensor, causal: bool, packed: Packed | None = None) -> tuple[Tensor, ...]:
    """Return the result of `features` for phi(q) = exp(log_q) and phi(k) = exp(log_k).

    log_k is -inf at padded keys. Exponents are shifted by maxima, without gradient, because the shifts cancel between
    the weighted sum and its denominator. If not causal, the maximum of every feature over all keys is subtracted from
    log_k and added to log_q. If causal, the maximum over all features and the keys so far is subtracted from log_k;
    where this maximum grows, the returned log decay shrinks the sums so far. Last, the maximum over the features is
    subtracted from log_q. If not causal, the denominator is then at least 1, because the feature with that maximum
    adds 1 or more to it.
    """
    if causal:
        top = log_k.detach().amax(dim=-1, keepdim=True).cummax(dim=-2).values  # [B, H, L, 1]
        before = pad(top, (0, 0, 1, -1), value=-torch.inf)  # the maximum up to the previous position
        log_decay = [(before - top).masked_fill(before == -torch.inf, 0).squeeze(-1)]
    elif packed is not None:
        top = packed.max_over_documents(log_k)  # [B, H, 1, M]
        log_decay = []
    else:
        top = log_k.detach().amax(dim=-2, keepdim=True)  # [B, H, 1, M]
        log_decay = []
    top = top.masked_fill(top == -torch.inf, 0)  # if there is no real key (so far), do not shift
    by_chunk = top if packed is None else top[packed.owner]  # [C, H, 1, M] if packed
    if not causal:
        log_q = log_q + (top if log_q.shape[2] == 1 else by_chunk)
    return (log_q - log_q.detach().amax(dim=-1, keepdim=True)).exp(), (log_k - by_chunk).exp(), *log_decay


def product(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Compute sum_j (q_i . k_j) v_j in time linear in L: q [..., n, M], k [..., L, M], v [..., L, N] -> [..., n, N]."""
    state = v.transpose(-2, -1) @ k  # [..., N, M]; this order gives gradients the memory layout of q and k
    return q @ state.transpose(-2, -1)
