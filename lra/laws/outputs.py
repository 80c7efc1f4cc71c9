"""Laws of outputs: shape, type, finite numbers, unchanged input."""

import torch
from torch import Tensor

from lra.laws.lines import Line, of_result
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
                raise Broken(f"{given} comes out, expected {list(x.shape)}", line=of_result(trial.kind))
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
                raise Broken(dtypes, line=_first_other(trial, mixer, given))
    return True


def _first_other(trial: Trial, mixer: Mixer, x: Tensor) -> Line | None:
    """The first line that makes numbers of another type of those of x."""

    def seen(_func: object, arguments: list[object], result: object) -> bool:
        tensors = [value for value in arguments if isinstance(value, Tensor) and value.is_floating_point()]
        other = isinstance(result, Tensor) and result.is_floating_point() and result.dtype != x.dtype
        return other and all(tensor.dtype == x.dtype for tensor in tensors)

    return trial.line_where(seen, mixer, x.clone())


@torch.no_grad()
def finite(trial: Trial) -> bool:
    for x in trial.inputs(2):
        for spread in SPREADS:
            mixer, given = trial.mixer().float(), (spread * x).float()
            for autocast in (False, True):
                with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                    _finite(trial, mixer, given, None, f"for numbers as large as {spread * x.abs().max():.2g}")
    return True


@torch.no_grad()
def empty(trial: Trial) -> bool:
    if not (trial.masked and trial.kind.maskable):
        return False
    for x in trial.inputs(1):
        _finite(trial, trial.mixer(), x, torch.zeros(x.shape[:2], dtype=torch.bool), "where all is padding")
    return True


def _finite(trial: Trial, mixer: Mixer, x: Tensor, mask: Tensor | None, when: str) -> None:
    if mixer(x.clone(), mask).isfinite().all():
        return
    line = None
    for strict in (True, False):  # minus infinity is a common intermediate result; NaN never is
        line = line or _first_not_finite(trial, mixer, x, mask, strict)
    raise Broken(f"NaN or infinity comes out {when}", line=line)


def _first_not_finite(trial: Trial, mixer: Mixer, x: Tensor, mask: Tensor | None, only_nan: bool) -> Line | None:
    def bad(value: object) -> bool:
        if not isinstance(value, Tensor) or not value.is_floating_point():
            return False
        return bool(value.isnan().any() if only_nan else not value.isfinite().all())

    def seen(_func: object, arguments: list[object], result: object) -> bool:
        return bad(result) and not any(map(bad, arguments))

    return trial.line_where(seen, mixer, x.clone(), mask)


@torch.no_grad()
def unchanged(trial: Trial) -> bool:
    for x in trial.inputs(1):
        given = x.clone()
        trial.mixer()(given)
        if not torch.equal(given, x):
            hint = "an operation in place, as x += ... or x.mul_(...)"
            raise Broken("the numbers of x are others after the call", hint, _first_change(trial, x.clone()))
    return True


def _first_change(trial: Trial, x: Tensor) -> Line | None:
    """The first line after which x has been changed."""
    return trial.line_where(lambda *_: x._version > 0, trial.mixer(), x)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
