"""lra-check: which laws of mixers an attention keeps, as a list for the person who writes it."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig
from pydantic import Field, PositiveInt

from lra.cli.command import FAILED, command
from lra.config import configure
from lra.core.console import say
from lra.core.errors import UserError

if TYPE_CHECKING:  # torch takes seconds to import; --help and --cfg shall not wait for it
    from lra.laws import Finding
    from lra.laws.trial import Trial
    from lra.ops.mixer import Mixer, Shape

WORDS = {"kept": "PASS", "broken": "FAIL", "silent": "----"}


@dataclass(frozen=True, kw_only=True)
class CheckSettings:
    """The checked configuration; the fields are the keys of `conf/check.yaml` that matter for one mixer."""

    attention: dict[str, Any]
    model: dict[str, Any]
    lengths: Annotated[list[PositiveInt], Field(min_length=1)]
    growth: list[PositiveInt]
    packages: list[str]


def job(cfg: DictConfig) -> None:
    """Try every law, say what becomes of it, and measure. Raises SystemExit where a law is broken."""
    settings = settings_of(cfg)
    name = HydraConfig.get().runtime.choices["attention"]
    findings = examine(name, maker(settings), settings, partial(say, to_stdout=True))
    if any(finding.verdict == "broken" for finding in findings):
        raise SystemExit(FAILED)


def settings_of(cfg: DictConfig) -> CheckSettings:
    """Check names and types of a composed configuration."""
    values = {key: value for key, value in configure.plain(cfg).items() if key in CheckSettings.__dataclass_fields__}
    configure.check(CheckSettings, values, "")
    if len(set(values["growth"])) == 1:
        raise UserError(f"growth={values['growth']}: expected two lengths or more, or none, growth=[], to leave it out")
    return CheckSettings(**values)


def maker(settings: CheckSettings) -> "Callable[[Shape], Mixer]":
    """What makes the mixers that the settings describe."""
    from lra.ops.mixer import Mixer

    return configure.build(settings.attention, "attention", settings.packages, supplied=1, kind=Mixer)


def examine(
    name: str, make: "Callable[[Shape], Mixer]", settings: CheckSettings, tell: Callable[[str], object]
) -> "list[Finding]":
    """What becomes of each law; `tell` hears it in words, and what is measured besides."""
    import lra.laws as laws
    from lra.laws.trial import shape_of

    shape = shape_of(settings.model, max(settings.lengths))
    trial = laws.trial_of(make, shape, lengths=tuple(sorted(settings.lengths)))
    with configure.blamed("attention", settings.packages):
        mixer = trial.build()
    tell(f"{name}: {trial.kind.__name__}, in documents of {shape.dim} numbers a position, {shape.heads} heads")
    findings = []
    for finding in laws.findings(trial):
        tell("\n".join(_lines(finding)))
        findings.append(finding)
    weights = sum(weight.numel() for weight in mixer.parameters())
    tell(f"      {'weights':10} {weights:,}, {mixer.extra_parameters:+,} beside the projections")
    broken = [finding.law.name for finding in findings if finding.verdict == "broken"]
    if settings.growth and not {"shape", "dtype"} & set(broken):
        for line in _growth(settings, trial):
            tell(line)
    names = f"{len(broken)} of {len(laws.LAWS)} laws are broken: {', '.join(broken)}"
    tell(names if broken else "all laws are kept")
    return findings


def _lines(finding: "Finding") -> list[str]:
    """A law and its verdict; below a broken one the smallest case and, where it is known, the line."""
    lines = [f"{WORDS[finding.verdict]}  {finding.law.name:10} {finding.law.says}"]
    if finding.verdict == "broken":
        lines.append(f"{'':17}{finding.case}: {finding.evidence}" if finding.case else f"{'':17}{finding.evidence}")
        hint = ": ".join(filter(None, [str(finding.line or ""), finding.hint]))
        lines += [f"{'':17}hint: {hint}"] if hint else []
    return lines


def _growth(settings: CheckSettings, trial: "Trial") -> list[str]:
    """Memory and time of a training step by length; what is measured breaks no law."""
    from lra.laws.growth import exponent, growth

    try:
        lengths = tuple(sorted(settings.growth))
        kept, seconds = growth(lambda length: trial.mixer(max_positions=length), lengths)
    except Exception as error:
        return [f"      {'memory':10} not measured: {configure.first_line(error)}"]
    most, card = max(kept), trial.build().card
    return [
        f"      {'memory':10} {kept[most] / 2**20:.1f} MiB kept for the backward pass at {most:,} positions, "
        f"as L^{exponent(kept):.2f} (the card says {'linear' if card.linear else 'more than linear'})",
        f"      {'time':10} {1000 * seconds[most]:.1f} ms for forward and backward at {most:,} positions, "
        f"as L^{exponent(seconds):.2f} (the card says O({card.time}))",
    ]


main = command("check", job)
