"""Laws of weights: registered, counted and loaded."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from lra.core.console import plural
from lra.laws.trial import SEED, Broken, Trial
from lra.ops.dropout import Keyed

REGISTERS = ("_parameters", "_buffers", "_modules")


def registered(trial: Trial) -> bool:
    mixer = trial.build()
    trial.case = "as it is made"
    for module in mixer.modules():
        attributes = {} if isinstance(module, Keyed) else vars(module)
        for name, value in attributes.items():
            if name in REGISTERS:
                continue
            hidden = next(_hidden(value), None)
            if hidden is not None:
                instead = "nn.ModuleList or nn.ModuleDict" if hidden == "module" else "nn.Parameter or register_buffer"
                raise Broken(
                    f"self.{name} holds a {hidden} that training, saving and devices do not see",
                    f"use {instead}",
                )
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


def as_declared(trial: Trial) -> bool:
    for bias in (False, True):
        for out_proj in (False, True) if trial.kind.projects_out else (True,):
            mixer = trial.mixer(bias=bias, out_proj=out_proj)
            trial.case = f"bias={bias}, out_proj={out_proj}"
            there = sum(parameter.numel() for parameter in mixer.parameters())
            declared = mixer.shape.projections + mixer.extra_parameters
            if there != declared:
                raise Broken(
                    f"{plural(there, 'weight')}, but {declared} declared: {mixer.shape.projections} of the "
                    f"projections and {mixer.extra_parameters} by extra_parameters"
                )
    return True


@torch.no_grad()
def loaded(trial: Trial) -> bool:
    for x in trial.inputs(1):
        source, target = trial.mixer(), trial.mixer(seed=SEED + 1)
        target.load_state_dict(source.state_dict())
        if difference := trial.difference(source(x.clone()), target(x.clone())):
            raise Broken(
                f"after load_state_dict another mixer's outputs differ by {difference:.2g}",
                "something that is drawn when the mixer is made is no nn.Parameter and no buffer",
            )
    return True
