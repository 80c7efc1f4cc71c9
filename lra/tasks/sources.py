"""Raw data: finding them in a folder, reading archives and line files without trusting them, fetching from the hub.

Nothing here is believed: members of archives are streamed, never extracted by their own names; links, devices and
names that leave the folder are errors; every error names the file and the line or member.
"""

import bz2
import gzip
import hashlib
import json
import lzma
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from lra.errors import UserError
from lra.tasks import Place

MAX_LINE_BYTES = 64 * 2**20
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


def stamp(path: Path | None) -> dict[str, Any] | None:
    """What the identity of a cache says of its raw data: the name, and the size where it is a file. Cheap."""
    if path is None:
        return None
    return {"name": path.name, "bytes": path.stat().st_size if path.is_file() else None}


def sha256(path: Path) -> str:
    """Of a whole file, in hexadecimal."""
    with _opened(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _opened(path: Path, mode: str) -> IO[Any]:
    try:
        return open(path, mode)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}") from None


def lines(path: Path) -> Iterator[tuple[str, bytes]]:
    """`stream_lines` of a file, plain or compressed (.xz, .gz)."""
    openers = {".xz": lzma.open, ".gz": gzip.open}
    try:
        file = openers.get(path.suffix, open)(path, "rb")
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}") from None
    with file:
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
            row = json.loads(line)
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
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
    """(where, row) of parquet or arrow files in order; every file must have these columns."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    for path in paths:
        try:
            if path.suffix == ".parquet":
                batches: Iterable[pa.RecordBatch] = pq.ParquetFile(path).iter_batches(1000)
            else:
                batches = pa.ipc.open_stream(path)
            number = 0
            for batch in batches:
                missing = [name for name in fields if name not in batch.schema.names]
                if missing:
                    raise UserError(f"{path}: columns {batch.schema.names}, expected {list(fields)}")
                for row in batch.select(list(fields)).to_pylist():
                    number += 1
                    for name, kind in fields.items():
                        if not isinstance(row[name], kind):
                            raise UserError(
                                f"{path}: row {number}: {name} is {row[name]!r:.80}, expected {kind.__name__}"
                            )
                    yield f"{path}: row {number}", row
        except (pa.ArrowException, OSError) as error:
            raise UserError(f"{path}: not readable: {error}") from None


def members(path: Path, wanted: Callable[[str], bool]) -> Iterator[tuple[str, IO[bytes]]]:
    """(name, stream) of the members of a tar archive (plain or compressed) whose names are wanted, in its order.

    Raises UserError for a wanted member that is no regular file or leaves the folder, and for a damaged archive; one
    that is compressed is compared with its checksums, at its end.
    """
    name = "its start"
    try:
        with _uncompressed(path) as file, tarfile.open(fileobj=file, mode="r|") as archive:
            for member in archive:
                name = member.name
                if not wanted(name):
                    continue
                if name.startswith("/") or ".." in Path(name).parts:
                    raise UserError(f"{path}: member {name!r} leaves the folder; this is not the official archive")
                if member.isdir():
                    continue
                if not member.isreg():
                    raise UserError(f"{path}: member {name!r} is a link or a device, expected a regular file")
                stream = archive.extractfile(member)
                yield name, stream
            while file.read(MAX_LINE_BYTES):
                pass
    except (*DAMAGED, OSError) as error:
        raise UserError(f"{path}: damaged at {name}: {error}") from None


def _uncompressed(path: Path) -> IO[bytes]:
    """The bytes of an archive, compressed or not. (tarfile's own stream does not compare the checksum of gzip.)"""
    openers = {b"\x1f\x8b": gzip.open, b"\xfd7": lzma.open, b"BZ": bz2.open}
    with _opened(path, "rb") as file:
        start = file.read(2)
    return openers.get(start, open)(path, "rb")


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
