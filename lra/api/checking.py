"""The laws of mixers from Python: `lra-check`."""

from collections.abc import Callable
from dataclasses import dataclass

from lra.api.configuration import inside
from lra.attention import Mixer, Shape
from lra.cli.check import examine, maker, settings_of
from lra.laws import Finding


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


def check(attention: str | Callable[[Shape], Mixer], *overrides: str) -> Checkup:
    """Try every law on an attention, a name as in `lra-check attention=NAME` or a subclass of `lra.attention.Mixer`.

    `overrides`: as on the command line; `growth=[]` leaves out how time and memory grow, which takes seconds. Raises
    UserError where the mixer cannot be made.
    """
    words = (f"attention={attention}", *overrides) if isinstance(attention, str) else overrides
    with inside("check", words) as config:
        settings = settings_of(config)
    make = maker(settings) if isinstance(attention, str) else attention
    name = attention if isinstance(attention, str) else getattr(attention, "__name__", "attention")
    lines: list[str] = []
    findings = examine(name, make, settings, lines.append)
    return Checkup(tuple(findings), "\n".join(lines))
