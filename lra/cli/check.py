"""lra-check: which laws of mixers an attention keeps, as a list for the person who writes it."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig
from pydantic import PositiveInt

from lra.cli.command import FAILED, command
from lra.config import configure
from lra.core.console import say

if TYPE_CHECKING:  # torch takes seconds to import; --help and --cfg shall not wait for it
    from lra.attention import Shape
    from lra.laws import Finding, Trial

WORDS = {"kept": "PASS", "broken": "FAIL", "silent": "----"}


@dataclass(frozen=True, kw_only=True)
class CheckSettings:
    """The checked configuration; the fields are the keys of `conf/check.yaml` that matter for one mixer."""

    attention: dict[str, Any]
    model: dict[str, Any]
    lengths: list[PositiveInt]
    growth: list[PositiveInt]
    packages: list[str]


def job(cfg: DictConfig) -> None:
    """Try every law, say what becomes of it, and measure. Raises SystemExit where a law is broken."""
    values = {key: value for key, value in configure.plain(cfg).items() if key in CheckSettings.__dataclass_fields__}
    configure.check(CheckSettings, values, "")
    settings = CheckSettings(**values)
    from lra import laws
    from lra.attention import Mixer

    make = configure.build(settings.attention, "attention", settings.packages, supplied=1, kind=Mixer)
    shape = _shape(settings)
    trial = laws.trial_of(make, shape, lengths=tuple(sorted(settings.lengths)))
    with configure.blamed("attention", settings.packages):
        mixer = trial.build()
    name = HydraConfig.get().runtime.choices["attention"]
    say(f"{name}: {trial.kind.__name__}, in documents of {shape.dim} numbers a position, {shape.heads} heads", True)
    broken = []
    for finding in laws.findings(trial):
        say("\n".join(_lines(finding)), to_stdout=True)
        if finding.verdict == "broken":
            broken.append(finding.law.name)
    weights = sum(weight.numel() for weight in mixer.parameters())
    say(f"      {'weights':10} {weights:,}, {mixer.extra_parameters:+,} beside the projections", to_stdout=True)
    if settings.growth and not {"shape", "dtype"} & set(broken):
        for line in _growth(settings, trial):
            say(line, to_stdout=True)
    if broken:
        say(f"{len(broken)} of {len(laws.LAWS)} laws are broken: {', '.join(broken)}", to_stdout=True)
        raise SystemExit(FAILED)
    say("all laws are kept", to_stdout=True)


def _shape(settings: CheckSettings) -> "Shape":
    from lra.attention import Shape

    sizes = {key: settings.model[key] for key in ("dim", "qkv_dim", "heads", "dropout", "out_proj")}
    bias = settings.model["attention_bias"]
    return Shape(**sizes, max_positions=max(settings.lengths), bias=bias, causal=False, layer=0)


def _lines(finding: "Finding") -> list[str]:
    """A law and its verdict; below a broken one the smallest case and, where it is known, the line."""
    lines = [f"{WORDS[finding.verdict]}  {finding.law.name:10} {finding.law.says}"]
    if finding.verdict == "broken":
        lines.append(f"{'':17}{finding.case}: {finding.found}" if finding.case else f"{'':17}{finding.found}")
        hint = ": ".join(filter(None, [str(finding.line or ""), finding.hint]))
        lines += [f"{'':17}hint: {hint}"] if hint else []
    return lines


def _growth(settings: CheckSettings, trial: "Trial") -> list[str]:
    """Memory and time of a training step by length; what is measured breaks no law."""
    from lra.laws.growth import exponent, growth

    try:
        lengths = tuple(sorted(settings.growth))
        measured = growth(lambda length: trial.mixer(max_positions=length), lengths)
    except Exception as error:
        return [f"      {'memory':10} not measured: {configure.first_line(error)}"]
    kept, seconds = measured.kept, measured.seconds
    most = max(kept)
    card = "linear" if trial.build().card.linear else "more than linear"
    return [
        f"      {'memory':10} {kept[most] / 2**20:.1f} MiB kept for the backward pass at {most:,} positions, "
        f"as L^{exponent(kept):.2f} (the card says {card})",
        f"      {'time':10} {1000 * seconds[most]:.1f} ms for forward and backward at {most:,} positions, "
        f"as L^{exponent(seconds):.2f} (the card says O({trial.build().card.time}))",
    ]


main = command("check")(job)
