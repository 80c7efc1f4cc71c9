"""Scaled dot-product attention (eq. 1), computed by FlashAttention for packed batches in half precision on CUDA."""

from dataclasses import replace

import torch
from torch import Tensor

from lra.mixers import Attention, MixerConfig, MixerInfo
from lra.mixers._softmax import Scale, allowed, info_of, scale_of, weigh
from lra.ops.packing import CHUNK, Packed

FORWARD, BACKWARD = torch.ops.aten._flash_attention_forward, torch.ops.aten._flash_attention_backward
MULTIPLE, MAX_WIDTH = 8, 256  # FlashAttention requires that Dh is a multiple of 8, at most 256
FLASH_DROPOUT = (
    "for packed batches in bf16 on CUDA the dropout probability p is rounded to a multiple of 1/256 "
    "(0.1 becomes 0.1016), but the remaining weights are scaled by 1/(1 - p) with the exact p"
)


class Softmax(Attention):
    """Softmax attention.

    The dropout noise of FlashAttention is a function of seed, step, layer and the documents of a micro-batch. So a
    resumed run draws the same noise, but a run with another `micro_batch` draws other noise.

    Args:
        scale: factor of q . k: 1/sqrt(Dh) (`head_dim`), or 1/sqrt(H Dh) (`qkv_dim`), as in SimpleTRON's released code.
    """

    info = MixerInfo(
        paper="Vaswani et al. 2017, Attention Is All You Need",
        formula="softmax(Q Kᵀ / {root}) V",
        complexity="L² D",
        linear_memory=False,
        reference="explicit loops; torch scaled_dot_product_attention",
    )
    can_be_causal = True
    commutes = True
    few_outputs = True
    packs = True
    packs_unpadded = True  # with dropout `attend` is slower, because it computes all L x L weights

    def __init__(self, config: MixerConfig, *, scale: Scale) -> None:
        super().__init__(config)
        self.scale = scale_of(config, scale)
        self.info = replace(info_of(self, scale), deviations=(FLASH_DROPOUT,))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> Tensor:
        return weigh(q, k, v, allowed(q, k, key_mask, self.causal), self.scale, self.dropout)

    def can_pack(self, dtype: torch.dtype, device: torch.device) -> bool:
        return super().can_pack(dtype, device) and has_flash(dtype, device, self.config.head_dim)

    def attend_packed(self, q: Tensor, k: Tensor, v: Tensor, packed: Packed) -> Tensor:
        longest = max(packed.mask.shape[1], CHUNK)
        few = len(q) == len(packed.mask)  # True: q has only the first position of each document
        q_starts, q_longest = (packed.first_pieces, 1) if few else (packed.pieces, longest)
        noise: tuple[float, Tensor | None] = (0.0, None)
        if self.dropout.drops:
            self.dropout.check_key(q, packed)
            noise = self.dropout.p, self.dropout.seed
        return flash_attention(q, k, v, q_starts, packed.pieces, q_longest, longest, self.scale, *noise)[0]

    def score_scale(self, length: int, key_mask: Tensor | None) -> float:
        return self.scale


def has_flash(dtype: torch.dtype, device: torch.device, head_dim: int) -> bool:
    """Return True if the FlashAttention kernels accept this dtype and head width on this device."""
    half = dtype in (torch.bfloat16, torch.float16)
    return half and device.type == "cuda" and head_dim % MULTIPLE == 0 and head_dim <= MAX_WIDTH


@torch.library.custom_op("lra::flash_attention", mutates_args=())
def flash_attention(
    q: Tensor, k: Tensor, v: Tensor, q_starts: Tensor, k_starts: Tensor, q_longest: int, k_longest: int, scale: float,
    dropout: float, seed: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Compute softmax(q k^T scale) v of each of S sequences, with dropout on the weights, by FlashAttention.

    Args:
        q: queries [R, H, Dh] of all sequences, one after another; k and v likewise, maybe with more rows.
        q_starts: first row of each sequence in q, then R: [S + 1] int32. A sequence may be empty. k_starts likewise.
        q_longest: number of rows in the longest sequence of q; k_longest likewise.
        dropout: probability of dropping a weight.
        seed: seed of the dropout noise, an integer [] on the host; None without dropout.

    Returns:
        Outputs [R, H, Dh] and, for the backward pass, the logarithms of softmax denominators [H, R] and two tensors
        with the state of the random generator.
    """
    generator = torch.cuda.default_generators[q.device.index] if q.is_cuda else torch.default_generator
    before = generator.get_state()  # the kernel draws from the global generator, which is restored below
    if seed is not None:
        generator.manual_seed(int(seed))
    lengths = q_starts, k_starts, q_longest, k_longest
    *outputs, _ = FORWARD(q, k, v, *lengths, dropout, False, False, scale=scale)
    generator.set_state(before)
    return tuple(outputs)


@flash_attention.register_fake
def _(q: Tensor, *_others: object) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    sums = q.new_empty(q.shape[1], q.shape[0], dtype=torch.float32)
    return torch.empty_like(q), sums, q.new_empty(2, dtype=torch.uint64), q.new_empty((), dtype=torch.uint64)


def _save(ctx, inputs: tuple, output: tuple[Tensor, ...]) -> None:
    q, k, v, q_starts, k_starts, *numbers, _ = inputs
    ctx.save_for_backward(q, k, v, *output, q_starts, k_starts)
    ctx.numbers = numbers


def _backward(ctx, grad: Tensor, *_: object) -> tuple[Tensor | None, ...]:
    q, k, v, out, sums, state, offset, *starts = ctx.saved_tensors
    *longest, scale, dropout = ctx.numbers
    inputs = grad, q, k, v, out, sums, *starts, *longest
    return *BACKWARD(*inputs, dropout, False, state, offset, scale=scale), *[None] * 7


flash_attention.register_autograd(_backward, setup_context=_save)
