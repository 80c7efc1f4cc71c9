"""Run all checks on one attention and format the lines that `lra-check` prints."""

from collections.abc import Callable
from typing import Annotated, Any

from pydantic import Field, PositiveInt
from pydantic.dataclasses import dataclass

from lra.checks.run import CHECKS, CheckResult, run_checks
from lra.checks.subject import Subject, config_of
from lra.config import configure
from lra.config.values import STRICT
from lra.core.console import plural
from lra.mixers.base import Mixer, MixerConfig

WORDS = {"passed": "PASS", "failed": "FAIL", "skipped": "----"}


@dataclass(frozen=True, kw_only=True, config=STRICT)
class CheckSettings:
    """Validated settings of `lra-check`: the keys of `conf/check.yaml` that apply to one mixer."""

    attention: dict[str, Any]
    model: dict[str, Any]
    lengths: Annotated[list[PositiveInt], Field(min_length=1)]


def maker(settings: CheckSettings) -> Callable[[MixerConfig], Mixer]:
    """Return a function that constructs the configured attention from a MixerConfig."""
    return configure.build(settings.attention, "attention", supplied=1, kind=Mixer)


def examine(
    name: str, make: Callable[[MixerConfig], Mixer], settings: CheckSettings, tell: Callable[[str], object]
) -> list[CheckResult]:
    """Run the checks on an attention and return the results; `tell` receives each line to print."""
    config = config_of(settings.model, max(settings.lengths))
    subject = Subject(make, config, lengths=tuple(sorted(settings.lengths)))
    with configure.blamed("attention", settings.attention):
        mixer = make(config)
    tell(f"{name}: {type(mixer).__name__}, width {config.dim}, {config.heads} heads")
    results = []
    for result in run_checks(subject):
        results.append(result)
        tell(f"{WORDS[result.verdict]}  {result.check.name:10} {result.check.claim}")
        if result.verdict == "failed":
            tell(f"{'':17}{result.case}: {result.evidence}" if result.case else f"{'':17}{result.evidence}")
        if result.hint:
            tell(f"{'':17}hint: {result.hint}")
    weights = sum(weight.numel() for weight in mixer.parameters())
    tell(f"      {'parameters':10} {weights:,}")
    failed = [result.check.name for result in results if result.verdict == "failed"]
    if not_run := len(CHECKS) - len(results):
        tell(f"failed: {failed[-1]}; {plural(not_run, 'check')} not run until it is fixed")
    else:
        tell(f"failed: {', '.join(failed)}" if failed else "all checks passed")
    return results
