"""Correctness checks of mixers (laws), run on a few short documents.

`lra-check` runs all of them, the tests hold the mixers of this package to them, and the quick ones run before a
training run with a mixer of the user, since a mixer that breaks them trains silently and its scores mean nothing.
"""

import copy
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from lra.config.configure import FULL_ERROR, first_line
from lra.core.console import plural, say
from lra.core.errors import UserError
from lra.laws.gradients import differences, graph
from lra.laws.independence import causality, cuts, length, order, padding, rows
from lra.laws.outputs import dtype, empty, finite, shape, unchanged
from lra.laws.repeats import noise, state
from lra.laws.trial import Broken, Trial, trained, values
from lra.laws.weights import as_declared, loaded, registered
from lra.ops.mixer import Mixer, Shape

POSITIONS = 13
LRA = Path(__file__).parents[1]


@dataclass(frozen=True)
class Law:
    """A law of mixers.

    Args:
        name: for `lra-check`.
        says: the law as a clause.
        check: returns True if the law applies, and raises Broken.
        quick: also checked before runs.
    """

    name: str
    says: str
    check: Callable[[Trial], bool]
    quick: bool = True


LAWS = (
    Law("weights", "all tensors that a mixer keeps are registered, as weights or buffers", registered),
    Law("count", "there are as many weights as extra_parameters says", as_declared, quick=False),
    Law("shape", "outputs have the shape of the input", shape),
    Law("dtype", "outputs have the type of the input, or that of autocast", dtype),
    Law("finite", "outputs are finite", finite),
    Law("empty", "outputs are finite where all is padding", empty, quick=False),
    Law("input", "the input is not changed", unchanged),
    Law("state", "no call leaves a trace in the next", state),
    Law("noise", "all noise comes from lra.ops.dropout, and none in evaluation", noise),
    Law("rows", "an output depends on its own document alone", rows),
    Law("cuts", "a cut of a training batch changes nothing, noise included", cuts),
    Law("padding", "an output does not depend on what stands in padding", padding),
    Law("length", "an output does not depend on how much padding there is", length),
    Law("causality", "in the causal form an output depends on no later position", causality),
    Law("order", "it commutes with permutations, where it says so", order, quick=False),
    Law("graph", "gradients reach the input and every weight that is used", graph),
    Law("gradient", "gradients are those of finite differences", differences, quick=False),
    Law("loading", "saved weights give the same outputs in another mixer", loaded, quick=False),
)


@dataclass(frozen=True)
class Finding:
    """The verdict on a law; for a broken one the smallest inputs, the evidence and a hint."""

    law: Law
    verdict: Literal["kept", "broken", "silent"]
    case: str = ""
    evidence: str = ""
    hint: str = ""
    crashed: bool = False


def findings(trial: Trial, laws: tuple[Law, ...] = LAWS) -> Iterator[Finding]:
    """Yield the verdict on each law, without drawing from global generators or changing a mixer of the caller."""
    for law in laws:
        with torch.random.fork_rng(devices=[]):
            yield _tried(law, trial)


def _tried(law: Law, trial: Trial) -> Finding:
    trial.case = ""
    try:
        return Finding(law, "kept" if law.check(trial) else "silent")
    except Broken as broken:
        return Finding(law, "broken", trial.case, str(broken), broken.hint)
    except Exception as error:
        crashed = not isinstance(error, UserError)
        evidence = f"{type(error).__name__}: {first_line(error)}{_where(error)}" if crashed else str(error)
        return Finding(law, "broken", trial.case, evidence, crashed=crashed)


def _where(error: Exception) -> str:
    """The innermost line of the traceback that is neither ours nor an installed package's, in brackets."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not _installed(Path(frame.filename))]
    return f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""


def _installed(path: Path) -> bool:
    return "site-packages" in path.parts or path.is_relative_to(LRA)


def before_a_run(mixer: Mixer, *, masked: bool, device: str) -> list[str]:
    """Return the quick laws that the mixer of a model keeps; a mixer of this package is not checked.

    Laws that cannot be checked, for example because the mixer needs one length or an accelerator, are reported in one
    line per error.

    Args:
        mixer: of the model; it is not changed.
        masked: the model masks padding.
        device: of the run.

    Raises:
        UserError: a law is broken, or the mixer cannot compute on `device`.
    """
    if type(mixer).__module__.split(".")[0] == "lra":
        return []
    name, kept = type(mixer).__name__, []
    crashes: dict[str, list[Finding]] = {}
    trial = Trial(lambda: copy.deepcopy(mixer), lengths=(min(POSITIONS, mixer.shape.max_positions),), masked=masked)
    for finding in findings(trial, tuple(law for law in LAWS if law.quick)):
        if finding.crashed:
            if not crashes:
                _refuse_what_cannot_compute(mixer, masked, device)
            crashes.setdefault(finding.evidence, []).append(finding)
        elif finding.verdict == "broken":
            raise UserError(
                f"{name} breaks a law of mixers: {finding.law.says} ({finding.case}: {finding.evidence}); "
                "lra-check tells more"
            )
        elif finding.verdict == "kept":
            kept.append(finding.law.says)
    for message, (first, *others) in crashes.items():
        more = f", and {plural(len(others), 'law')} more" if others else ""
        say(f"{name}: not tried whether {first.law.says}{more}: {message}")
    return kept


def _refuse_what_cannot_compute(mixer: Mixer, masked: bool, device: str) -> None:
    """Raise UserError if a forward pass in training fails on documents of the model's own length."""
    mixer = trained(copy.deepcopy(mixer).to(device), [0])
    x = values(1, mixer.shape.max_positions, mixer.shape.dim).float().to(device)
    mask = torch.ones(x.shape[:2], dtype=torch.bool, device=device) if masked and mixer.maskable else None
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            mixer(x, mask)
    except UserError:
        return  # it is a law that says so
    except Exception as error:
        raise UserError(
            f"{type(mixer).__name__} cannot compute: {type(error).__name__}: {first_line(error)}{_where(error)}; "
            f"{FULL_ERROR}"
        ) from error


def trial_of(
    make: Callable[[Shape], Mixer],
    shape: Shape,
    *,
    lengths: tuple[int, ...] = (1, 2, 3, 5, 8, POSITIONS),
    tolerance: float = 1e-5,
) -> Trial:
    """Return the trial of the mixers that `make` constructs, at these lengths."""
    return Trial(lambda: make(shape), lengths=lengths, masked=True, make=make, shape=shape, tolerance=tolerance)
