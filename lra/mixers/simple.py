"""SimpleAttention: attention without softmax, with a state K^T V of O(D Dh) numbers.

Dropout acts on the state, as in the authors' code, or on the output. The paper does not define the causal form; here it
sums over positions j <= i with the same scale.

There are two forms, equal up to rounding. The textbook form projects X to q, k, v. The Gram form computes the state of
a head as K^T V = W_k (X^T X) W_v^T and the output as Q (K^T V) = X (W_q^T K^T V). So a layer has only two products of
size L x D x D, for any number of heads. With dropout on the state, the output projection is folded into the matrix
W_q^T K^T V. The mean of X is subtracted before X^T X is computed, so that a vector shared by all positions costs no
precision. Under autocast the factors of the two large products are in bf16; on a CPU, so are the factors of the two
D x D x D products per document. The state K^T V is in fp32 or higher. The products are defined in `lra.ops.gram`.

Source:
    Yorsh et al. 2022, SimpleTRON, section 3.
"""

from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor, nn

from lra.core.errors import UserError
from lra.mixers import Attention, MixerConfig, MixerInfo, merge_heads, split_heads, without_padding
from lra.ops.device import autocast_dtype, full_precision
from lra.ops.gram import Moments, product
from lra.ops.packing import Packed
from lra.ops.scan import causal_product

MIN_RATIO = 16  # minimum L / D for the Gram form on a GPU; for shorter inputs the textbook form moves fewer bytes


