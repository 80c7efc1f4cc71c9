"""Laws of repetition: equal calls give equal outputs, whatever was drawn or called before."""

import random
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from lra.laws.trial import SEED, Broken, Trial, trained, values
from lra.ops.mixer import Mixer


def _forms(trial: Trial) -> dict[str, Callable[[], Mixer]]:
    """A new mixer in evaluation, and one in training on two documents."""
    return {"in evaluation": trial.mixer, "in training": lambda: trained(trial.mixer(), [0, 1])}


@torch.no_grad()
def state(trial: Trial) -> bool:
    """Compare two equal calls with a call on other numbers in between; global generators are reset."""
    for x in trial.inputs(2):
        for form, fresh in _forms(trial).items():
            mixer = fresh()
            before = _kept(mixer)
            first = _after_seed(SEED, mixer, x)
            changed = [name for name, value in _kept(mixer).items() if _differs(before.get(name), value)]
            _after_seed(SEED, mixer, values(*x.shape, seed=SEED + 1))
            second = _after_seed(SEED, mixer, x)
            if difference := trial.difference(first, second):
                hint = f"a call changes self.{changed[0]}" if changed else ""
                raise Broken(f"{form} the same input gives outputs that differ by {difference:.2g}", hint)
    return True


@torch.no_grad()
def noise(trial: Trial) -> bool:
    """Compare two equal calls after different seeds of the global generators."""
    for x in trial.inputs(2):
        for form, fresh in _forms(trial).items():
            first, second = (_after_seed(seed, fresh(), x) for seed in (SEED, SEED + 1))
            if difference := trial.difference(first, second):
                raise Broken(
                    f"{form} outputs of the same input differ by {difference:.2g}",
                    "draw with lra.ops.dropout.Dropout, or define draw(self, rng)",
                )
    return True


def _after_seed(seed: int, mixer: Mixer, x: Tensor) -> Tensor:
    """Output computed after seeding torch, numpy and Python, which are restored."""
    kept = random.getstate(), np.random.get_state()
    devices = [x.device] if x.is_cuda else []
    with torch.random.fork_rng(devices=devices):
        for generator in (torch.default_generator, *(torch.cuda.default_generators[x.device.index] for _ in devices)):
            generator.manual_seed(seed)
        np.random.seed(seed)
        random.seed(seed)
        try:
            return mixer(x.clone())
        finally:
            random.setstate(kept[0])
            np.random.set_state(kept[1])


def _kept(mixer: Mixer) -> dict[str, object]:
    """Weights, buffers and plain attributes of the mixer by name."""
    plain = {name: value for name, value in vars(mixer).items() if not name.startswith("_")}
    tensors = {**plain, **mixer.state_dict(keep_vars=True), **dict(mixer.named_buffers())}
    return {name: value.clone() if isinstance(value, Tensor) else value for name, value in tensors.items()}


def _differs(before: object, after: object) -> bool:
    if isinstance(before, Tensor) and isinstance(after, Tensor):
        return before.shape != after.shape or not torch.equal(before, after)
    return before is not after and not (isinstance(after, int | float | str | bool) and before == after)
