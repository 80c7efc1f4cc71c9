"""Readers of raw data: lines of plain or compressed files, JSON lines, parquet files and tar archives.

Every error names the file and the line, row or member.
"""

import gzip
import lzma
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from lra.core.errors import UserError
from lra.core.files import opened, parse_json

PARQUET = ".parquet"
PARQUET_BATCH_ROWS = 1_000
DRAIN_BYTES = 2**20
DAMAGED = (tarfile.TarError, lzma.LZMAError, zlib.error, EOFError, gzip.BadGzipFile)


def decompressed(path: Path) -> IO[bytes]:
    """Open a regular file, plain or compressed (.xz, .gz), for reading."""
    opened(path).close()  # raises UserError unless it is a regular file
    suffix = path.suffix.lower()
    if suffix == ".xz":
        return lzma.open(path)
    return gzip.open(path) if suffix == ".gz" else open(path, "rb")


def lines(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield `stream_lines` of a file, plain or compressed (.xz, .gz)."""
    with decompressed(path) as file:
        yield from stream_lines(str(path), file)


def stream_lines(name: str, file: IO[bytes]) -> Iterator[tuple[str, bytes]]:
    """Yield (`name:line number`, line without line end) of an open file.

    Raises:
        UserError: the file cannot be read, or is damaged or truncated.
    """
    try:
        for number, line in enumerate(file, start=1):
            yield f"{name}:{number}", line.rstrip(b"\r\n")
    except (*DAMAGED, OSError) as error:
        raise unreadable(name, error) from None


def contents(where: str, file: IO[bytes]) -> bytes:
    """Read all bytes of an open file or archive member.

    Raises:
        UserError: it cannot be read, or is damaged or truncated.
    """
    try:
        return file.read()
    except (*DAMAGED, OSError) as error:
        raise unreadable(where, error) from None


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
    """Number of rows of a parquet file, or of lines of any other file that are not blank."""
    if path.suffix != PARQUET:
        return sum(1 for _, line in lines(path) if line.strip())
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with opened(path) as file:
            return pq.read_metadata(file).num_rows
    except (pa.ArrowException, OSError) as error:
        raise unreadable(str(path), error) from None


def json_rows(path: Path, /, **fields: type) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (where, row) of each line of a JSON-lines file, whose rows have these fields of these types.

    Blank lines are skipped.
    """
    for where, line in lines(path):
        if not line.strip():
            continue
        try:
            row = parse_json(line)
        except ValueError as error:
            reason = str(error).partition(";")[0]  # the rest is advice to programmers
            raise UserError(f"{where}: not JSON: {reason}") from None
        if not isinstance(row, dict):
            raise UserError(f"{where}: {row!r:.80}, expected an object with {', '.join(fields) or 'fields'}")
        for name, kind in fields.items():
            if not isinstance(row.get(name), kind) or isinstance(row[name], bool):
                raise UserError(f"{where}: field {name!r} is {row.get(name)!r:.80}, expected {kind.__name__}")
        yield where, row


def parquet_rows(paths: Iterable[Path], /, **fields: type) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (where, row) of parquet files in order, with these columns alone, of these types; by default with all."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    for path in paths:
        try:
            with opened(path) as file:
                table = pq.ParquetFile(file)
                names = table.schema_arrow.names
                if not set(fields) <= set(names):
                    raise UserError(f"{path}: columns {names}, expected {list(fields)}")
                batches = table.iter_batches(PARQUET_BATCH_ROWS, columns=list(fields) or None)
                rows_of_batches = (row for batch in batches for row in batch.to_pylist())
                for number, row in enumerate(rows_of_batches, start=1):
                    where = f"{path}: row {number}"
                    for name, kind in fields.items():
                        if not isinstance(row[name], kind):
                            raise UserError(f"{where}: {name} is {row[name]!r:.80}, expected {kind.__name__}")
                    yield where, row
        except (pa.ArrowException, OSError) as error:
            raise unreadable(str(path), error) from None


def rows(paths: list[Path], /, **fields: type) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield `parquet_rows` of the files, or `json_rows` of the only one, by the first suffix."""
    if paths[0].suffix == PARQUET:
        return parquet_rows(paths, **fields)
    [path] = paths
    return json_rows(path, **fields)


def members(path: Path, wanted: Callable[[str], bool] = lambda name: True) -> Iterator[tuple[str, IO[bytes]]]:
    """Yield (name, stream) of the wanted regular files in a tar archive, plain or compressed, in order.

    Nothing is extracted, so names that leave the folder are harmless, and links and devices are passed over.

    Raises:
        UserError: the archive cannot be read, or is damaged or truncated (its checksum is compared at the end).
    """
    opened(path).close()
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                if member.isreg() and wanted(member.name):
                    yield member.name, archive.extractfile(member)
            while archive.fileobj.read(DRAIN_BYTES):
                pass
    except (*DAMAGED, OSError, ValueError) as error:
        raise unreadable(str(path), error) from None


def named_members(path: Path, names: Iterable[str]) -> Iterator[tuple[str, str, IO[bytes]]]:
    """Yield (name, where, stream) of the archive members with these base names, in the archive's order, up to the last.

    Raises:
        UserError: a member is missing, or the archive is damaged.
    """
    missing = dict.fromkeys(names)
    for member, stream in members(path, lambda member: Path(member).name in missing):
        name = Path(member).name
        del missing[name]
        yield name, f"{path}: {member}", stream
        if not missing:
            return
    if missing:
        raise UserError(f"{path}: no member {next(iter(missing))}; fetch the archive again")


def unreadable(where: str, error: Exception) -> UserError:
    reason = " ".join(str(getattr(error, "strerror", None) or error).split())
    return UserError(f"{where}: {'damaged' if isinstance(error, DAMAGED) else 'not readable'}: {reason}")
