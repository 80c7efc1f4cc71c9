"""What a check tests: new mixers, and documents of a few positions, the smallest first.

Legend: B documents, L positions, D width.
"""

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

SEED, STEP = 1, 0
LRA = Path(__file__).parents[1]


class CheckFailed(Exception):
    """A check fails; the message is what was found, `hint` what to look for."""

    def __init__(self, difference: str, hint: str = "") -> None:
        super().__init__(difference)
        self.hint = hint


@dataclass
class Subject:
    """Mixers and inputs for a check."""

    make: Callable[[MixerConfig], Mixer]
    config: MixerConfig
    lengths: tuple[int, ...] = (1, 2, 3, 5, 8, 13)  # of inputs, ascending
    masked: bool = True
    tolerance: float = 1e-5  # relative to the largest output; a mixer may compute in float32
    case: str = ""  # description of the current inputs; empty until a check uses some
    note: str = ""  # advice on a mixer that passes

    def mixer(self, seed: int = SEED, **changes: Any) -> Mixer:
        """Construct a mixer in float64, for evaluation; equal at every call with the same seed and settings."""
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            mixer = self.make(replace(self.config, **changes))
        return cast(mixer, torch.float64).eval().requires_grad_()

    @cached_property
    def kind(self) -> type[Mixer]:
        return type(self.mixer())

    @property
    def masks(self) -> bool:
        """True if padding is masked and the mixer uses the mask."""
        return self.masked and self.kind.maskable

    def inputs(self, documents: int, min_length: int = 1) -> Iterator[Tensor]:
        """Yield x [B, L, D] of each length from `min_length` on."""
        for length in self.lengths:
            if length >= min_length:
                self.case = f"{plural(documents, 'document')} of {plural(length, 'position')}"
                yield values(documents, length, self.config.dim)

    def difference(self, expected: Tensor, other: Tensor) -> float:
        """Return the largest difference: 0 within the tolerance, infinite if a number is not finite."""
        if not expected.numel():
            return 0.0
        largest = (expected - other).abs().max().nan_to_num(nan=torch.inf, posinf=torch.inf).item()
        return 0.0 if largest <= self.tolerance * expected.abs().max().item() else largest


def config_of(model: Mapping[str, Any], max_positions: int) -> MixerConfig:
    """Return the settings of the only mixer of a configured model. Raises UserError if a key is missing."""
    keys = ("dim", "qkv_dim", "heads", "dropout", "dropout_over", "out_proj", "attention_bias")
    lacking = [key for key in keys if key not in model]
    if lacking:
        raise UserError(f"model.{lacking[0]}: missing; set +model.{lacking[0]}=..., or choose another variant=...")
    sizes = {key: model[key] for key in keys}
    bias = sizes.pop("attention_bias")
    return MixerConfig(**sizes, max_positions=max_positions, bias=bias)


def cast(mixer: Mixer, dtype: torch.dtype) -> Mixer:
    """Convert real weights to a real type and complex ones to the complex type of its precision, in place."""
    for tensor in (*mixer.parameters(), *mixer.buffers()):
        if tensor.is_complex():
            tensor.data = tensor.data.to(dtype.to_complex())
        elif tensor.is_floating_point():
            tensor.data = tensor.data.to(dtype)
    return mixer


def trained(mixer: Mixer, documents: list[int]) -> Mixer:
    """Return the mixer in training mode, with the noise of these documents of a batch."""
    mixer.train().redraw(SEED, STEP)
    dropout.set_keys(mixer, seed=SEED, step=STEP, rows=documents)
    return mixer


def values(*shape: int, seed: int = SEED) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def where(error: Exception) -> str:
    """The innermost line of the traceback that is neither ours nor an installed package's, in brackets."""
    frames = [(Path(frame.filename), frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    user = [(path, line) for path, line in frames if "site-packages" not in path.parts and not path.is_relative_to(LRA)]
    return f" ({user[-1][0].name}, line {user[-1][1]})" if user else ""
