"""Whole models beside each other over lengths: training steps, or forward passes without gradients."""

from collections.abc import Iterator
from dataclasses import replace

import torch

from lra.bench.layers import Again, LayerSubject, over_lengths, subjects
from lra.bench.measure import Result
from lra.bench.settings import BenchSettings
from lra.bench.steps import ours, straightforward_model, textbook
from lra.bench.worker import BenchPlace, Workload
from lra.core.errors import UserError
from lra.runs.build import assemble


def work(subject: LayerSubject, length: int, batch: int, direction: str, device: str) -> Workload:
    """A step of the configured model on `batch` examples, every document `length` tokens long."""
    build = textbook if subject.kind == "textbook" else ours
    return build(_of_batch(subject.settings, batch), device, length, direction)


def run(settings: BenchSettings, place: BenchPlace, again: Again) -> Iterator[Result]:
    """A result for each direction, length and subject."""
    if settings.data != "random":
        raise UserError(f"data={settings.data}: what=model reads random tokens, all of one length; set data=random")
    layer = next((title for title in settings.subjects if title.startswith(("peer:", "stepwise:"))), None)
    if layer:
        raise UserError(f"subjects: {layer!r}: is a layer without a model; use what=layer")
    layers = subjects(settings, again)
    for subject in layers:
        for length in settings.lengths:
            _check(subject, length)
    yield from over_lengths(layers, settings, place, work)


def _check(subject: LayerSubject, length: int) -> None:
    """A mistake shows before anything is measured."""
    system = assemble(_of_batch(subject.settings, 1))
    facts = replace(system.builder.facts, max_len=length)
    with torch.device("meta"):
        if subject.kind == "textbook":
            straightforward_model(subject.settings, facts)
        else:
            system.model(facts)


def _of_batch(settings: BenchSettings, batch: int) -> BenchSettings:
    cut = min(batch, settings.train["micro_batch"])
    return replace(settings, train={**settings.train, "batch_size": batch, "micro_batch": cut})
