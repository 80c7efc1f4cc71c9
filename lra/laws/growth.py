"""How memory and time of a training step grow with the length, measured."""

import time
from collections.abc import Callable, Mapping

import numpy as np
from torch import Tensor

from lra.laws.trial import trained, values
from lra.ops.mixer import Mixer
from lra.ops.saved_tensors import saved_tensors

TURNS = 3


def growth(make: Callable[[int], Mixer], lengths: tuple[int, ...]) -> tuple[dict[int, int], dict[int, float]]:
    """Measure the float32 mixers that `make` makes for these numbers of positions. Returns, by length, the bytes that
    are kept for the backward pass, and the least seconds of forward and backward."""
    kept, seconds = {}, {}
    for length in lengths:
        mixer = trained(make(length).float(), [0])
        x = values(1, length, mixer.shape.dim).float()
        kept[length] = saved_bytes(mixer, x)
        seconds[length] = min(_step(mixer, x) for _ in range(TURNS))
    return kept, seconds


def exponent(measured: Mapping[int, float]) -> float:
    """That of the power law which fits best, by least squares of logarithms; 0 where something is 0."""
    lengths, values = zip(*measured.items(), strict=True)
    return float(np.polyfit(np.log(lengths), np.log(values), 1)[0]) if len(values) > 1 and min(values) > 0 else 0.0


def saved_bytes(mixer: Mixer, x: Tensor) -> int:
    """What a training step keeps for the backward pass, each storage once, parameters left out."""
    with saved_tensors(mixer.state_dict().values()) as saved:
        y = mixer(x.clone().requires_grad_())
    return saved() if y.requires_grad else 0


def _step(mixer: Mixer, x: Tensor) -> float:
    given = x.clone().requires_grad_()
    before = time.perf_counter()
    mixer(given).sum().backward()
    return time.perf_counter() - before
