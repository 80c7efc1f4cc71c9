"""Read bytes, lines and JSON rows from plain or compressed files; errors name the file and the line."""

import codecs
import gzip
import lzma
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from lra.core.errors import UserError
from lra.core.files import parse_json

BEGINNING = 1_024  # number of bytes at the start of a file that are searched for the `[` of a JSON array
LFS_POINTER = b"version https://git-lfs"  # first bytes of the text file that Git LFS puts in place of large files
NOT_UTF8 = "not UTF-8; convert the file, for example from Latin-1 with `iconv -f LATIN1 -t UTF-8`"


@contextmanager
def opened(path: Path, mode: str = "rb", **options: Any) -> Iterator[IO]:
    """Open a file, plain or compressed (.xz, .gz); raise UserError with its path if it cannot be read or decoded."""
    kinds: dict[str, Any] = {".xz": lzma.open, ".gz": gzip.open}
    try:
        with open(path, "rb") as file:  # without decompression: the pointer to a compressed file is plain text
            if file.read(len(LFS_POINTER)) == LFS_POINTER:
                raise UserError(f"{path}: a Git LFS pointer instead of the data; fetch them with `git lfs pull`")
        with kinds.get(path.suffix.lower(), open)(path, mode, **options) as file:
            yield file
    except UnicodeDecodeError:  # its position is relative to a buffer, so search the file for the bad line
        bad = (where for where, line in lines(path) if line.decode(errors="ignore").encode() != line)
        raise UserError(f"{next(bad, path)}: {NOT_UTF8}") from None
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        raise UserError(f"{path}: not readable: {getattr(error, 'strerror', None) or error}") from None


def contents(path: Path) -> bytes:
    """Return all bytes of a file, plain or compressed."""
    with opened(path) as file:
        return file.read()


def lines(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield (`path:line number`, line without line end) for each line of a file, except blank lines."""
    with opened(path) as file:
        for number, line in enumerate(file, start=1):
            if line.strip(b" \r\n"):
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


def json_rows(path: Path, /, **fields: type) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (where, row) for each row of a file of JSON lines, or for each item of a file with one JSON array.

    `where` is the path with the number of the line or of the item, for errors.

    Args:
        path: file, plain or compressed.
        fields: required fields of a row, and their types.

    Raises:
        UserError: a row is not a JSON object, or a field is missing or has another type.
    """
    # Files named .json hold either form, so the first character decides. An array is parsed as a whole.
    with opened(path) as file:
        array = file.read(BEGINNING).removeprefix(codecs.BOM_UTF8).lstrip()[:1] == b"["
    for place, text in [(str(path), contents(path))] if array else lines(path):
        try:
            value = parse_json(text)
        except UnicodeDecodeError:
            raise UserError(f"{place}: {NOT_UTF8}") from None
        except ValueError as error:
            reason = str(error).partition(";")[0]  # the text after `;` is advice to programmers
            raise UserError(f"{place}: not JSON: {reason}; expected one object a line, or one array") from None
        rows = ((f"{path}: item {n}", item) for n, item in enumerate(value, start=1)) if array else [(place, value)]
        for where, row in rows:
            if not isinstance(row, dict):
                raise UserError(f"{where}: {row!r:.80}, expected an object with {', '.join(fields) or 'fields'}")
            for name, kind in fields.items():
                if type(row.get(name)) is not kind:
                    raise UserError(f"{where}: field {name!r} is {row.get(name)!r:.80}, expected {kind.__name__}")
            yield where, row
