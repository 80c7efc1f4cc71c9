"""Numbers in Markdown that come from records: `<!--{NAME}-->36.09<!--{}-->`, where lra.report.quantities says what a
NAME stands for.

The comments do not show in a rendered page, but a line that begins with one would be taken for HTML, so none may.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from lra.core.errors import UserError, printable
from lra.core.files import read_regular, write_atomic
from lra.report.quantities import Quantities

PLACE = re.compile(r"<!--\{(?P<name>[^{}\n]+)\}-->(?P<number>[^\n]*?)<!--\{\}-->")
MARK = re.compile(r"<!--\{")
TEXT_BYTES = 2**24  # the most that a page may have


@dataclass(frozen=True)
class Number:
    """A placeholder: its line, its name, what stands in it and what the records say, or why they say nothing."""

    line: int
    name: str
    stands: str
    says: str | None
    fault: str = ""


def read_page(path: Path) -> str:
    """A text that somebody wrote. Raises UserError."""
    try:
        return read_regular(path, TEXT_BYTES, follow=True).decode()
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: not a readable text: {error}") from None


def mismatches(path: Path, quantities: Quantities) -> Iterator[str]:
    """A line for every number in `path` that is not what the records say. Raises UserError."""
    text = read_page(path)
    for place, line in enumerate(text.splitlines(), start=1):
        yield from (f"{path}:{place}: {fault}" for fault in _form(line))
    for number in _numbers(text, quantities):
        where = f"{path}:{number.line}: {number.name}"
        if number.says is None:
            yield f"{where}: {number.fault}"
        elif number.says != number.stands:
            yield f"{where}: {number.stands!r} stands there, the records say {number.says!r}; --fill writes it"


def fill(path: Path, quantities: Quantities) -> int:
    """Write every number in `path` as the records say; returns how many there are.

    Raises UserError, and writes nothing, where a placeholder names nothing.
    """
    text = read_page(path)
    numbers = list(_numbers(text, quantities))
    faults = [f"{path}:{number.line}: {number.name}: {number.fault}" for number in numbers if number.says is None]
    faults += [f"{path}:{place}: {fault}" for place, line in enumerate(text.splitlines(), 1) for fault in _form(line)]
    if faults:
        raise UserError("; ".join(faults))
    says = iter(numbers)
    filled = PLACE.sub(lambda place: f"<!--{{{place['name']}}}-->{next(says).says}<!--{{}}-->", text)
    if filled != text:
        write_atomic(path, filled.encode())
    return len(numbers)


def _numbers(text: str, quantities: Quantities) -> Iterator[Number]:
    for line, content in enumerate(text.split("\n"), start=1):
        for place in PLACE.finditer(content):
            try:
                yield Number(line, place["name"], place["number"], quantities.text(place["name"]))
            except UserError as error:
                yield Number(line, place["name"], place["number"], None, printable(str(error)))


def _form(line: str) -> Iterator[str]:
    """What is wrong with the comments of a line."""
    if line.lstrip().startswith("<!--{"):
        yield "a line must not begin with a placeholder, or Markdown takes it for HTML; put a word before it"
    if len(MARK.findall(line)) != 2 * len(PLACE.findall(line)):
        yield "expected <!--{NAME}-->NUMBER<!--{}--> in one line, found one that is not closed"
