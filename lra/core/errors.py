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
    """Return a clause that names the nearest known name, or lists the known names when none is near.

    A dotted name is near to a known one if their last parts are alike, or if it is the end of the known one. Known
    names with the same parent are listed before others.
    """
    known = sorted(set(known))
    parent, _, last = name.rpartition(".")
    siblings = [key for key in known if key.rpartition(".")[0] == parent]
    ends = [key for key in known if key.endswith(f".{name}")]
    near = [
        key
        for key in get_close_matches(name, known, n=len(known) or 1, cutoff=0.55)
        if get_close_matches(last, [key.rpartition(".")[2]], cutoff=0.55 if key in siblings else 0.75)
    ]
    if ends or near:
        return f"did you mean {' or '.join(map(repr, ends or near[:1]))}?"
    known = siblings or [key for key in known if "." not in key] or known
    return f"known: {', '.join(known)}" if known else "none is known"
