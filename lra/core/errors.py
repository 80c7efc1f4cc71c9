"""User errors: one-line messages that name the key or file, what was expected, what was found, and the remedy."""

from collections.abc import Iterable
from difflib import get_close_matches

FAILED, CONFIG_ERROR, INTERRUPTED = 1, 2, 130  # exit codes: a failed run, a user's mistake, Ctrl-C outside training


class UserError(Exception):
    """Mistake in the configuration or the data, shown as one line without a traceback (exit code 2)."""

    def __str__(self) -> str:
        return printable(super().__str__())


def printable(text: str) -> str:
    r"""Return a text with control characters and unpaired surrogates escaped as in Python: `\n`, `\x1b`, `\ud800`."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a clause that suggests the known name most similar to `name`, or lists known names if none is similar."""
    known = sorted(set(known))  # so that the message does not depend on the order of a set or a file
    parent, _, last = name.rpartition(".")
    siblings = [key for key in known if key.rpartition(".")[0] == parent]
    near = [key for key in known if key.endswith(f".{name}")]  # the user omitted the section: `lr` for `train.lr`
    if not near and parent and siblings:  # compare only the last parts, because all keys of a section begin alike
        names = [key.rpartition(".")[2] for key in siblings]
        near = [f"{parent}.{match}" for match in get_close_matches(last, names, n=1)]
    elif not near:
        near = get_close_matches(name, known, n=1)
    top = [key for key in known if "." not in key]
    return f"did you mean {near[0]!r}?" if near else f"known: {', '.join(siblings or top or known)}"
