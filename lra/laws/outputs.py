"""Laws of weights and outputs: registered, finite, of the right shape, type and device."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from lra.laws.trial import SEED, Broken, Trial, where
from lra.ops.dropout import Keyed
from lra.ops.mixer import Mixer
from lra.ops.precision import autocast_dtype

SPREADS = (0.0, 10.0)
REGISTERS = ("_parameters", "_buffers", "_modules")


def start(trial: Trial) -> bool:
    trial.case = "when it is made"
    for name, value in trial.build().state_dict().items():
        if not value.isfinite().all():
            raise Broken(f"{name} holds NaN or infinity", "torch.empty without an initialisation, or a division by 0")
    return True


def registered(trial: Trial) -> bool:
    trial.case = "when it is made"
    for module in trial.build().modules():
        attributes = {} if isinstance(module, Keyed) else vars(module)
        for name, value in attributes.items():
            hidden = None if name in REGISTERS else next(_hidden(value), None)
            if hidden is not None:
                instead = "nn.ModuleList or nn.ModuleDict" if hidden == "module" else "nn.Parameter or register_buffer"
                message = f"self.{name} holds a {hidden} that training, saving and devices do not see"
                raise Broken(message, f"use {instead}")
    return True


def _hidden(value: object) -> Iterator[str]:
    """Yield the kinds of values in an attribute that torch does not register."""
    if isinstance(value, Tensor):
        yield "tensor"
    elif isinstance(value, nn.Module):
        yield "module"
    elif isinstance(value, dict | list | tuple | set):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _hidden(item)


@torch.no_grad()
def loaded(trial: Trial) -> bool:
    for x in trial.inputs(1):
        source, target = trial.mixer(), trial.mixer(seed=SEED + 1)
        target.load_state_dict(source.state_dict())
        if difference := trial.difference(source(x.clone()), target(x.clone())):
            raise Broken(
                f"after load_state_dict another mixer's outputs differ by {difference:.2g}",
                "a tensor that the constructor draws is neither a parameter nor a buffer",
            )
    return True


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
            if y.dtype not in allowed:
                raise Broken(f"{_name(y.dtype)} comes out of {_name(kind)}{' under autocast' * autocast}")
    return True


@torch.no_grad()
def device(trial: Trial) -> bool:
    """Run on the meta device, which needs no accelerator; a mixer that reads numbers cannot run there."""
    hint = "give device=x.device where a tensor is made"
    for causal in (False, True) if trial.make and trial.kind.can_be_causal else (None,):
        for x in trial.inputs(1):
            mixer = (trial.mixer() if causal is None else trial.mixer(causal=causal, dropout=0.0)).to("meta")
            mask = torch.ones(x.shape[:2], dtype=torch.bool, device="meta") if trial.masked and mixer.maskable else None
            try:
                y = mixer(x.to("meta"), mask)
            except (RuntimeError, NotImplementedError) as error:
                if "on device" not in str(error):
                    return False
                raise Broken(f"a tensor of the CPU meets one of another device{where(error)}", hint) from error
            if isinstance(y, Tensor) and not y.is_meta:
                raise Broken("outputs are on the CPU, whatever the device of x", hint)
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
