"""Raw data: archives, files of lines and columnar files are read without trusting them.

Nothing here is believed: only regular files are opened; lines, members, their headers and what comes out of compressed
files have limits; members of archives are streamed, never extracted by their own names; links, devices and names that
leave the folder are errors; every error names the file and the line or member.
"""

import bz2
import gzip
import io
import lzma
import os
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any, BinaryIO

from lra.core.errors import UserError
from lra.core.files import opened, parse_json

MAX_LINE_BYTES = 64 * 2**20
MAX_HEADER_BYTES = 2**20  # of all that stands between the contents of two members of an archive
MAX_NAME_CHARACTERS = 1_000  # of a member
MAX_EXPANSION = 100  # bytes that may come out of a compressed file for each of its own; texts have less than 10
SMALL_BYTES = 2**28  # as many may come out of any file
READ_AHEAD_BYTES = 2**16
COLUMNAR = (".parquet", ".arrow")
DAMAGED = (tarfile.TarError, lzma.LZMAError, zlib.error, EOFError, gzip.BadGzipFile)


class Limited(io.RawIOBase):
    """What comes out of `source`, opened by `opener`; UserError once that is more than `most` bytes (None: any number).

    `stop_at` moves the end. Closing it closes both files.
    """

    def __init__(self, path: Path, source: BinaryIO, opener: Callable[[BinaryIO], IO[bytes]], most: int | None) -> None:
        self._path, self._source, self._file = path, source, opener(source)
        self._done, self._most = 0, most
        self.stop_at(None)

    def readable(self) -> bool:
        return True

    def stop_at(self, position: int | None, reason: str = "") -> None:
        """From now on the end is at `position`, if that comes before `most`, and `reason` is why."""
        self._stop, self._reason = self._most, None
        if position is not None and (self._most is None or position < self._most):
            self._stop, self._reason = position, reason

    def readinto(self, buffer: Any) -> int:
        count = self._file.readinto(buffer)
        self._done += count
        if self._stop is not None and self._done > self._stop:
            raise UserError(f"{self._path}: {self._reason}") if self._reason else _too_large(self._path, self._stop)
        return count

    def close(self) -> None:
        self._file.close()
        self._source.close()
        super().close()


def _limited(path: Path, opener: Callable[[BinaryIO], IO[bytes]] | None) -> Limited:
    """A regular file, decompressed by `opener`, or as it is."""
    source = opened(path)
    if opener is None:
        return Limited(path, source, lambda file: file, None)
    return Limited(path, source, opener, _most_of(source))


def _most_of(file: BinaryIO) -> int:
    """How many bytes may come out of an open compressed file."""
    return max(SMALL_BYTES, MAX_EXPANSION * os.fstat(file.fileno()).st_size)


def _too_large(path: Path, most: int) -> UserError:
    return UserError(
        f"{path}: more than {most:,} bytes come out of its {path.stat().st_size:,}; it is no file of texts or images"
    )


def decompressed(path: Path) -> BinaryIO:
    """The bytes of a file, plain or compressed (.xz, .gz); UserError where far more come out of it than is natural."""
    openers = {".xz": lzma.open, ".gz": gzip.open}
    return io.BufferedReader(_limited(path, openers.get(path.suffix)), READ_AHEAD_BYTES)


def lines(path: Path) -> Iterator[tuple[str, bytes]]:
    """`stream_lines` of a file, plain or compressed (.xz, .gz)."""
    with decompressed(path) as file:
        yield from stream_lines(str(path), file)


def stream_lines(name: str, file: IO[bytes]) -> Iterator[tuple[str, bytes]]:
    """(where, line) of an open file, without line ends; `where` is name:line.

    Raises UserError for a line of more than 64 MiB and for a damaged or truncated compressed file or archive.
    """
    number = 0
    try:
        while raw := file.readline(MAX_LINE_BYTES + 1):
            number += 1
            if len(raw) > MAX_LINE_BYTES:
                raise UserError(f"{name}:{number}: a line of more than {MAX_LINE_BYTES:,} bytes")
            yield f"{name}:{number}", raw.rstrip(b"\r\n")
    except DAMAGED as error:
        raise UserError(f"{name}: damaged after line {number}: {error}") from None
    except OSError as error:
        raise UserError(f"{name}: {error.strerror or error}") from None


