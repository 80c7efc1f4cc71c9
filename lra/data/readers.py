"""Readers of raw data: lines and rows of plain or compressed files. Errors name file and line."""

import gzip
import lzma
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from lra.core.errors import UserError
from lra.core.files import parse_json


@contextmanager
def opened(path: Path, mode: str = "rb", **options: Any) -> Iterator[IO]:
    """Open a file, plain or compressed (.xz, .gz); an error of reading becomes a UserError with the path."""
    kinds: dict[str, Any] = {".xz": lzma.open, ".gz": gzip.open}
    try:
        with kinds.get(path.suffix.lower(), open)(path, mode, **options) as file:
            yield file
    except (OSError, EOFError, lzma.LZMAError, zlib.error, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not readable: {getattr(error, 'strerror', None) or error}") from None


def contents(path: Path) -> bytes:
    """Read a file, plain or compressed."""
    with opened(path) as file:
        return file.read()


def lines(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield (`path:line number`, line without line end) of a file, plain or compressed."""
    with opened(path) as file:
        for number, line in enumerate(file, start=1):
            yield f"{path}:{number}", line.rstrip(b"\r\n")


def checked_text(where: str, text: str) -> str:
    """Return the text; raise UserError if it is blank or not valid Unicode (JSON may carry half a surrogate pair)."""
    if not text.strip():
        raise UserError(f"{where}: an empty text, expected words")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UserError(f"{where}: text is not Unicode: {error}") from None
    return text


def count(path: Path) -> int:
    """Number of lines of a file that are not blank."""
    return sum(1 for _, line in lines(path) if line.strip())


def json_rows(path: Path, /, **fields: type) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (where, row) of a JSON-lines file, or of a .json file with one array, whose rows have these fields.

    Blank lines are skipped.

    Raises:
        UserError: a row is no JSON object, or a field has another type.
    """
    for where, row in _json_values(path):
        if not isinstance(row, dict):
            raise UserError(f"{where}: {row!r:.80}, expected an object with {', '.join(fields) or 'fields'}")
        for name, kind in fields.items():
            if type(row.get(name)) is not kind:
                raise UserError(f"{where}: field {name!r} is {row.get(name)!r:.80}, expected {kind.__name__}")
        yield where, row


def _json_values(path: Path) -> Iterator[tuple[str, Any]]:
    array = ".json" in path.suffixes and contents(path).lstrip()[:1] == b"["
    for where, text in [(str(path), contents(path))] if array else lines(path):
        if not text.strip():
            continue
        try:
            value = parse_json(text)
        except ValueError as error:
            reason = str(error).partition(";")[0]  # the rest is advice to programmers
            raise UserError(f"{where}: not JSON: {reason}") from None
        if array:
            yield from ((f"{path}: item {number}", item) for number, item in enumerate(value, start=1))
        else:
            yield where, value
