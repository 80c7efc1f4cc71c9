"""Laws that every mixer keeps, tried on a few short documents before a run with a mixer of somebody else's begins.

The tests hold ours to them. A mixer that breaks one trains without a word, and its numbers mean nothing.
"""

import copy

import torch
from torch import Tensor

from lra.attention import Mixer
from lra.core import dropout
from lra.core.console import say
from lra.core.errors import UserError
from lra.model.model import Model

POSITIONS, DOCUMENTS = 13, 3
TOLERANCE = 1e-5  # of the largest output; a mixer may compute in float32


def check(model: Model) -> list[str]:
    """The laws that the model's first mixer was seen to keep; none is tried where it is ours. Nothing of the model
    changes, and nothing is drawn. Raises UserError with the law that it breaks."""
    mixer = model.blocks[0].mixer
    if type(mixer).__module__.split(".")[0] == "lra":
        return []
    name = type(mixer).__name__
    mixer = copy.deepcopy(mixer).double()
    shape = (DOCUMENTS, min(POSITIONS, mixer.shape.max_positions), mixer.shape.dim)
    x = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    kept = []
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        for law, holds in LAWS.items():
            try:
                holding = holds(mixer, x, model.key_mask)
            except Exception as error:  # it may be made for one length alone
                say(f"{name}: not tried whether {law}: {type(error).__name__}: {error}".splitlines()[0])
                continue
            if holding is None:  # it says nothing here
                continue
            if not holding:
                raise UserError(f"{name} breaks a law of mixers: {law} (tried on {shape[1]} positions)")
            kept.append(law)
    return kept


def _rows(mixer: Mixer, x: Tensor, _masked: bool) -> bool:
    return _close(_mixed(mixer.eval(), x)[:1], _mixed(mixer, x[:1]))


def _padding(mixer: Mixer, x: Tensor, masked: bool) -> bool | None:
    if not masked:  # padding takes part
        return None
    length = x.shape[1] // 2
    real = (torch.arange(x.shape[1]) < length).expand(x.shape[:2])
    repadded = torch.where(real[..., None], x, 3 - x)
    before, after = (_mixed(mixer.eval(), padded, real) for padded in (x, repadded))
    return _close(before[:, :length], after[:, :length])


def _noise(mixer: Mixer, x: Tensor, _masked: bool) -> bool:
    mixer.train()
    outputs = []
    for _ in range(2):
        dropout.set_keys(mixer, seed=1, step=0, rows=list(range(len(x))))
        outputs.append(_mixed(mixer, x))
    return _close(*outputs) and _close(_mixed(mixer.eval(), x), _mixed(mixer, x))


LAWS = {
    "all noise comes from lra.core.dropout, and none in evaluation": _noise,
    "an output depends on its own document alone": _rows,
    "an output does not depend on what stands in padding": _padding,
}


def _mixed(mixer: Mixer, x: Tensor, mask: Tensor | None = None) -> Tensor:
    return mixer.mix(x, mask, None)


def _close(a: Tensor, b: Tensor) -> bool:
    return bool((a - b).abs().max() <= TOLERANCE * a.abs().max())
