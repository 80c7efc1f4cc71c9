"""Rounding errors of the two forms of SimpleAttention, against its textbook form in float64."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import torch
from torch import Tensor

from lra.attention.simple import Simple
from lra.bench.measure import Result
from lra.bench.settings import BenchSettings
from lra.config import configure
from lra.core.errors import UserError
from lra.laws.trial import shape_of

INPUTS = {"noise": 0.0, "noise and a shared vector": 1.0}  # the latter is the harder case of a Gram matrix
PRECISIONS = ("fp32", "bf16")
FORMS = ("textbook", "gram")
PARTS = ("output", "input gradient", "weight gradients")


def run(settings: BenchSettings, device: str) -> Iterator[Result]:
    """A result for each length, input, precision and form, with the errors of as many draws as there are rounds."""
    if settings.attention["_target_"] != "lra.attention.simple.Simple":
        raise UserError("what=accuracy: expected attention=simple, which has two forms")
    if settings.precision != "fp32":
        raise UserError(f"what=accuracy: precision={settings.precision}: it measures fp32 and bf16; leave it out")
    draws = range(settings.rounds)
    for length, inputs, precision, form in product(settings.lengths, INPUTS, PRECISIONS, FORMS):
        drawn = [errors(settings, length, INPUTS[inputs], precision, form, draw, device) for draw in draws]
        by_part = {part: [draw[part] for draw in drawn] for part in PARTS}
        yield {"length": length, "inputs": inputs, "precision": precision, "form": form, "errors": by_part}


def errors(
    settings: BenchSettings, length: int, shared: float, precision: str, form: str, draw: int, device: str
) -> dict[str, float]:
    """Relative errors (Frobenius norms); `shared` is how long a vector common to all positions is beside the noise."""
    torch.manual_seed(settings.seed + draw)
    exact = _mixer(settings, length, "textbook")
    x = torch.randn(settings.batch, length, exact.shape.dim) + shared * torch.randn(exact.shape.dim)
    weights = torch.randn_like(x)
    tried = _mixer(settings, length, form).to(device)
    tried.load_state_dict(exact.state_dict())
    expected = _passes(exact.double(), x.double(), weights, bf16=False)
    passes = _passes(tried, x.to(device), weights.to(device), bf16=precision == "bf16")
    return {part: ((passes[part] - expected[part]).norm() / expected[part].norm()).item() for part in PARTS}


def _mixer(settings: BenchSettings, length: int, form: str) -> Simple:
    node = {**settings.attention, "form": form}
    build = configure.build(node, "attention", settings.packages, supplied=1)
    return build(replace(shape_of(settings.model, length), dropout=0.0))


def _passes(mixer: Simple, x: Tensor, weights: Tensor, *, bf16: bool) -> dict[str, Tensor]:
    x.requires_grad_()
    with torch.autocast(x.device.type, torch.bfloat16, enabled=bf16):
        y = mixer(x)
    gradients = torch.autograd.grad(y, [x, *mixer.parameters()], weights.to(y.dtype))
    parts = (y, gradients[0], torch.cat([gradient.flatten() for gradient in gradients[1:]]))
    return {part: value.detach().double().cpu() for part, value in zip(PARTS, parts, strict=True)}
