"""Measure norms and spreads in each block, and the asymmetry of its scores (SimpleTRON, section 5.2 and Figure 5).

Legend: B documents, H heads, N positions, Dh width of a head; A = scale * Q K^T, the scores [N, N] of each head.
"""

from contextlib import ExitStack
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from lra.config.settings import Precision
from lra.datasets.task import Split
from lra.mixers.base import Attention
from lra.network.block import Block
from lra.network.model import Model
from lra.training.batches import predict, read


def probe(model: Model, split: Split, examples: int, *, precision: Precision) -> dict[str, list[float | None]]:
    """Measure each block on the first `examples` examples of the split; the training is not affected.

    Returns:
        Lists of one number per block, by name. `residual_norm`: mean norm of the block's input vectors.
        `gradient_norm`: norm of the gradient of the loss with respect to the block's trained weights. `attention_std`:
        standard deviation of the heads' outputs before the output projection, or of the mixer's output if it has no
        heads. `score_std`: standard deviation of A, before softmax. `score_asymmetry`: ||A - A^T|| / ||A||, 0 if A is
        symmetric, about 1.41 if A is unrelated to its transpose. The last two are None if the mixer has no A.
    """
    model.eval()  # without dropout, so that the probe draws no random numbers
    first = np.arange(min(examples, len(split)))
    length = int(split.lengths(first).max()) if model.key_mask else model.max_len
    entered: list[tuple[Any, ...]] = []  # (x, key_mask) of each block
    with ExitStack() as hooks:
        for block in model.blocks:
            hooks.enter_context(block.register_forward_pre_hook(lambda _block, inputs: entered.append(inputs[:2])))
        logits, labels = predict(model, read(split, first, first, length), precision)
    # One backward pass for all blocks, by `grad`, which leaves `parameter.grad` of the training as it is.
    trained = [[parameter for parameter in block.parameters() if parameter.requires_grad] for block in model.blocks]
    flat, loss = [parameter for block in trained for parameter in block], cross_entropy(logits, labels)
    gradients = iter(torch.autograd.grad(loss, flat, allow_unused=True) if flat else ())
    norms: list[float | None] = []  # of each block; None for frozen blocks
    for block in trained:
        # In float64: the squares of many small gradients would lose digits in bf16 and fp32.
        parts = [gradient.double().norm() for gradient in islice(gradients, len(block)) if gradient is not None]
        norms.append(torch.stack(parts).norm().item() if parts else None)
    # Measure the blocks in order, because a mixer may read the memory of the previous block's mixer.
    measured = [
        {**_inside(block, *inputs), "gradient_norm": norm}
        for block, inputs, norm in zip(model.blocks, entered, norms, strict=True)
    ]
    return {name: [of_block[name] for of_block in measured] for name in measured[0]}


@torch.no_grad()
def _inside(block: Block, x: Tensor, key_mask: Tensor | None) -> dict[str, float | None]:
    """Return all measurements of a block except `gradient_norm`, at the real positions of its input x [B, N, D]."""
    real = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device) if key_mask is None else key_mask
    mixer, seen = block.mixer, block.mixer_input(x, key_mask)
    numbers: dict[str, float | None] = {
        "residual_norm": x[real].double().norm(dim=-1).mean().item(),
        "score_std": None,
        "score_asymmetry": None,
    }
    if not isinstance(mixer, Attention):
        mixed = mixer.mix(seen, key_mask, None)
        return {**numbers, "attention_std": mixed[real].double().std().item()}
    q, k, v = mixer.project(seen)
    outputs = mixer.attend(q, k, v, key_mask).transpose(1, 2)[real].double()  # [real positions, H, Dh]
    numbers["attention_std"] = outputs.std().item()
    if (score_scale := getattr(mixer, "score_scale", None)) is not None:
        std, asymmetry = score_statistics(q, k, real, score_scale(x.shape[1], key_mask))
        numbers |= {"score_std": std, "score_asymmetry": asymmetry}
    return numbers


def score_statistics(q: Tensor, k: Tensor, real: Tensor, scale: Tensor | float) -> tuple[float, float]:
    """Return the standard deviation and the asymmetry ||A - A^T|| / ||A|| of the scores A = scale Q K^T.

    Both are means over B and H. q, k [B, H, N, Dh], real [B, N]. A is never formed:
    ||A||^2 = <Q^T Q, K^T K> and <A, A^T> = <K^T Q, (K^T Q)^T>.
    """
    # The [Dh, Dh] products give the same traces as the [N, N] ones, in O(N Dh^2) instead of O(N^2 Dh).
    q, k = (x.double() * real[:, None, :, None] for x in (q * scale, k))  # 0 at padding
    pairs = real.sum(dim=1, keepdim=True).double() ** 2  # [B, 1] number of scores per head
    cross = k.transpose(-2, -1) @ q  # [B, H, Dh, Dh]
    square = ((q.transpose(-2, -1) @ q) * (k.transpose(-2, -1) @ k)).sum(dim=(-2, -1))  # [B, H]
    transposed = (cross * cross.transpose(-2, -1)).sum(dim=(-2, -1))
    mean = (q.sum(dim=-2) * k.sum(dim=-2)).sum(dim=-1) / pairs
    std = (square / pairs - mean**2).clamp(min=0).sqrt()
    # ||A - A^T||^2 = 2 (||A||^2 - <A, A^T>)
    asymmetry = (2 * (square - transposed)).clamp(min=0).sqrt() / square.sqrt()
    return std.mean().item(), asymmetry.mean().item()
