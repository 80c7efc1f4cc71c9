"""Softmax attention within sequences of different lengths, by the FlashAttention kernels of PyTorch.

Legend: R rows, H heads, Dh width of a head, S sequences.
"""

import torch
from torch import Tensor

FORWARD, BACKWARD = torch.ops.aten._flash_attention_forward, torch.ops.aten._flash_attention_backward
MULTIPLE, WIDEST = 8, 256  # of Dh


def available(dtype: torch.dtype, device: torch.device, head_dim: int) -> bool:
    """Return True if the kernels take inputs of this type and width on this device."""
    half = dtype in (torch.bfloat16, torch.float16)
    return half and device.type == "cuda" and head_dim % MULTIPLE == 0 and head_dim <= WIDEST


@torch.library.custom_op("lra::flash_attention", mutates_args=())
def flash_attention(
    q: Tensor, k: Tensor, v: Tensor, q_starts: Tensor, k_starts: Tensor, q_longest: int, k_longest: int, scale: float,
    dropout: float, seed: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Compute softmax(q k^T scale) v of each sequence, with dropout on the weights.

    Args:
        q: [R, H, Dh], sequence after sequence; k and v likewise, with other rows.
        q_starts: [S + 1] int32, rows at which sequences of q begin, and R; a sequence may have no row.
        q_longest: no sequence of q has more rows.
        seed: of the dropout, an integer [] on the host; None without dropout.

    Returns:
        [R, H, Dh]; and for the backward pass logarithms of sums [H, R], and the generator's state in two tensors.
    """
    generator = torch.cuda.default_generators[q.device.index] if q.is_cuda else torch.default_generator
    before = generator.get_state()
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
