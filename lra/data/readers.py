"""Readers of raw data: lines of plain or compressed files, JSON lines and tar archives. Errors name file and line."""

import gzip
import lzma
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from lra.core.errors import UserError
from lra.core.files import parse_json


@contextmanager
def named_errors(where: str) -> Iterator[None]:
    """Turn errors of reading and decompressing into a UserError that begins with `where`."""
    try:
        yield
    except (OSError, EOFError, lzma.LZMAError, zlib.error, tarfile.TarError) as error:
        raise UserError(f"{where}: not readable: {getattr(error, 'strerror', None) or error}") from None


def decompressed(path: Path) -> IO[bytes]:
    """Open a file, plain or compressed (.xz, .gz), for reading."""
    kinds: dict[str, Any] = {".xz": lzma.open, ".gz": gzip.open}
    return kinds.get(path.suffix.lower(), open)(path, "rb")


def contents(path: Path) -> bytes:
    """Read a file, plain or compressed (.xz, .gz)."""
    with named_errors(str(path)), decompressed(path) as file:
        return file.read()


def lines(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield (`path:line number`, line without line end) of a file, plain or compressed (.xz, .gz)."""
    with named_errors(str(path)), decompressed(path) as file:
        yield from numbered(str(path), file)


def numbered(name: str, rows: Iterable[bytes]) -> Iterator[tuple[str, bytes]]:
    """Yield (`name:line number`, line without line end) of lines."""
    for number, line in enumerate(rows, start=1):
        yield f"{name}:{number}", line.rstrip(b"\r\n")


def decoded(where: str, line: bytes, encoding: str = "UTF-8") -> str:
    """Decode a line.

    Raises:
        UserError: a byte is not valid in this encoding; the message has its column.
    """
    try:
        return line.decode(encoding)
    except UnicodeDecodeError as error:
        at = f"byte 0x{line[error.start]:02x} at column {error.start + 1}"
        raise UserError(f"{where}: {at}, expected {encoding}") from None


def checked_text(where: str, text: str) -> str:
    """Return the text.

    Raises:
        UserError: it is blank, or not valid Unicode (JSON may carry half a surrogate pair).
    """
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
            if not isinstance(row.get(name), kind) or isinstance(row[name], bool):
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


def members(path: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, bytes]]:
    """Yield (name, content) of the wanted regular files in a tar archive, in order. Nothing is extracted.

    Raises:
        UserError: the archive cannot be read.
    """
    with named_errors(str(path)), tarfile.open(path) as archive:
        for member in archive:
            if member.isreg() and wanted(member.name):
                yield member.name, archive.extractfile(member).read()


def named_members(path: Path, *names: str) -> list[bytes]:
    """Return the contents of the archive members with these base names.

    Raises:
        UserError: a member is missing, or the archive cannot be read.
    """
    found = {Path(name).name: data for name, data in members(path, lambda name: Path(name).name in names)}
    for name in names:
        if name not in found:
            raise UserError(f"{path}: no member {name}; fetch the archive again")
    return [found[name] for name in names]
