"""Describe a run without training it: parameters, learning rates, FLOPs and the measured time of a step."""

import json
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from lra.core import streams
from lra.datasets.splits import LMWindows, PositionLabels
from lra.datasets.task import Split, TaskSpec
from lra.network.model import Model
from lra.ops import products
from lra.ops.dropout import set_keys
from lra.runs.build import Components, Job, without_memory
from lra.runs.device import PeakMemory, device_of, keep_memory, threads_at_hand
from lra.runs.initial_weights import draw_model
from lra.runs.settings import Settings
from lra.training.batches import micro_batches, predict, read, summed_loss
from lra.training.optimizer import make_optimizer, update
from lra.training.recipe import Recipe
from lra.training.trainer import compute_gradient

QUICK_SECONDS = 0.25  # a whole micro-batch is timed if the forward pass of one example takes less than this


def print_summary(job: Job, measured: bool) -> None:
    """Print the summary of a run as JSON; if `measured`, also time a step on this machine."""
    summary: dict[str, Any] = {"run_folder": str(job.folder), **describe(job.components)}
    if measured:
        summary["measured"] = measure_step(job.settings, job.components)
    print(json.dumps(summary, indent=1))


def describe(components: Components) -> dict[str, Any]:
    """Return the number of parameters, pairs [step, learning rate], and the tokens and FLOPs of a step.

    FLOPs are those of matrix products, convolutions and Fourier transforms, so a recurrence of elementwise products has
    almost none, however long it takes.
    """
    recipe, spec = components.recipe, components.builder.spec

    def counted() -> tuple[Model, int]:
        model = components.model(spec).eval()  # dropout needs keys in training, and adds no FLOPs that are counted
        tokens = torch.ones(spec.documents, spec.max_len, dtype=torch.long)
        with counter() as flops:
            model(tokens).sum().backward()
        return model, flops.get_total_flops()

    model, flops = without_memory(counted)
    rates = {"learning_rate": _rates(recipe)}
    if components.pretraining is not None:
        rates = {"pretrain_learning_rate": _rates(components.pretraining.components.recipe), **rates}
    return {
        **parameters(model),
        "full_pattern": components.full_pattern,
        **rates,
        "tokens_per_step": recipe.batch_size * spec.documents * spec.max_len,
        "flops_per_step": flops * recipe.batch_size,
    }


def measure_step(settings: Settings, components: Components) -> dict[str, Any]:
    """Return the measured time and memory of a step on random documents of the maximum length.

    Returns:
        examples: number of examples timed: a micro-batch, or 1 if one example is slow.
        step_seconds: time of a step on a whole batch, extrapolated from `examples`.
        hours: time of all steps at this length, without evaluations; batches of shorter documents take less.
        peak_memory_bytes: peak memory of the device or process; None if the system does not report it.
    """
    recipe, spec, seed = components.recipe, components.builder.spec, settings.seed
    keep_memory()
    torch.set_num_threads(settings.threads or threads_at_hand())
    device = device_of(settings.device)
    memory = PeakMemory(device)
    model = draw_model(components, spec, seed).to(device)
    optimizer = make_optimizer(model, recipe)
    split, first = random_split(spec, recipe.micro_batch, seed), np.arange(1)

    # Time one example first, to decide whether a whole micro-batch is fast enough.
    model.train()
    model.redraw(seed, 0)
    part = read(split, first, first, spec.max_len)
    set_keys(model, seed=seed, step=0, documents=part.documents)
    began = time.perf_counter()
    loss = summed_loss(*predict(model, part, settings.precision))
    examples = recipe.micro_batch if time.perf_counter() - began < QUICK_SECONDS else 1
    del loss  # frees the tensors kept for its backward pass, which would add to the measured peak

    began = time.perf_counter()
    with products.using(products.choose(settings.products) if device == "cpu" else "mkl"):
        batch, precision = np.arange(examples), settings.precision
        parts = micro_batches(model, split, batch, recipe.micro_batch, precision)
        totals = compute_gradient(model, split, batch, parts, seed=seed, step=0, precision=precision)
        update(model, optimizer, totals, recipe, step=0).read()
    seconds = (time.perf_counter() - began) * recipe.batch_size / examples
    return {
        "examples": examples,
        "step_seconds": seconds,
        "hours": seconds * recipe.steps / 3600,
        "peak_memory_bytes": memory.read(),
    }


def _rates(recipe: Recipe) -> list[list[float]]:
    """Return pairs [step, learning rate] at the steps where the schedule changes."""
    turns = {0, 1, recipe.warmup, max(0, recipe.steps - (recipe.cooldown or 0)), recipe.steps}
    return [[step, recipe.learning_rate(step)] for step in sorted(turns)]


def parameters(model: Model) -> dict[str, int]:
    """Return the number of all parameters and of those that are trained."""
    every = list(model.parameters())
    return {
        "parameters": sum(parameter.numel() for parameter in every),
        "trainable_parameters": sum(parameter.numel() for parameter in every if parameter.requires_grad),
    }


def counter() -> FlopCounterMode:
    """Return a counter of FLOPs in matrix products, convolutions and Fourier transforms."""
    return FlopCounterMode(display=False, custom_mapping=FORMULAS)


def _fourier(x: torch.Size, axes: Sequence[int], *_: Any, **__: Any) -> int:
    """Return 5 n log2(n) FLOPs for each transform of n numbers, the cost of a radix-2 FFT."""
    return round(5 * x.numel() * math.log2(math.prod(x[axis] for axis in axes)))


# Functions that return FLOPs from shapes, for operators for which torch has no formula or a wrong one.
FORMULAS: dict[Any, Callable[..., int]] = {
    # [B, M, K] times [B, K, N]; torch's own formula fails if the call sets the type of the result
    torch.ops.aten.bmm: lambda first, other, *_, **__: 2 * first.numel() * other[-1],
    # torch counts fused attention on accelerators only
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: lambda q, k, v, *_, **__: sdpa_flop_count(q, k, v),
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: (
        lambda grad, q, k, v, *_, **__: sdpa_backward_flop_count(grad, q, k, v)
    ),
    torch.ops.aten._fft_c2c: _fourier,
    # real inputs or outputs take half the FLOPs of complex ones
    torch.ops.aten._fft_r2c: lambda x, axes, *_, **__: _fourier(x, axes) // 2,
    torch.ops.aten._fft_c2r: lambda x, axes, *_, out_shape, **__: _fourier(out_shape, axes) // 2,
}


def random_split(spec: TaskSpec, examples: int, seed: int) -> Split:
    """Return random examples of the maximum length; in tasks that score positions, all positions are scored."""
    rng, length = streams.generator(seed, "check"), spec.max_len
    answers = rng.integers(0, spec.classes, examples if spec.objective == "classify" else examples * length)
    document = {
        # One document, which all examples share, so that long sequences need no memory for each example. Example i of
        # a language model is the window that starts at token i.
        "tokens": rng.integers(1, spec.vocab_size, length + examples, dtype=np.uint16),
        "offsets": np.array([0, length]),
        "index": np.zeros(examples * spec.documents, dtype=int),
    }
    if spec.objective == "classify":
        return Split(**document, labels=answers)
    if spec.objective == "next_token":
        return LMWindows(**document, labels=answers, context=length, stride=1)
    positions = np.tile(np.arange(length), examples)
    return PositionLabels(**document, labels=answers, ends=np.arange(examples + 1) * length, positions=positions)
