"""Compute softmax attention with a scale, a mask and dropout on the attention weights."""

from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from lra.mixers.base import Mixer, MixerConfig, MixerInfo
from lra.ops.dropout import Dropout

Scale = Literal["head_dim", "qkv_dim"]
ScaleOrNone = Literal[Scale, "none"]
ROOTS = {"head_dim": "√Dh", "qkv_dim": "√(H Dh)"}
LIKE_VANILLA = "scores are divided by √(H Dh), as SimpleTRON's authors do for the vanilla Transformer alone"


def scale_of(config: MixerConfig, scale: ScaleOrNone) -> float:
    """Return the scale factor of q . k: 1 / sqrt(Dh), 1 / sqrt(H Dh), or 1 for `none`."""
    if scale == "none":
        return 1.0
    return (config.qkv_dim if scale == "qkv_dim" else config.head_dim) ** -0.5


def info_of(mixer: Mixer, scale: ScaleOrNone, *deviations: str, **values: object) -> MixerInfo:
    """Return the mixer's info with its scale and `deviations` added.

    `values` replace the names in braces in the formula.
    """
    formula = mixer.info.formula.replace(" / {root}", "") if scale == "none" else mixer.info.formula
    return replace(
        mixer.info,
        formula=formula.format(root=ROOTS.get(scale), **values),
        scale=scale_of(mixer.config, scale),
        deviations=(*mixer.info.deviations, *deviations, *[LIKE_VANILLA] * (scale == "qkv_dim")),
    )


def allowed(q: Tensor, k: Tensor, key_mask: Tensor | None, causal: bool) -> Tensor | None:
    """Return the mask for `weigh`, broadcastable to [B, H, n, L], or None if all queries may attend to all keys.

    q [B, H, n, Dh] has the first n of the L positions of k.
    """
    mask = None if key_mask is None else key_mask[:, None, None, :]  # [B, 1, 1, L]
    if causal:
        earlier = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device).tril()  # [n, L]
        mask = earlier if mask is None else mask & earlier
    return mask


def weigh(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    scale: float,
    dropout: Dropout,
    columns: Tensor | None = None,
) -> Tensor:
    """Compute softmax(scale q k^T) v with dropout on the weights: [B, H, ..., n, d_v].

    The output of a query that may attend to no key is finite.

    Args:
        q: [B, H, ..., n, d].
        k: [B, H, ..., m, d].
        v: [B, H, ..., m, d_v], with d_v = d if there are more than four axes.
        mask: broadcastable to [B, H, ..., n, m], True where a query may attend to a key; None: all may.
        columns: positions of the keys [..., m], on which the dropout noise depends; None: 0 to m - 1.
    """
    if not dropout.drops:
        if q.dim() > 4:  # the fused kernels take only [B, H, n, d]
            if mask is not None:
                mask = mask.expand(-1, *q.shape[1:-2], -1, -1).flatten(1, -3)  # [B or 1, H ..., n or 1, m]
            flat_q, flat_k, flat_v = (x.flatten(1, -3) for x in (q, k, v))  # [B, H ..., n or m, d]
            return weigh(flat_q, flat_k, flat_v, mask, scale, dropout).view_as(q)
        return scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale)
    # Fused kernels draw dropout for the whole batch. Here noise depends on the document, so all weights are computed.
    scores = (q * scale) @ k.transpose(-2, -1)  # [B, H, ..., n, m]
    if mask is not None:  # not -inf, so that a query without keys gets equal weights instead of NaN
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
    return dropout(scores.softmax(dim=-1), columns=columns) @ v
