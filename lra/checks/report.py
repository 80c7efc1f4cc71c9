"""All checks of one attention, and the lines that `lra-check` prints."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field, PositiveInt

import lra.checks as laws
from lra.checks import Finding
from lra.checks.trial import Trial, shape_of
from lra.config import configure
from lra.core.console import plural
from lra.mixers.base import Mixer, Shape

WORDS = {"kept": "PASS", "broken": "FAIL", "silent": "----"}


@dataclass(frozen=True, kw_only=True)
class CheckSettings:
    """The checked configuration; the fields are the keys of `conf/check.yaml` that matter for one mixer."""

    attention: dict[str, Any]
    model: dict[str, Any]
    lengths: Annotated[list[PositiveInt], Field(min_length=1)]
    packages: list[str]


def maker(settings: CheckSettings) -> Callable[[Shape], Mixer]:
    """Return the constructor of the configured mixers."""
    return configure.build(settings.attention, "attention", settings.packages, supplied=1, kind=Mixer)


def examine(
    name: str, make: Callable[[Shape], Mixer], settings: CheckSettings, tell: Callable[[str], object]
) -> list[Finding]:
    """Check the laws and return the findings; `tell` receives each line to print."""
    shape = shape_of(settings.model, max(settings.lengths))
    trial = Trial(make, shape, lengths=tuple(sorted(settings.lengths)))
    with configure.blamed("attention", settings.packages):
        mixer = make(shape)
    tell(f"{name}: {type(mixer).__name__}, width {shape.dim}, {shape.heads} heads")
    findings = []
    for finding in laws.findings(trial):
        tell("\n".join(_lines(finding)))
        findings.append(finding)
    weights = sum(weight.numel() for weight in mixer.parameters())
    tell(f"      {'parameters':10} {weights:,}")
    broken = [finding.law.name for finding in findings if finding.verdict == "broken"]
    if unchecked := len(laws.LAWS) - len(findings):
        tell(f"broken: {broken[-1]}; {plural(unchecked, 'law')} not checked until it is mended")
    else:
        tell(f"broken: {', '.join(broken)}" if broken else "all checks passed")
    return findings


def _lines(finding: Finding) -> list[str]:
    """Lines of a law: its verdict, and the smallest case and a hint below a broken one."""
    lines = [f"{WORDS[finding.verdict]}  {finding.law.name:10} {finding.law.says}"]
    if finding.verdict == "broken":
        lines.append(f"{'':17}{finding.case}: {finding.evidence}" if finding.case else f"{'':17}{finding.evidence}")
    if finding.hint:
        lines.append(f"{'':17}hint: {finding.hint}")
    return lines
