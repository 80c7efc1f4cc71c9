"""Make the mixers and short documents on which checks run, the shortest documents first.

Shapes: B documents, L positions, D width.
"""

import math
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lra.core.console import plural
from lra.core.errors import UserError
from lra.mixers.base import Mixer, MixerConfig
from lra.ops import dropout

SEED, STEP = 1, 0  # seed of weights, inputs and noise; training step, on which the noise depends
LRA = Path(__file__).parents[1]  # folder of the package


class CheckFailed(Exception):
    """Raised by a check that fails. The message says what was found; `hint` names a likely cause or a remedy."""

    def __init__(self, difference: str, hint: str = "") -> None:
        super().__init__(difference)
        self.hint = hint


@dataclass
class Subject:
    """Factory of the mixers that the checks test, all of one class, and of their inputs."""

    make: Callable[[MixerConfig], Mixer]
    config: MixerConfig
    lengths: tuple[int, ...] = (1, 2, 3, 5, 8, 13)  # lengths of the inputs in positions, ascending
    masked: bool = True
    tolerance: float = 1e-5  # relative to the largest value; a mixer may compute in float32, whose rounding is smaller
    case: str = ""  # description of the current inputs; empty until a check uses some
    note: str = ""  # advice on a mixer that passes

    def mixer(self, seed: int = SEED, **changes: Any) -> Mixer:
        """Return a new float64 mixer in evaluation mode; the same seed and settings give the same weights."""
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            mixer = self.make(replace(self.config, **changes))
        # In float64 a difference above the tolerance is a fault of the mixer and not of rounding.
        return cast(mixer, torch.float64).eval().requires_grad_()

    @cached_property
    def kind(self) -> type[Mixer]:
        return type(self.mixer())

    @property
    def masks(self) -> bool:
        """True if padding is masked and the mixer uses the mask."""
        return self.masked and self.kind.maskable

    def inputs(self, documents: int, min_length: int = 1) -> Iterator[Tensor]:
        """Yield an input x [B, L, D] for each length L >= `min_length`, and describe it in `case`; B is `documents`."""
        for length in self.lengths:
            if length >= min_length:
                self.case = f"{plural(documents, 'document')} of {plural(length, 'position')}"
                yield values(documents, length, self.config.dim)

    def difference(self, expected: Tensor, other: Tensor) -> float:
        """Return the largest absolute difference; 0 if within the tolerance, infinity if a difference is not finite."""
        if not expected.numel():
            return 0.0
        largest = (expected - other).abs().max().nan_to_num(nan=torch.inf, posinf=torch.inf).item()
        # The bound is infinite if an expected value is.
        return 0.0 if largest <= self.tolerance * expected.abs().max().item() and largest < math.inf else largest

    def compare(self, expected: Tensor, other: Tensor, what: str, hint: str = "") -> None:
        """Raise CheckFailed, with `what` as the start of the message, if two tensors differ beyond the tolerance."""
        if difference := self.difference(expected, other):
            raise CheckFailed(f"{what} differ by {difference:.2g}", hint)


def config_of(model: Mapping[str, Any], max_positions: int) -> MixerConfig:
    """Return the configuration of a mixer from that of a model. Raises UserError if a key is missing."""
    keys = ("dim", "qkv_dim", "heads", "dropout", "dropout_over", "out_proj", "attention_bias")
    lacking = [key for key in keys if key not in model]
    if lacking:
        raise UserError(f"model.{lacking[0]}: missing; set +model.{lacking[0]}=..., or choose another variant=...")
    sizes = {key: model[key] for key in keys}
    bias = sizes.pop("attention_bias")
    return MixerConfig(**sizes, max_positions=max_positions, bias=bias)


def cast(mixer: Mixer, dtype: torch.dtype) -> Mixer:
    """Convert real weights to the real type `dtype` and complex ones to its complex counterpart; return the mixer."""
    for tensor in (*mixer.parameters(), *mixer.buffers()):
        if tensor.is_complex():
            tensor.data = tensor.data.to(dtype.to_complex())
        elif tensor.is_floating_point():
            tensor.data = tensor.data.to(dtype)
    return mixer


def trained(mixer: Mixer, documents: list[int]) -> Mixer:
    """Put a mixer in training mode, with noise for the documents at these indices of a batch; return the mixer."""
    mixer.train().redraw(SEED, STEP)
    dropout.set_keys(mixer, seed=SEED, step=STEP, documents=documents)
    return mixer


def values(*shape: int, seed: int = SEED) -> Tensor:
    """Return standard normal values in float64."""
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def where(error: Exception) -> str:
    """Return " (file, line n)" for the innermost traceback frame in the user's code, or "" if no frame is in it."""
    frames = [(Path(frame.filename), frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    user = [(path, line) for path, line in frames if "site-packages" not in path.parts and not path.is_relative_to(LRA)]
    return f" ({user[-1][0].name}, line {user[-1][1]})" if user else ""