def decoded(where: str, line: bytes, encoding: str = "UTF-8") -> str:
    """A line as text. Raises UserError with the byte that is none."""
    try:
        return line.decode(encoding)
    except UnicodeDecodeError as error:
        at = f"byte 0x{line[error.start]:02x} at column {error.start + 1}"
        raise UserError(f"{where}: {at}, expected {encoding}") from None


def count(path: Path) -> int:
    """The rows of a parquet or arrow file, the lines of any other."""
    if path.suffix not in COLUMNAR:
        return sum(1 for _ in lines(path))
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with opened(path) as file:
            if path.suffix == ".parquet":
                return pq.read_metadata(file).num_rows
            return sum(batch.num_rows for batch in pa.ipc.open_stream(file))
    except (pa.ArrowException, OSError, MemoryError) as error:
        raise _not_readable(path, error) from None


def contents(where: str, file: IO[bytes], most: int) -> bytes:
    """All bytes of an open file or member. Raises UserError for more than `most`, and for damaged ones."""
    try:
        data = file.read(most + 1)
    except DAMAGED as error:
        raise UserError(f"{where}: damaged: {error}") from None
    except OSError as error:
        raise UserError(f"{where}: {error.strerror or error}") from None
    if len(data) > most:
        raise UserError(f"{where}: more than {most:,} bytes")
    return data


def json_lines(path: Path) -> Iterator[tuple[str, Any]]:
    """(where, value) of each line of a JSON-lines file."""
    for where, line in lines(path):
        try:
            yield where, parse_json(line)
        except ValueError as error:
            raise UserError(f"{where}: not JSON: {error}") from None


def json_rows(path: Path, /, **fields: type) -> Iterator[tuple[str, dict[str, Any]]]:
    """(where, row) of a JSON-lines file; every row must have these fields, of these types."""
    for where, row in json_lines(path):
        for name, kind in fields.items():
            if not isinstance(row, dict) or not isinstance(row.get(name), kind) or isinstance(row[name], bool):
                value = row.get(name) if isinstance(row, dict) else row
                raise UserError(f"{where}: field {name!r} is {value!r:.80}, expected {kind.__name__}")
        yield where, row


def rows(paths: list[Path], /, **fields: type) -> Iterator[tuple[str, dict[str, Any]]]:
    """`columnar_rows` or, of the only path, `json_rows`, by how the first name ends."""
    if paths[0].suffix in COLUMNAR:
        return columnar_rows(paths, **fields)
    [path] = paths
    return json_rows(path, **fields)


def checked_text(where: str, text: str) -> str:
    """The text, which must hold more than white space and be Unicode (JSON may carry half a character)."""
    if not text.strip():
        raise UserError(f"{where}: an empty text, expected words")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UserError(f"{where}: text is not Unicode: {error}") from None
    return text


def columnar_rows(paths: Iterable[Path], /, **fields: type) -> Iterator[tuple[str, dict[str, Any]]]:
    """(where, row) of parquet or arrow files in order; every file must have these columns.

    Raises UserError where what comes out of a file is far larger than the file. Texts that are equal are stored once
    in both formats, so their rows are counted one by one, too.
    """
    import pyarrow as pa

    for path in paths:
        try:
            with opened(path) as file:
                left = most = _most_of(file)
                for number, row in enumerate(_rows(path, file, most, fields), start=1):
                    for name, kind in fields.items():
                        if not isinstance(row[name], kind):
                            raise UserError(
                                f"{path}: row {number}: {name} is {row[name]!r:.80}, expected {kind.__name__}"
                            )
                    left -= sum(len(value) for value in row.values() if isinstance(value, str))
                    if left < 0:
                        raise _too_large(path, most)
                    yield f"{path}: row {number}", row
        except (pa.ArrowException, OSError, MemoryError) as error:
            raise _not_readable(path, error) from None


def _not_readable(path: Path, error: Exception) -> UserError:
    return UserError(f"{path}: not readable: {' '.join(str(error).split())}")


