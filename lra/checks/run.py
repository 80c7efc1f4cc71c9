"""Run the correctness checks of mixers on a few short documents.

`lra-check` runs all of them, and the tests run them on the mixers of this package. The quick ones also run before a
user's mixer is trained, since a mixer that fails them may train without an error but give meaningless scores.
"""

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import torch

from lra.checks import properties
from lra.checks.subject import CheckFailed, Subject, trained, values, where
from lra.config.configure import FULL_ERROR, first_line
from lra.core.console import plural, say
from lra.core.errors import UserError
from lra.mixers.base import Mixer

POSITIONS = 13  # maximum length of the documents in quick checks


@dataclass(frozen=True)
class Check:
    """A property that every mixer must have."""

    name: str
    claim: str  # the property as a clause
    test: Callable[[Subject], None]  # raises CheckFailed if the property does not hold
    quick: bool = True  # True: the check also runs before training
    first: bool = False  # if it fails, the checks after it do not run


CHECKS = (
    Check(
        "weights", "all tensors in attributes of a mixer are registered as parameters or buffers", properties.registered
    ),
    Check("shape", "outputs have the input's shape, and its type or that of autocast", properties.shape, first=True),
    Check("device", "tensors are made on the device of the input", properties.device, quick=False),
    Check("finite", "outputs are finite, also if all positions are padding", properties.finite, first=True),
    Check("input", "the input is not changed", properties.unchanged, first=True),
    Check("state", "no state is kept between calls", properties.state, first=True),
    Check("noise", "all noise comes from lra.ops.dropout, and evaluation has no noise", properties.noise, first=True),
    Check("rows", "an output depends on its own document alone", properties.rows, first=True),
    Check("cuts", "cutting a training batch into parts changes no output, noise included", properties.cuts),
    Check("padding", "an output does not depend on padding", properties.padding),
    Check("causality", "in the causal form an output depends on no later position", properties.causality),
    Check(
        "order",
        "a mixer with commutes = True commutes with permutations of the positions",
        properties.order,
        quick=False,
    ),
    Check("graph", "gradients reach the input and every weight that is used", properties.graph, first=True),
    Check("gradient", "gradients agree with finite differences", properties.differences, quick=False),
    Check("loading", "saved weights give the same outputs in another mixer", properties.loaded),
    Check("checkpointing", "gradients are the same under activation checkpointing", properties.recomputed, quick=False),
)


@dataclass(frozen=True)
class CheckResult:
    """Result of a check; the verdict is `skipped` if the check does not apply to the mixer.

    Attributes:
        case: description of the smallest inputs that fail.
        evidence: what the check found with these inputs.
        hint: likely cause or remedy; for a check that passed, advice on the mixer.
        crashed: True if the mixer raised an error.
    """

    check: Check
    verdict: Literal["passed", "failed", "skipped"]
    case: str = ""
    evidence: str = ""
    hint: str = ""
    crashed: bool = False

    @property
    def last(self) -> bool:
        """True if no further checks run, because most of them would fail for the same reason."""
        return self.crashed or (self.check.first and self.verdict == "failed")


def run_checks(subject: Subject, checks: tuple[Check, ...] = CHECKS) -> Iterator[CheckResult]:
    """Yield the results of `checks`, up to the first one that is `last`; torch's global generator is not changed."""
    for check in checks:
        subject.case = subject.note = ""
        with torch.random.fork_rng(devices=[]):  # a check must not change the random numbers of the run after it
            try:
                check.test(subject)
                result = CheckResult(check, "passed" if subject.case else "skipped", hint=subject.note)
            except CheckFailed as failure:
                result = CheckResult(check, "failed", subject.case, str(failure), failure.hint)
            except UserError as error:
                result = CheckResult(check, "failed", subject.case, str(error))
            except Exception as error:
                result = CheckResult(check, "failed", subject.case, _one_line(error), crashed=True)
        yield result
        if result.last:
            return


def _one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {first_line(error)}{where(error)}"


def check_before_run(mixer: Mixer, *, masked: bool, device: str) -> list[str]:
    """Run the quick checks on a user's mixer and return the claims of those that pass; built-in mixers are not checked.

    If the mixer raises an error on short documents, for example because it accepts only one length, a warning says
    which property was not checked and how many further checks did not run.

    Raises:
        UserError: if a check fails, or the mixer cannot compute on `device`.
    """
    if type(mixer).__module__.split(".")[0] == "lra":
        return []
    name, passed = type(mixer).__name__, []
    checks = tuple(check for check in CHECKS if check.quick)
    length = min(POSITIONS, mixer.config.max_positions)
    subject = Subject(lambda config: copy.deepcopy(mixer), mixer.config, lengths=(length,), masked=masked)
    for number, result in enumerate(run_checks(subject, checks), start=1):
        claim = result.check.claim
        if result.crashed:
            _check_computes(mixer, masked, device)
            more = f"; {plural(len(checks) - number, 'further check')} did not run" if number < len(checks) else ""
            say(f"{name}: not checked whether {claim}{more}: {result.evidence}")
        elif result.verdict == "failed":
            raise UserError(f"{name} fails a check: {claim} ({result.case}: {result.evidence}); see lra-check")
        elif result.verdict == "passed":
            passed.append(claim)
    return passed


def _check_computes(mixer: Mixer, masked: bool, device: str) -> None:
    """Raise UserError if a forward pass in training mode fails on a document of the model's maximum length."""
    mixer = trained(copy.deepcopy(mixer).to(device), [0])
    x = values(1, mixer.config.max_positions, mixer.config.dim).float().to(device)
    mask = torch.ones(x.shape[:2], dtype=torch.bool, device=device) if masked and mixer.maskable else None
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            mixer(x, mask)
    except UserError:
        return  # the checks report UserErrors themselves
    except Exception as error:
        raise UserError(f"{type(mixer).__name__} cannot compute: {_one_line(error)}; {FULL_ERROR}") from error
