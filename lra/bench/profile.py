"""Where the time of a step goes, by the kind of operation."""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

import torch
from torch import nn
from torch.autograd import DeviceType
from torch.autograd.profiler_util import FunctionEvent
from torch.profiler import ProfilerActivity, record_function

from lra.bench.worker import Workload
from lra.ops.dropout import Dropout

DROPOUT, OPTIMISER, REST = "dropout", "optimiser", "the rest"
KINDS = {  # the first that has a part of an operation's name
    DROPOUT: ("index_fill",),
    "matrix products": ("::mm", "::addmm", "::bmm", "::baddbmm", "scaled_dot_product"),
    "activations": ("gelu", "relu", "softmax"),
    "norms": ("layer_norm",),
    "copies and fills": ("copy", "::cat", "::clone", "::fill_", "::zero", "::index_select"),
    "sums and element-wise": ("::add", "::mul", "::div", "::sum", "::sub", "::masked_fill"),
}


def profile(work: Workload) -> dict[str, float]:
    """Seconds of each kind in one step, the largest first; dropout has its masks and both of its passes."""
    work.step(0)
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if work.device == "cuda" else [])]
    with _marked(work.module), torch.profiler.profile(activities=activities) as profiler, record_function("step"):
        work.step(0)
    return by_kind(profiler.events(), work.device)


def by_kind(events: list[FunctionEvent], device: str) -> dict[str, float]:
    """Seconds of each kind. What autograd evaluates is dropout's where the forward operation is."""
    events = [event for event in events if event.device_type == DeviceType.CPU]
    dropped = {event.sequence_nr for event in events if _names(event) & {DROPOUT} and event.sequence_nr >= 0}
    seconds: dict[str, float] = defaultdict(float)
    for event in events:
        microseconds = event.self_device_time_total if device == "cuda" else event.self_cpu_time_total
        seconds[_kind(event, dropped)] += microseconds / 1e6
    return dict(sorted(seconds.items(), key=lambda item: -item[1]))


def _kind(event: FunctionEvent, dropped: set[int]) -> str:
    for ancestor in _line(event):
        if ancestor.name == DROPOUT or ("evaluate_function" in ancestor.name and ancestor.sequence_nr in dropped):
            return DROPOUT
        if ancestor.name.startswith("Optimizer.") or "_fused_adamw" in ancestor.name:
            return OPTIMISER
    return next((kind for kind, parts in KINDS.items() if any(part in event.name for part in parts)), REST)


def _names(event: FunctionEvent) -> set[str]:
    return {ancestor.name for ancestor in _line(event)}


def _line(event: FunctionEvent) -> Iterator[FunctionEvent]:
    """The event and what it is inside of."""
    while event is not None:
        yield event
        event = event.cpu_parent


@contextmanager
def _marked(module: nn.Module) -> Iterator[None]:
    """Give the dropouts of a model a name of their own in the profile."""
    with ExitStack() as stack:
        for drop in [part for part in module.modules() if isinstance(part, nn.Dropout | Dropout)]:
            stack.enter_context(patch.object(drop, "forward", record_function(DROPOUT)(drop.forward)))
        yield