def _rows(path: Path, file: BinaryIO, most: int, fields: dict[str, type]) -> Iterator[dict[str, Any]]:
    """The rows of an open file, one at a time; its columns have at most `most` bytes before texts are repeated."""
    import pyarrow as pa

    batches = _parquet(path, file, most, fields) if path.suffix == ".parquet" else pa.ipc.open_stream(file)
    for batch in batches:
        _refuse_other_columns(path, batch.schema.names, fields)
        if batch.nbytes > most:
            raise _too_large(path, most)
        columns = {name: batch.column(name) for name in fields}
        for row in range(batch.num_rows):
            yield {name: column[row].as_py() for name, column in columns.items()}


def _parquet(path: Path, file: BinaryIO, most: int, fields: dict[str, type]) -> Iterator[Any]:
    """The record batches of an open parquet file; each text once, with numbers for where it stands."""
    import pyarrow.parquet as pq

    metadata = pq.read_metadata(file)
    _refuse_other_columns(path, metadata.schema.names, fields)
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    sizes = [group.column(place).total_uncompressed_size for group in groups for place in range(group.num_columns)]
    if sum(sizes) > most:
        raise _too_large(path, most)
    texts = [name for name, kind in fields.items() if kind is str]
    yield from pq.ParquetFile(file, metadata=metadata, read_dictionary=texts).iter_batches(1000, columns=list(fields))


def _refuse_other_columns(path: Path, names: list[str], fields: dict[str, type]) -> None:
    if not set(fields) <= set(names):
        raise UserError(f"{path}: columns {names}, expected {list(fields)}")


def members(path: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, IO[bytes]]]:
    """(name, stream) of the members of a tar archive (plain or compressed) whose names are wanted, in its order.

    Raises UserError for a wanted member that is no regular file or leaves the folder, for headers that are too large,
    and for a damaged archive; one that is compressed is compared with its checksums, at its end.
    """
    name = "its start"
    try:
        limited = _limited(path, _decompressor(path))
        with io.BufferedReader(limited, READ_AHEAD_BYTES) as file:
            limited.stop_at(*_end_of_header(0, name))
            with tarfile.open(fileobj=file, mode="r|") as archive:
                for member in archive:
                    name = member.name
                    if member.issparse():
                        raise UserError(f"{path}: member {name!r:.80} is sparse, expected a regular file")
                    limited.stop_at(*_end_of_header(member.offset_data + member.size, name))
                    if not wanted(name):
                        continue
                    if name.startswith("/") or ".." in Path(name).parts:
                        raise UserError(
                            f"{path}: member {name!r:.80} leaves the folder; this is not the official archive"
                        )
                    if len(name) > MAX_NAME_CHARACTERS or not name.isprintable():
                        raise UserError(f"{path}: member {name!r:.80} has a name that no official archive has")
                    if member.isdir():
                        continue
                    if not member.isreg():
                        raise UserError(f"{path}: member {name!r} is a link or a device, expected a regular file")
                    yield name, archive.extractfile(member)
            limited.stop_at(None)
            while file.read(READ_AHEAD_BYTES):
                pass
    except (*DAMAGED, OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path}: damaged at {name!r:.80}: {error!s:.200}") from None


def named_members(path: Path, names: Iterable[str]) -> Iterator[tuple[str, str, IO[bytes]]]:
    """(name, where, stream) of the members with these names, wherever their folder stands; every member is looked at.

    Raises UserError for an archive without one of them, too.
    """
    missing = dict.fromkeys(names)
    wanted = set(missing)
    for member, stream in members(path, lambda member: True):
        name = member.rpartition("/")[2]
        if name in wanted:
            missing.pop(name, None)
            yield name, f"{path}: {member}", stream
    if missing:
        raise UserError(f"{path}: no member {next(iter(missing))}; fetch the archive again")


def _end_of_header(contents: int, name: str) -> tuple[int, str]:
    """Where the header of the member after `contents` ends at the latest, and what is to be said where it does not."""
    ahead = READ_AHEAD_BYTES + tarfile.RECORDSIZE  # of the buffers
    return contents + MAX_HEADER_BYTES + ahead, f"a header of more than {MAX_HEADER_BYTES:,} bytes after {name!r:.80}"


def _decompressor(path: Path) -> Callable[[BinaryIO], IO[bytes]] | None:
    """Choose by the first bytes of an archive. (tarfile's own stream does not compare the checksum of gzip.)"""
    with opened(path) as file:
        start = file.read(2)
    return {b"\x1f\x8b": gzip.open, b"\xfd7": lzma.open, b"BZ": bz2.open}.get(start)
