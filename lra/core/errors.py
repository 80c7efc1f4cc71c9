"""Errors for people: one line that says what was expected, what was found, where, and what to do."""

from collections.abc import Iterable
from difflib import get_close_matches

FAILED, CONFIG_ERROR = 1, 2  # exit codes of a failure and of a mistake


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
    parent, _, last = name.rpartition(".")
    siblings = [key for key in known if key.rpartition(".")[0] == parent]
    near = [key for key in known if key.endswith(f".{name}")]
    if not near and parent and siblings:  # a common beginning makes no two keys alike
        names = [key.rpartition(".")[2] for key in siblings]
        near = [f"{parent}.{match}" for match in get_close_matches(last, names, n=1)]
    elif not near:
        near = get_close_matches(name, known, n=1)
    return f"did you mean {near[0]!r}?" if near else f"known: {', '.join(siblings or known)}"