class Simple(Attention):
    """Attention without softmax.

    The Gram form uses the weights of the projections without calling these modules, so their hooks may not run.

    Args:
        scale: factor of K^T V: 1/sqrt(max_positions) (`length`), 1/sqrt(n) for n real positions (`valid`),
            1/sqrt(n Dh) (`valid_head`), or 1 (`none`).
        dropout_on: where dropout acts: on the state K^T V (`state`), or on the output (`output`).
        form: `textbook`, `gram`, or `auto`. `auto` is the form with fewer operations, but `textbook` if causal, and on
            a GPU if L / D is below `MIN_RATIO`.
    """

    info = MixerInfo(
        paper="Yorsh et al. 2022, SimpleTRON",
        formula="Q (Kᵀ V){scale}",
        complexity="L D Dh",
        linear_memory=True,
        reference="the quadratic order in float64",
    )
    can_be_causal = True
    commutes = True
    few_outputs = True
    packs = True

    def __init__(
        self,
        config: MixerConfig,
        *,
        scale: Literal["length", "valid", "valid_head", "none"],
        dropout_on: Literal["state", "output"],
        form: Literal["auto", "textbook", "gram"],
    ) -> None:
        super().__init__(config)
        self.scale = scale
        self.form = form
        if config.causal and config.dropout > 0 and dropout_on == "state":
            raise UserError(
                "attention.dropout_on=state: causal SimpleAttention has no single state, but one for every position; "
                "use attention.dropout_on=output or model.dropout=0"
            )
        if config.causal and form == "gram":
            raise UserError("attention.form=gram: causal SimpleAttention has no Gram form; use attention.form=auto")
        self.drop_state = dropout_on == "state"
        texts = {
            "length": " / √L, L = {} positions",
            "valid": " / √n, n real positions",
            "valid_head": " / √(n Dh), n real positions",
        }
        formula = self.info.formula.format(scale=texts.get(scale, "").format(config.max_positions))
        number = {"length": config.max_positions**-0.5, "none": 1.0}.get(scale)
        self.info = replace(self.info, formula=formula, scale=number)

    def forward(self, x: Tensor, key_mask: Tensor | None = None, num_outputs: int | None = None) -> Tensor:
        as_gram = self.form == "gram" or (self.form == "auto" and self._gram_is_cheaper(x, num_outputs))
        if self.causal or not as_gram:
            return super().forward(x, key_mask, num_outputs)
        x = x.to(autocast_dtype(x))
        with full_precision(x.device):
            y = self._gram_form(x, key_mask, num_outputs)
        return y if self.drop_state else self.out(self.dropout(y))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
        if key_mask is not None:
            # Mask after the projection, whose bias makes padded keys nonzero. A key of zero removes its value, too.
            k = k * key_mask[:, None, :, None]
        factor = self._factor(k.shape[-2], key_mask, k.dtype)
        if self.causal:
            return self._drop_output(causal_product(q, k, v) * factor)
        state = k.transpose(-2, -1) @ v * factor  # [B, H, Dh, Dh]
        if self.drop_state:
            return q @ self._dropped(state)
        return self._drop_output(q @ state)

    def attend_packed(self, q: Tensor, k: Tensor, v: Tensor, packed: Packed) -> Tensor:
        few = len(q) == len(packed.mask)  # True: q has only the first position of each document
        q, k, v = map(packed.by_chunk, (q, k, v))
        partial = without_padding(k, packed.chunk_mask).mT @ v  # [C, H, Dh, Dh]
        with full_precision(q.device):
            state = packed.sum_chunks(partial)
            state = state * self._factor(packed.mask.shape[1], packed.mask, state.dtype)
            if self.drop_state:
                state = self._dropped(state)
            state = state.to(q.dtype) if few else packed.of_chunks(state, q.dtype)
        y = packed.by_row(q @ state)  # [R, H, Dh], or [B, H, Dh] if `few`
        return y if self.drop_state else self.dropout(y.flatten(1), None if few else packed).view_as(y)

    def _drop_output(self, y: Tensor) -> Tensor:
        """Apply dropout to y [B, H, n, Dh] as to merged heads [B, n, H Dh]: the noise is by position and channel."""
        return split_heads(self.dropout(merge_heads(y)), self.config.heads)

    def score_scale(self, length: int, key_mask: Tensor | None) -> Tensor | float:
        return self._factor(length, key_mask, self.query.weight.dtype)

    def _gram_form(self, x: Tensor, key_mask: Tensor | None, num_outputs: int | None) -> Tensor:
        """Compute the outputs of x [B, L, D] by the Gram form -> [B, L or num_outputs, D].

        With dropout on the outputs, return those before dropout and output projection: [B, L or num_outputs, H Dh].
        """
        state = self._state(x, key_mask)  # [B, H, Dh, Dh]
        if self.drop_state:
            state = self._dropped(state)
        x = x[:, :num_outputs]
        if not self._folding_is_cheaper(x.shape[1]):  # for few outputs, projecting queries is cheaper than folding
            query = split_heads(self.query(x.to(self.query.weight)), self.config.heads)  # [B, H, L or num_outputs, Dh]
            y = merge_heads(query @ state)
            return (self.out(y) if self.drop_state else y).to(x.dtype)
        # Fold the query projection into the state: one linear map D -> H Dh for each document.
        rows = state.permute(1, 3, 0, 2).flatten(1, 2)  # [B, H, Dh, Dh] -> [H, Dh B, Dh]
        weight = product(rows, self._heads(self.query.weight), x.dtype).view(self.config.qkv_dim, -1)  # [H Dh, B D]
        bias = self.query.weight.new_zeros(len(state), 1, self.config.qkv_dim)  # [B, 1, H Dh]
        if self.config.bias:
            bias = (rows * self._heads(self.query.bias).unsqueeze(1)).sum(dim=2)  # [H, Dh B]
            bias = bias.view(self.config.qkv_dim, 1, -1).permute(2, 1, 0)  # [B, 1, H Dh]
        # Dropout on the outputs comes before the output projection, which then cannot be folded in.
        if self.config.out_proj and self.drop_state:
            weight, bias = product(self.out.weight, weight, x.dtype), self.out(bias)  # type: ignore[arg-type]
        weight = weight.unflatten(1, (len(x), -1)).permute(1, 2, 0)  # [B, D, outputs]
        return torch.baddbmm(bias.to(x.dtype), x, weight.to(x.dtype))

    def _dropped(self, state: Tensor) -> Tensor:
        """Apply dropout to the state [B, H, Dh, Dh] of all heads at once."""
        return self.dropout(state.flatten(1)).view_as(state)

    def _state(self, x: Tensor, key_mask: Tensor | None) -> Tensor:
        """Return the state [B, H, Dh, Dh], which is K^T V times the scale.

        `Moments` leaves out padded positions. One product per head serves all documents, so that no weight is copied.
        With x_j = m + d_j, where m is the mean of the n real positions, K^T V is W_k (sum_j d_j d_j^T) W_v^T + n (W_k m
        + b_k) (W_v m + b_v)^T.
        """
        mean, spread = Moments.apply(x, key_mask)  # [B, D], [B, D, D]
        products = product(self.key.weight, spread.flatten(0, 1).T, x.dtype)  # [H Dh, B D]
        heads, width = self.config.heads, self.config.head_dim
        value = self._heads(self.value.weight).transpose(1, 2)  # [H, D, Dh]
        state = product(products.view(heads, width * len(x), -1), value, x.dtype)  # [H, Dh B, Dh]
        count = x.shape[1] if key_mask is None else key_mask.sum(dim=1)
        keys = self._heads(project_mean(self.key, mean))  # [H, Dh, B]
        values = self._heads(project_mean(self.value, mean) * count).transpose(1, 2)  # [H, B, Dh]
        # [H, Dh, B, Dh]
        state = torch.addcmul(state.view(heads, width, len(x), width), keys.unsqueeze(3), values.unsqueeze(1))
        return state.permute(2, 0, 1, 3) * self._factor(x.shape[1], key_mask, state.dtype)

    def _heads(self, parameter: Tensor) -> Tensor:
        """Split the rows into heads: [H Dh, ...] -> [H, Dh, ...]."""
        return parameter.unflatten(0, (self.config.heads, -1))

    def _gram_is_cheaper(self, x: Tensor, num_outputs: int | None) -> bool:
        """Return True if the Gram form needs fewer operations and, on a GPU, the length is at least `MIN_RATIO * D`."""
        length = x.shape[1]
        if x.device.type == "cuda" and length < MIN_RATIO * self.config.dim:
            return False
        dim, inner, head = self.config.dim, self.config.qkv_dim, self.config.head_dim
        read = length if num_outputs is None else num_outputs
        out = self.config.out_proj * dim * inner
        # Number of multiplications per document, for the state and for the outputs, in the textbook form; then in the
        # Gram form.
        state, reading = length * (2 * dim * inner + inner * head), read * (dim * inner + inner * head + out)
        gram_state, gram_reading = length * dim * dim + dim * inner * (dim + head), reading
        if self._folding_is_cheaper(read):
            gram_reading = dim * inner * head + out * dim + read * dim * (dim if self.config.out_proj else inner)
        return gram_state + gram_reading < state + reading

    def _folding_is_cheaper(self, read: int) -> bool:
        """Return True if folding the query projection into the state saves operations for `read` positions.

        Folding takes operations once per document; the folded map then replaces two products per position by one.
        """
        return read > self.config.dim

    def _factor(self, length: int, key_mask: Tensor | None, dtype: torch.dtype) -> Tensor | float:
        """Return the factor of the state: a number, or a tensor [B, 1, 1, 1] if it depends on the key mask.

        The tensor has `dtype`, or fp32 if `dtype` is half precision, because bf16 cannot represent 257 positions.
        """
        if self.scale == "none":
            return 1.0
        if self.scale == "length":
            return self.config.max_positions**-0.5
        width = self.config.head_dim if self.scale == "valid_head" else 1
        if key_mask is None:
            return (length * width) ** -0.5
        valid = key_mask.sum(dim=1).clamp(min=1)
        return (valid * width).to(torch.promote_types(dtype, torch.float32)).rsqrt()[:, None, None, None]


def project_mean(projection: nn.Linear, mean: Tensor) -> Tensor:
    """Project the mean [B, D] in float64 -> [H Dh, B] in the dtype of the weights.

    The product is in float64, because its error affects all positions.
    """
    y = projection.weight.double() @ mean.T
    if projection.bias is not None:
        y = y + projection.bias.double().unsqueeze(1)
    return y.to(projection.weight.dtype)
