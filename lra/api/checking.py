"""The laws of mixers from Python: `lra-check`."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from inspect import isclass, signature

from torch import nn, random

from lra.api.configuration import composed_command, preserved_sys_path
from lra.api.layer import AttentionLayer
from lra.cli.check import CheckSettings, examine, maker, settings_of
from lra.core.errors import UserError
from lra.laws import Finding
from lra.ops.mixer import Mixer, Shape


@dataclass(frozen=True)
class Checkup:
    """What became of every law. `findings`: one for each, with its `verdict` (kept, broken or silent); `text`: what
    `lra-check` prints."""

    findings: tuple[Finding, ...]
    text: str

    @property
    def broken(self) -> list[str]:
        """The names of the broken laws; empty where all are kept."""
        return [finding.law.name for finding in self.findings if finding.verdict == "broken"]

    def __repr__(self) -> str:
        return self.text


@preserved_sys_path()
def check(attention: str | AttentionLayer | Callable[[Shape], Mixer], *overrides: str) -> Checkup:
    """Try every law on an attention: a name as in `lra-check attention=NAME`, what `lra.attention` returned, or a
    subclass of `lra.attention.Mixer`.

    `overrides`: as on the command line. Raises UserError where the mixer cannot be made.
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
    """Its name, and what makes its mixers."""
    if isinstance(attention, str):
        return attention, maker(settings)
    if isinstance(attention, AttentionLayer):
        return attention.name, partial(type(attention.mixer), **attention.options)
    name = getattr(attention, "__name__", type(attention).__name__)
    if isinstance(attention, nn.Module) or (isclass(attention) and not issubclass(attention, Mixer)):
        raise UserError(f"{name}: expected a name, a subclass of lra.attention.Mixer, or what lra.attention returned")
    try:
        signature(attention).bind("shape")
    except TypeError as error:
        raise UserError(f"{name}: called with a shape: {error}; give its options with functools.partial") from None
    return name, attention
