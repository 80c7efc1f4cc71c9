"""`lra.check`: correctness checks of an attention from Python."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from torch import random

from lra.api.configuration import composed_command, preserved_sys_path
from lra.api.layer import AttentionLayer
from lra.cli.check import CheckSettings, examine, maker, settings_of
from lra.laws import Finding
from lra.ops.mixer import Mixer, Shape


@dataclass(frozen=True)
class Checkup:
    """Results of `check`.

    Args:
        findings: one for each law that was checked, with its `verdict`: kept, broken or silent (does not apply).
        text: output of `lra-check`.
    """

    findings: tuple[Finding, ...]
    text: str

    @property
    def broken(self) -> list[str]:
        """Names of the broken laws."""
        return [finding.law.name for finding in self.findings if finding.verdict == "broken"]

    def __repr__(self) -> str:
        return self.text


@preserved_sys_path()
def check(attention: str | AttentionLayer | Callable[[Shape], Mixer], *overrides: str) -> Checkup:
    """Check an attention against the laws of mixers, as `lra-check` does.

    Args:
        attention: name of an option, layer that `lra.attention` returned, or subclass of `lra.attention.Mixer`.
        overrides: as on the command line.

    Raises:
        UserError: the mixer cannot be made.
    """
    chosen = f"attention={attention}" if isinstance(attention, str) else "variant=transformer"
    with composed_command("check", (chosen, *overrides)) as config:
        settings = settings_of(config)
    name, make = _named(attention, settings)
    lines: list[str] = []
    with random.fork_rng(devices=[]):  # the laws are tried with seeds of their own
        findings = examine(name, make, settings, lines.append)
    return Checkup(tuple(findings), "\n".join(lines))


def _named(
    attention: str | AttentionLayer | Callable[[Shape], Mixer], settings: CheckSettings
) -> tuple[str, Callable[[Shape], Mixer]]:
    """Name of the attention, and a constructor of its mixers."""
    if isinstance(attention, str):
        return attention, maker(settings)
    if isinstance(attention, AttentionLayer):
        return attention.name, partial(type(attention.mixer), **attention.options)
    name = getattr(attention, "__name__", type(attention).__name__)
    return name, attention
