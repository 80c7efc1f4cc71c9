"""Attention layers beside each other: ours, the textbook's, other libraries'."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import torch
import yaml
from torch import Tensor, nn

from lra.bench import peers
from lra.bench.measure import Result, side_by_side
from lra.bench.settings import BenchSettings
from lra.bench.stepwise import Stepwise
from lra.bench.straightforward import ATTENTIONS
from lra.bench.worker import BenchPlace, Workload
from lra.config import configure
from lra.core.console import say
from lra.core.errors import UserError, did_you_mean
from lra.laws.trial import shape_of
from lra.ops.dropout import set_keys

Again = Callable[..., BenchSettings]
"""The settings of this command with more overrides."""


@dataclass(frozen=True, kw_only=True)
class LayerSubject:
    """One subject, a layer or the model of such layers. `kind`: attention (of this library), stepwise, textbook, or
    peer."""

    title: str
    kind: str
    name: str
    options: dict[str, Any]
    settings: BenchSettings


def subjects(settings: BenchSettings, again: Again) -> list[LayerSubject]:
    """What the configuration names."""
    titles = settings.subjects
    twice = next((title for title in titles if titles.count(title) > 1), None)
    if twice:
        raise UserError(f"subjects: {twice!r} stands there twice")
    return [layer_of(title, settings, again) for title in titles]


def layer_of(title: str, settings: BenchSettings, again: Again) -> LayerSubject:
    """What a subject means: `NAME key=value ...`, `KIND:NAME key=value ...` or `peer:NAME option=value ...`.

    A name stands for attention=NAME, which brings its variant.
    """
    first, *rest = title.split() or [""]
    kind, _, name = first.rpartition(":")
    if kind == "peer":
        options = {key: yaml.safe_load(value) for key, _, value in (word.partition("=") for word in rest)}
        peers.check(name, options)
        return LayerSubject(title=title, kind=kind, name=name, options=options, settings=settings)
    if kind not in ("", "stepwise", "textbook"):
        raise UserError(f"subjects: {title!r}: expected an attention, stepwise:NAME, textbook:NAME or peer:NAME")
    if kind == "textbook" and name not in ATTENTIONS:
        raise UserError(f"subjects: {title!r}: no such textbook attention; {did_you_mean(name, ATTENTIONS)}")
    chosen = [first if "=" in first else f"attention={name}", *rest]
    return LayerSubject(title=title, kind=kind or "attention", name=name, options={}, settings=again(*chosen))


def work(layer: LayerSubject, length: int, batch: int, direction: str, device: str) -> Workload:
    """A layer on `batch` documents: its values and, in training, the gradients of its parameters and its input."""
    torch.manual_seed(layer.settings.seed)
    module = module_of(layer, length).to(device)
    training = direction == "train"
    module.train(training)
    x = torch.randn(batch, length, layer.settings.model["dim"], device=device, requires_grad=training)
    weights = torch.randn_like(x)

    def forward() -> Tensor:
        set_keys(module, seed=layer.settings.seed, step=0, rows=range(batch))
        with torch.autocast(device, torch.bfloat16, enabled=layer.settings.precision == "bf16"):
            return module(x)

    def train(turn: int) -> None:
        x.grad = None
        module.zero_grad(set_to_none=True)
        y = forward()
        y.backward(weights.to(y.dtype))

    def infer(turn: int) -> None:
        with torch.inference_mode():
            forward()

    facts = {"parameters": sum(parameter.numel() for parameter in module.parameters())}
    if layer.kind == "peer":
        distribution = peers.PEERS[layer.name].distribution
        facts["version"] = f"{distribution} {metadata.version(distribution)}"
    return Workload(
        step=train if training else infer,
        device=device,
        module=module,
        forward=forward if training else None,
        facts=facts,
    )


def module_of(layer: LayerSubject, length: int) -> nn.Module:
    """The layer itself."""
    model = layer.settings.model
    dim, heads, dropout = model["dim"], model["heads"], model["dropout"]
    if layer.kind in ("peer", "textbook") and model["qkv_dim"] != dim:
        raise UserError(f"{layer.title}: model.qkv_dim={model['qkv_dim']}, but it is as wide as model.dim={dim}")
    if layer.kind == "textbook" and not model["attention_bias"]:
        raise UserError(f"{layer.title}: model.attention_bias=false, but its projections have biases")
    if layer.kind == "peer":
        return peers.build(layer.name, layer.options, dim=dim, heads=heads, length=length, dropout=dropout)
    if layer.kind == "textbook":
        scale = length**-0.5 if layer.name == "simple" else (dim // heads) ** -0.5
        return ATTENTIONS[layer.name](dim, heads, dropout, model["out_proj"], scale)
    build = configure.build(layer.settings.attention, "attention", layer.settings.packages, supplied=1)
    mixer = build(shape_of(model, length))
    return Stepwise(mixer, layer.title) if layer.kind == "stepwise" else mixer


def run(settings: BenchSettings, place: BenchPlace, again: Again) -> Iterator[Result]:
    """A result for each direction, length and subject."""
    layers = subjects(settings, again)
    for layer in layers:
        for length in settings.lengths:
            module_of(layer, length)  # a mistake shows before anything is measured
    yield from over_lengths(layers, settings, place, work)


def over_lengths(
    layers: list[LayerSubject],
    settings: BenchSettings,
    place: BenchPlace,
    build: Callable[[LayerSubject, int, int, str, str], Workload],
) -> Iterator[Result]:
    """`build(subject, length, batch, direction, device)` of each, in a process of its own: the subjects beside each
    other, or the lengths of a single one, in turns of as many tokens."""
    together = [settings.lengths] if len(layers) == 1 else [[length] for length in settings.lengths]
    for direction in settings.directions:
        for lengths in together:
            say(f"{direction}, length {', '.join(map(str, lengths))}")
            works = {
                (layer.title, length): (build, (layer, length, settings.batch, direction, place.device))
                for length in lengths
                for layer in layers
            }
            steps = {name: max(lengths) // name[1] for name in works}
            results = side_by_side(works, place, settings.rounds, settings.precision, steps.get)
            for (title, length), result in results.items():
                yield {"subject": title, "direction": direction, "length": length, "batch": settings.batch, **result}
