"""Laws of independence: of earlier calls, other documents, cuts of a batch, padding, later positions, the order."""

import random
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from lra.laws.trial import SEED, Broken, Trial, trained, values
from lra.ops.mixer import Mixer


@torch.no_grad()
def rows(trial: Trial) -> bool:
    for x in trial.inputs(2):
        mixer = trial.mixer()
        batch, alone = mixer(x.clone()), mixer(x[:1].clone())
        if difference := trial.difference(alone, batch[:1]):
            message = f"outputs of a document in a batch of two differ by {difference:.2g} from those alone"
            raise Broken(message, "a sum, mean or norm over the first axis")
    return True


@torch.no_grad()
def cuts(trial: Trial) -> bool:
    for x in trial.inputs(3):
        whole, cut = (trained(trial.mixer(), documents) for documents in ([0, 1, 2], [2]))
        in_whole, other = whole(x.clone())[2:], cut(x[2:].clone())
        if difference := trial.difference(in_whole, other):
            raise Broken(f"the outputs of the last document differ by {difference:.2g} where it is a cut of its own")
    return True


@torch.no_grad()
def padding(trial: Trial) -> bool:
    if not (trial.masked and trial.kind.maskable):
        return False
    for x in trial.inputs(1, least=2):
        real, mask = _half(trial, x)
        other = torch.where(mask[..., None], x, 3 - x)
        first, second = (trial.mixer()(given.clone(), mask)[:, :real] for given in (x, other))
        if difference := trial.difference(first, second):
            message = f"other numbers in padding move the outputs of real positions by {difference:.2g}"
            raise Broken(message, "a key_mask that is not used")
    return trial.has_neighbours


@torch.no_grad()
def length(trial: Trial) -> bool:
    if not (trial.masked and trial.kind.maskable):
        return False
    for x in trial.inputs(1, least=2):
        real, mask = _half(trial, x)
        padded, full = trial.mixer()(x.clone(), mask)[:, :real], trial.mixer()(x[:, :real].clone(), mask[:, :real])
        if difference := trial.difference(full, padded):
            message = f"without the padding the outputs of real positions differ by {difference:.2g}"
            raise Broken(message, "a length that counts padding, or a mask that is not used")
        unmasked = trial.mixer()(x[:, :real].clone())
        if difference := trial.difference(full, unmasked):
            raise Broken(f"with a mask that hides nothing the outputs differ by {difference:.2g}")
    return trial.has_neighbours


def _half(trial: Trial, x: Tensor) -> tuple[int, Tensor]:
    """Number of real positions in half-padded inputs, and their mask [1, L]."""
    real = x.shape[1] // 2
    trial.case += f", {x.shape[1] - real} of them padding"
    return real, (torch.arange(x.shape[1]) < real)[None]


@torch.no_grad()
def causality(trial: Trial) -> bool:
    if trial.make is not None and trial.kind.can_be_causal:
        mixer = trial.mixer(causal=True, dropout=0.0)
    elif trial.make is None and trial.build().causal:
        mixer = trial.mixer()
    else:
        return False
    for x in trial.inputs(1, least=2):
        before = mixer(x.clone())
        for later in range(x.shape[1] - 1, 0, -1):
            after = mixer(torch.cat([x[:, :later], 3 - x[:, later:]], dim=1))
            if difference := trial.difference(before[:, :later], after[:, :later]):
                message = f"other numbers from position {later} on move earlier outputs by {difference:.2g}"
                raise Broken(message, "self.causal says which form is wanted")
    return trial.has_neighbours


@torch.no_grad()
def order(trial: Trial) -> bool:
    mixer = trial.mixer()
    if not mixer.commutes:
        return False
    for x in trial.inputs(2, least=2):
        permutation = torch.randperm(x.shape[1], generator=torch.Generator().manual_seed(SEED))
        reordered, other = mixer(x.clone())[:, permutation], mixer(x[:, permutation])
        if difference := trial.difference(reordered, other):
            raise Broken(f"commutes = True, but outputs in another order differ by {difference:.2g}")
    return trial.has_neighbours


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
                message = f"{form} outputs of the same input differ by {difference:.2g}"
                raise Broken(message, "draw with lra.ops.dropout.Dropout, or define draw(self, rng)")
    return True


def _after_seed(seed: int, mixer: Mixer, x: Tensor) -> Tensor:
    """Output computed after seeding torch, numpy and Python, which are restored."""
    kept = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
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
