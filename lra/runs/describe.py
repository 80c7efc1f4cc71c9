"""Facts of a run that need no data: parameters, learning rates, tokens and FLOPs of a step."""

import json
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from lra.model.model import Model
from lra.runs.build import Job, System
from lra.training.recipe import Recipe


def print_facts(job: Job) -> None:
    """Print the facts of a run as JSON."""
    print(json.dumps({"run_folder": str(job.folder), **describe(job.system)}, indent=1))


def describe(system: System) -> dict[str, Any]:
    """Return parameters, learning rates [step, rate], tokens and FLOPs of a step."""
    recipe, facts = system.recipe, system.builder.facts
    with torch.device("meta"):
        model = system.model(facts).eval()
        tokens = torch.ones(facts.documents, facts.max_len, dtype=torch.long)
        with counter() as counted:
            model(tokens).sum().backward()
    before = {} if system.pretraining is None else {"pretrain_learning_rate": _rates(system.pretraining.system.recipe)}
    return {
        **parameters(model),
        "full_pattern": system.full_pattern,
        **before,
        "learning_rate": _rates(recipe),
        "tokens_per_step": recipe.batch_size * facts.documents * facts.max_len,
        "flops_per_step": counted.get_total_flops() * recipe.batch_size,
    }


def _rates(recipe: Recipe) -> list[list[float]]:
    """Return [step, learning rate] at the steps where the schedule changes."""
    turns = {0, 1, recipe.warmup, recipe.steps - (recipe.cooldown or 0), recipe.steps}
    return [[step, recipe.learning_rate(step)] for step in sorted(turns)]


def parameters(model: Model) -> dict[str, int]:
    """Count all parameters, and those that are trained."""
    every = list(model.parameters())
    return {
        "parameters": sum(parameter.numel() for parameter in every),
        "trainable_parameters": sum(parameter.numel() for parameter in every if parameter.requires_grad),
    }


def counter() -> FlopCounterMode:
    """Return a counter of FLOPs in products, convolutions and Fourier transforms."""
    return FlopCounterMode(display=False, custom_mapping=FORMULAS)


def _fused(query: torch.Size, key: torch.Size, value: torch.Size, *_: Any, **__: Any) -> int:
    return sdpa_flop_count(query, key, value)


def _fused_backward(grad: torch.Size, query: torch.Size, key: torch.Size, value: torch.Size, *_: Any, **__: Any) -> int:
    return sdpa_backward_flop_count(grad, query, key, value)


def _batched(first: torch.Size, other: torch.Size, *_: Any, **__: Any) -> int:
    """FLOPs of [B, M, K] times [B, K, N]; the counter's own formula fails if the type of the result is given."""
    return 2 * first.numel() * other[-1]


def _fourier(x: torch.Size, axes: Sequence[int], *_: Any, **__: Any) -> int:
    """5 n log2(n) FLOPs for each transform of n numbers, as of radix 2."""
    return round(5 * x.numel() * math.log2(math.prod(x[axis] for axis in axes)))


def _fourier_of_real(x: torch.Size, axes: Sequence[int], *_: Any, **__: Any) -> int:
    return _fourier(x, axes) // 2


def _fourier_to_real(_x: torch.Size, axes: Sequence[int], *_: Any, out_shape: torch.Size, **__: Any) -> int:
    return _fourier(out_shape, axes) // 2


FORMULAS = {  # those of fused attention on accelerators are known to torch's counter
    torch.ops.aten.bmm: _batched,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _fused,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: _fused_backward,
    torch.ops.aten._fft_c2c: _fourier,
    torch.ops.aten._fft_r2c: _fourier_of_real,
    torch.ops.aten._fft_c2r: _fourier_to_real,
}
