"""Errors for people: one line that says what was expected, what was found, where, and what to do."""

from collections.abc import Iterable
from difflib import get_close_matches

CONFIG_ERROR = 2  # the exit code of a mistake


class UserError(Exception):
    """Mistake in the configuration or the data, shown as one line without a traceback (exit code 2)."""

    def __str__(self) -> str:
        return printable(super().__str__())


def printable(text: str) -> str:
    r"""Escape control characters and unpaired surrogates as in a Python literal: `\n`, `\x1b`, `\ud800`."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a clause that names the nearest known name, or lists the known names when none is near."""
    known = sorted(set(known))
    near = [key for key in known if key.endswith(f".{name}")] or get_close_matches(name, known, n=1)
    if near:
        return f"did you mean {near[0]!r}?"
    parent = name.rpartition(".")[0]
    siblings = [key for key in known if key.rpartition(".")[0] == parent]
    return f"known: {', '.join(siblings or known)}"
