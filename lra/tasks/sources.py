"""Raw data: finding them in a folder, reading archives and line files without trusting them, fetching from the hub.

Nothing here is believed: only regular files are opened; lines, members, their headers and what comes out of compressed
files have limits; members of archives are streamed, never extracted by their own names; links, devices and names that
leave the folder are errors; every error names the file and the line or member.
"""

import bz2
import gzip
import hashlib
import io
import lzma
import os
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any, BinaryIO

from lra.errors import UserError
from lra.files import open_regular, parse_json
from lra.tasks import Place

MAX_LINE_BYTES = 64 * 2**20
MAX_HEADER_BYTES = 2**20  # of all that stands between the contents of two members of an archive
MAX_NAME_CHARACTERS = 1_000  # of a member
MAX_EXPANSION = 100  # bytes that may come out of a compressed file for each of its own; texts have less than 10
SMALL_BYTES = 2**28  # as many may come out of any file
READ_AHEAD_BYTES = 2**16
DAMAGED = (tarfile.TarError, lzma.LZMAError, zlib.error, EOFError, gzip.BadGzipFile)


def find(place: Place, *names: str) -> Path | None:
    """The first of these paths, relative to the data folder, that exists there; `*` may stand for a part of a name."""
    if place.data_dir is None:
        return None
    for name in names:
        found = sorted(place.data_dir.glob(name))
        if found:
            return found[0]
    return None


def sha256(path: Path) -> str:
    """Of a whole file, in hexadecimal."""
    with opened(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def opened(path: Path) -> BinaryIO:
    """A regular file, or the one that a link leads to, to be read. Raises UserError for anything else."""
    try:
        return open_regular(path, follow=True)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}") from None
    except ValueError as error:
        raise UserError(f"{path}: {error}") from None


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


def json_rows(path: Path, /, **fields: type) -> Iterator[tuple[str, dict[str, Any]]]:
    """(where, row) of a JSON-lines file; every row must have these fields, of these types."""
    for where, line in lines(path):
        try:
            row = parse_json(line)
        except ValueError as error:
            raise UserError(f"{where}: not JSON: {error}") from None
        for name, kind in fields.items():
            if not isinstance(row, dict) or not isinstance(row.get(name), kind) or isinstance(row[name], bool):
                found = row.get(name) if isinstance(row, dict) else row
                raise UserError(f"{where}: field {name!r} is {found!r:.80}, expected {kind.__name__}")
        yield where, row


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
            raise UserError(f"{path}: not readable: {' '.join(str(error).split())}") from None


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


def _end_of_header(contents: int, name: str) -> tuple[int, str]:
    """Where the header of the member after `contents` ends at the latest, and what is to be said where it does not."""
    ahead = READ_AHEAD_BYTES + tarfile.RECORDSIZE  # of the buffers
    return contents + MAX_HEADER_BYTES + ahead, f"a header of more than {MAX_HEADER_BYTES:,} bytes after {name!r:.80}"


def _decompressor(path: Path) -> Callable[[BinaryIO], IO[bytes]] | None:
    """By the first bytes of an archive. (tarfile's own stream does not compare the checksum of gzip.)"""
    with opened(path) as file:
        start = file.read(2)
    return {b"\x1f\x8b": gzip.open, b"\xfd7": lzma.open, b"BZ": bz2.open}.get(start)


def hub(place: Place, dataset: str, *, split: str, size: str, wants: str, config: str | None = None) -> Any:
    """A split of a data set on the Hugging Face hub, through `datasets`; says what it fetches before it does.

    Raises UserError with `absent`'s message where the hub cannot be reached.
    """

    def load() -> Any:
        import datasets

        return datasets.load_dataset(dataset, config, split=split, cache_dir=str(place.cache / "hub"))

    return _fetched(load, place, f"{dataset} ({split})", size=size, wants=wants)


def hub_file(place: Place, repository: str, name: str, *, size: str, wants: str) -> Path:
    """A file of a repository on the Hugging Face hub; says so, and fails, as `hub` does."""

    def load() -> Path:
        from huggingface_hub import hf_hub_download

        return Path(hf_hub_download(repository, name, cache_dir=str(place.cache / "hub")))

    return _fetched(load, place, f"{name} of {repository}", size=size, wants=wants)


class NotFetched(Exception):
    """The hub did not give what it was asked for; the message says why, in one line."""


def from_hub(what: str, load: Callable[[], Any]) -> Any:
    """What `load` fetches from the hub; says so before it does. Raises NotFetched."""
    from lra.console import say

    say(f"fetching {what} from the Hugging Face hub")
    try:
        _refuse_unless_reachable()
        return load()
    except Exception as error:
        raise NotFetched(str(error).splitlines()[0] if str(error) else type(error).__name__) from None


def _fetched(load: Callable[[], Any], place: Place, what: str, *, size: str, wants: str) -> Any:
    try:
        return from_hub(f"{what}, {size},", load)
    except NotFetched as error:
        raise absent(place, what, size=size, wants=wants, reason=str(error)) from None


def _refuse_unless_reachable() -> None:
    """Ask the hub once, briefly; its own client would try again for half a minute."""
    import os
    import urllib.request

    from huggingface_hub import constants

    if os.environ.get("HF_HUB_OFFLINE", "0") not in ("", "0"):
        raise ConnectionError("HF_HUB_OFFLINE is set")
    request = urllib.request.Request(constants.ENDPOINT, method="HEAD")
    urllib.request.urlopen(request, timeout=5).close()


def absent(place: Place, what: str, *, size: str, wants: str, reason: str) -> UserError:
    """The message for data that are neither in the data folder nor on the network."""
    if place.data_dir:
        looked, where = f"not in {place.data_dir}", "Put there"
    else:
        looked, where = "no data folder is set", "Name a folder (LRA_DATA=... or data_dir=...) and put there"
    return UserError(f"{what} ({size}): {looked}, and it could not be fetched ({reason}). {where}: {wants}")
