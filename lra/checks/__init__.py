"""Correctness checks of mixers (laws), run on a few short documents.

`lra-check` runs all of them, the tests hold the mixers of this package to them, and the quick ones run before a
training run with a mixer of the user, since a mixer that breaks them trains silently and its scores mean nothing.
"""

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import torch

from lra.checks import properties
from lra.checks.trial import Broken, Trial, trained, values, where
from lra.config.configure import FULL_ERROR, first_line
from lra.core.console import plural, say
from lra.core.errors import UserError
from lra.mixers.base import Mixer

POSITIONS = 13


@dataclass(frozen=True)
class Law:
    """A law of mixers."""

    name: str
    says: str  # the law as a clause
    check: Callable[[Trial], None]  # raises Broken
    quick: bool = True  # also checked before runs
    first: bool = False  # no law after it is checked if it is broken


LAWS = (
    Law("weights", "all tensors that a mixer keeps are registered, as weights or buffers", properties.registered),
    Law(
        "shape",
        "outputs have the shape and the type of the input or of autocast",
        properties.shape,
        first=True,
    ),
    Law("device", "tensors are made on the device of the input", properties.device, quick=False),
    Law("finite", "outputs are finite, also where all is padding", properties.finite, first=True),
    Law("input", "the input is not changed", properties.unchanged, first=True),
    Law("state", "no state is kept between calls", properties.state, first=True),
    Law("noise", "all noise comes from lra.ops.dropout, and none in evaluation", properties.noise, first=True),
    Law("rows", "an output depends on its own document alone", properties.rows, first=True),
    Law("cuts", "a cut of a training batch changes nothing, noise included", properties.cuts),
    Law("padding", "an output does not depend on padding", properties.padding),
    Law("causality", "in the causal form an output depends on no later position", properties.causality),
    Law("order", "it commutes with permutations, where it says so", properties.order, quick=False),
    Law("graph", "gradients reach the input and every weight that is used", properties.graph, first=True),
    Law("gradient", "gradients are those of finite differences", properties.differences, quick=False),
    Law("loading", "saved weights give the same outputs in another mixer", properties.loaded),
    Law("checkpointing", "gradients are the same under activation checkpointing", properties.recomputed, quick=False),
)


@dataclass(frozen=True)
class Finding:
    """The verdict on a law, silent if it does not apply; for a broken one the smallest inputs, evidence and a hint."""

    law: Law
    verdict: Literal["kept", "broken", "silent"]
    case: str = ""
    evidence: str = ""
    hint: str = ""
    crashed: bool = False

    @property
    def last(self) -> bool:
        """True if no further laws are checked: one cause would break most of them."""
        return self.crashed or (self.law.first and self.verdict == "broken")


def findings(trial: Trial, laws: tuple[Law, ...] = LAWS) -> Iterator[Finding]:
    """Yield the verdict on each law up to the first that stops the others; torch's global generator is not changed."""
    for law in laws:
        trial.case = trial.note = ""
        with torch.random.fork_rng(devices=[]):
            finding = _checked(law, trial)
        yield finding
        if finding.last:
            return


def _checked(law: Law, trial: Trial) -> Finding:
    try:
        law.check(trial)
    except Broken as broken:
        return Finding(law, "broken", trial.case, str(broken), broken.hint)
    except UserError as error:
        return Finding(law, "broken", trial.case, str(error))
    except Exception as error:
        return Finding(law, "broken", trial.case, _one_line(error), crashed=True)
    return Finding(law, "kept" if trial.case else "silent", hint=trial.note)


def _one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {first_line(error)}{where(error)}"


def before_a_run(mixer: Mixer, *, masked: bool, device: str) -> list[str]:
    """Return the quick laws that the mixer of a model keeps; a mixer of this package is not checked.

    If the mixer fails on short documents, for example because it takes one length alone, one line says so.

    Raises:
        UserError: a law is broken, or the mixer cannot compute on `device`.
    """
    if type(mixer).__module__.split(".")[0] == "lra":
        return []
    name, kept = type(mixer).__name__, []
    laws = tuple(law for law in LAWS if law.quick)
    length = min(POSITIONS, mixer.shape.max_positions)
    trial = Trial(lambda shape: copy.deepcopy(mixer), mixer.shape, lengths=(length,), masked=masked)
    for number, finding in enumerate(findings(trial, laws), start=1):
        if finding.crashed:
            _check_computes(mixer, masked, device)
            more = f", and {plural(len(laws) - number, 'law')} more" if number < len(laws) else ""
            say(f"{name}: not checked whether {finding.law.says}{more}: {finding.evidence}")
        elif finding.verdict == "broken":
            raise UserError(
                f"{name} fails a check: {finding.law.says} ({finding.case}: {finding.evidence}); see lra-check"
            )
        elif finding.verdict == "kept":
            kept.append(finding.law.says)
    return kept


def _check_computes(mixer: Mixer, masked: bool, device: str) -> None:
    """Raise UserError if a forward pass in training fails on documents of the model's own length."""
    mixer = trained(copy.deepcopy(mixer).to(device), [0])
    x = values(1, mixer.shape.max_positions, mixer.shape.dim).float().to(device)
    mask = torch.ones(x.shape[:2], dtype=torch.bool, device=device) if masked and mixer.maskable else None
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            mixer(x, mask)
    except UserError:
        return  # a law reports it
    except Exception as error:
        raise UserError(f"{type(mixer).__name__} cannot compute: {_one_line(error)}; {FULL_ERROR}") from error
