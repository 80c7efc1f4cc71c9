"""Errors for people: one line that says what was expected, what was found, where, and what to do."""

from collections.abc import Iterable
from difflib import get_close_matches

CONFIG_ERROR = 2  # the exit code of a mistake


class UserError(Exception):
    """A mistake in the configuration or the data; shown as one line, without a traceback (exit code 2)."""

    def __str__(self) -> str:
        return printable(super().__str__())


def printable(text: str) -> str:
    r"""Text that stays in its line and does nothing to a terminal: newlines, other control characters and what has no
    place in UTF-8 stand as in a Python literal, `\n`, `\x1b`, `\ud800`; a text that is printable stays as it is."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A clause that names the nearest known name, or lists the known names when none is near: of dotted ones those
    beside `name`, else those without a dot. The end of a dotted name is near to it; other dotted names are near where
    their last parts are, too, and those of another parent where the last parts are nearly the same."""
    known = sorted(set(known))
    parent, _, last = name.rpartition(".")
    beside = [key for key in known if key.rpartition(".")[0] == parent]
    same = [key for key in known if key.endswith(f".{name}")]
    near = [
        key
        for key in get_close_matches(name, known, n=len(known) or 1, cutoff=0.6)
        if get_close_matches(last, [key.rpartition(".")[2]], cutoff=0.6 if key in beside else 0.75)
    ]
    if same or near:
        return f"did you mean {' or '.join(map(repr, same or near[:1]))}?"
    known = beside or [key for key in known if "." not in key] or known
    return f"known: {', '.join(known)}" if known else "none is known"
