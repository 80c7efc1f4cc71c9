"""Laws of outputs: shape, type, finite numbers, unchanged input."""

import torch
from torch import Tensor

from lra.laws.trial import Broken, Trial
from lra.ops.mixer import Mixer
from lra.ops.precision import autocast_dtype

SPREADS = (0.0, 10.0)


@torch.no_grad()
def shape(trial: Trial) -> bool:
    for documents in (1, 2):
        for x in trial.inputs(documents):
            y = trial.mixer()(x.clone())
            if not isinstance(y, Tensor) or y.shape != x.shape:
                given = list(y.shape) if isinstance(y, Tensor) else type(y).__name__
                raise Broken(f"{given} comes out, expected {list(x.shape)}")
    return True


@torch.no_grad()
def dtype(trial: Trial) -> bool:
    for x in trial.inputs(1):
        for kind, autocast in ((torch.float64, False), (torch.float32, False), (torch.float32, True)):
            mixer, given = trial.mixer().to(kind), x.to(kind)
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                y, allowed = mixer(given), {kind, autocast_dtype(given)}
            if isinstance(y, Tensor) and y.dtype not in allowed:
                dtypes = f"{_name(y.dtype)} comes out of {_name(kind)}{' under autocast' * autocast}"
                raise Broken(dtypes)
    return True


@torch.no_grad()
def finite(trial: Trial) -> bool:
    for x in trial.inputs(2):
        for spread in SPREADS:
            mixer, given = trial.mixer().float(), (spread * x).float()
            for autocast in (False, True):
                with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                    _finite(mixer, given, None, f"for numbers as large as {spread * x.abs().max():.2g}")
    return True


@torch.no_grad()
def empty(trial: Trial) -> bool:
    if not (trial.masked and trial.kind.maskable):
        return False
    for x in trial.inputs(1):
        _finite(trial.mixer(), x, torch.zeros(x.shape[:2], dtype=torch.bool), "where all is padding")
    return True


def _finite(mixer: Mixer, x: Tensor, mask: Tensor | None, when: str) -> None:
    if not mixer(x.clone(), mask).isfinite().all():
        raise Broken(f"NaN or infinity comes out {when}")


@torch.no_grad()
def unchanged(trial: Trial) -> bool:
    for x in trial.inputs(1):
        given = x.clone()
        trial.mixer()(given)
        if not torch.equal(given, x):
            raise Broken("the call changes x", "an operation in place, as x += ... or x.mul_(...)")
    return True


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
