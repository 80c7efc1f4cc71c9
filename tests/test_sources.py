"""Raw files that were made to fill the memory or to keep a process waiting are refused, each with its reason."""

import bz2
import gzip
import io
import lzma
import os
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lra.core.errors import UserError
from lra.core.files import sha256
from lra.data import readers

pytestmark = pytest.mark.usefixtures("impatient")

TEXTS = {"label": int, "text": str}


@pytest.fixture
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file may hold 2,003 bytes or 11 times its own, a header 503 bytes more than what is read ahead."""
    values = {"SMALL_BYTES": 2003, "MAX_EXPANSION": 11, "MAX_HEADER_BYTES": 503, "READ_AHEAD_BYTES": 1024}
    for name, value in values.items():
        monkeypatch.setattr(readers, name, value, raising=False)


def archive(path: Path, *members: tuple[str, bytes], form: int = tarfile.PAX_FORMAT, mode: str = "w") -> Path:
    with tarfile.open(path, mode, format=form) as tar:
        for name, data in members:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return path


def names_in(path: Path) -> list[str]:
    return [name for name, _ in readers.members(path, lambda name: True)]


READERS = {
    "raw.jsonl": lambda path: list(readers.json_rows(path, **TEXTS)),
    "raw.jsonl.xz": lambda path: list(readers.lines(path)),
    "raw.tar.gz": names_in,
    "raw.parquet": lambda path: list(readers.columnar_rows([path], **TEXTS)),
    "raw.arrow": lambda path: list(readers.columnar_rows([path], **TEXTS)),
    "raw.bin": sha256,
}


@pytest.mark.parametrize(("kind", "make"), [("a FIFO", os.mkfifo), ("a folder", os.mkdir)])
@pytest.mark.parametrize("name", READERS)
def test_only_regular_files_are_opened(tmp_path: Path, name: str, kind: str, make: Callable) -> None:
    make(tmp_path / name)
    with pytest.raises(UserError, match=f"{name}: expected a regular file, found {kind}"):
        READERS[name](tmp_path / name)


def test_a_link_to_a_file_is_that_file(tmp_path: Path) -> None:
    (tmp_path / "there").write_bytes(b"a\nb\n")
    (tmp_path / "raw").symlink_to("there")
    assert [line for _, line in readers.lines(tmp_path / "raw")] == [b"a", b"b"]


# ---------------------------------------------------------------- what comes out of compressed files


@pytest.mark.parametrize(("end", "pack"), [(".gz", gzip.compress), (".xz", lzma.compress)])
def test_many_short_lines_out_of_a_small_file(tmp_path: Path, small_limits: None, end: str, pack: Callable) -> None:
    path = tmp_path / f"raw.tsv{end}"
    path.write_bytes(pack(b"short\n" * 5_000))
    size = path.stat().st_size
    with pytest.raises(UserError, match=rf"raw.tsv{end}: more than 2,003 bytes come out of its {size}; "):
        list(readers.lines(path))
    path.write_bytes(pack(b"short\n" * 300))
    assert len(list(readers.lines(path))) == 300


def test_a_large_file_may_hold_many_times_its_size(tmp_path: Path, small_limits: None) -> None:
    path = tmp_path / "raw.gz"
    path.write_bytes(gzip.compress(os.urandom(1_000) + b"short\n" * 1_500))
    assert len(b"".join(line for _, line in readers.lines(path))) > 2_003


@pytest.mark.parametrize(("mode", "pack"), [("gz", gzip), ("xz", lzma), ("bz2", bz2)])
def test_an_archive_that_explodes_in_a_member_that_nobody_wants(
    tmp_path: Path, small_limits: None, mode: str, pack: Any
) -> None:
    path = archive(tmp_path / "raw.tar", ("zeros", bytes(100_000)), mode=f"w:{mode}")
    with pytest.raises(UserError, match=r"raw.tar: more than [\d,]+ bytes come out of its \d+; "):
        list(readers.members(path, lambda name: False))


def test_zeros_after_the_end_of_an_archive(tmp_path: Path, small_limits: None) -> None:
    path = archive(tmp_path / "raw.tar", ("a", b"data"))
    path.write_bytes(gzip.compress(path.read_bytes() + bytes(100_000)))
    with pytest.raises(UserError, match=r"raw.tar: more than 2,0.. bytes come out of"):
        names_in(path)


def parquet(path: Path, table: Any) -> None:
    import pyarrow.parquet as pq

    pq.write_table(table, path, compression="zstd")


def arrow(path: Path, table: Any) -> None:
    import pyarrow as pa

    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, table.schema, options=options) as out:
        out.write_table(table)


@pytest.mark.parametrize("write", [parquet, arrow])
@pytest.mark.parametrize("texts", [["a" * 100_000], ["b" * 700] * 300], ids=["one large", "one that repeats"])
def test_a_table_that_explodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable, texts: list[str]
) -> None:
    import pyarrow as pa

    monkeypatch.setattr(readers, "SMALL_BYTES", 50_021, raising=False)
    monkeypatch.setattr(readers, "MAX_EXPANSION", 11, raising=False)
    path = tmp_path / f"raw.{write.__name__}"
    write(path, pa.table({"label": [1] * len(texts), "text": texts}))
    with pytest.raises(UserError, match=f"raw.{write.__name__}: more than 50,021 bytes come out of its"):
        list(readers.columnar_rows([path], **TEXTS))


@pytest.mark.parametrize("write", [parquet, arrow])
def test_a_table_is_read_as_it_was_written(tmp_path: Path, write: Callable) -> None:
    import pyarrow as pa

    rows = [{"label": number % 7, "text": f"{number % 5} très"} for number in range(1_009)]
    write(tmp_path / f"raw.{write.__name__}", pa.Table.from_pylist([{"other": [1.5], **row} for row in rows]))
    assert [row for _, row in readers.columnar_rows([tmp_path / f"raw.{write.__name__}"], **TEXTS)] == rows


# ---------------------------------------------------------------- members and their headers


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT], ids=["pax", "gnu"])
@pytest.mark.parametrize("wanted", [True, False])
def test_a_header_of_megabytes(tmp_path: Path, small_limits: None, form: int, wanted: bool) -> None:
    long = "a" * 200_000
    path = archive(tmp_path / "raw.tar", ("first", b"data"), (long, b""), form=form)
    with pytest.raises(UserError, match="raw.tar: a header of more than 503 bytes after 'first'"):
        list(readers.members(path, lambda name: wanted))
    path = archive(tmp_path / "raw.tar", (long, b""), form=form)
    with pytest.raises(UserError, match="raw.tar: a header of more than 503 bytes after 'its start'"):
        names_in(path)


def test_large_members_between_small_headers(tmp_path: Path, small_limits: None) -> None:
    members = [("a", os.urandom(70_001)), ("b" * 150, os.urandom(30_011)), ("c", b"")]
    path = archive(tmp_path / "raw.tar", *members)
    read = [(name, readers.contents(name, stream, 10**6)) for name, stream in readers.members(path, lambda _: True)]
    assert read == members


def test_headers_upon_headers(tmp_path: Path) -> None:
    """Each says the name of the next, which is such a header, too."""
    header = tarfile.TarInfo("././@LongLink")
    header.type, header.size = tarfile.GNUTYPE_LONGNAME, 1
    (tmp_path / "raw.tar").write_bytes((header.tobuf(tarfile.GNU_FORMAT) + b"a".ljust(512, b"\0")) * 900)
    with pytest.raises(UserError, match=r"raw.tar: (damaged at 'its start'|a header of)") as error:
        names_in(tmp_path / "raw.tar")
    assert len(str(error.value).splitlines()) == 1


def test_a_sparse_member(tmp_path: Path) -> None:
    """It says that it has a terabyte, of which the archive holds nothing."""
    member = tarfile.TarInfo("a")
    member.size = 0
    member.pax_headers = {"GNU.sparse.major": "0", "GNU.sparse.minor": "1", "GNU.sparse.map": "0,0",
                          "GNU.sparse.name": "a", "GNU.sparse.size": str(2**40)}  # fmt: skip
    with tarfile.open(tmp_path / "raw.tar", "w", format=tarfile.PAX_FORMAT) as tar:
        tar.addfile(member)
    with pytest.raises(UserError, match="member 'a' is sparse, expected a regular file"):
        names_in(tmp_path / "raw.tar")


@pytest.mark.parametrize("name", ["a\nb", "\x1b[2Ja", "a" * 1_001])
def test_a_name_that_no_archive_has(tmp_path: Path, name: str) -> None:
    path = archive(tmp_path / "raw.tar", (name, b"data"))
    with pytest.raises(UserError, match="has a name that no official archive has") as error:
        names_in(path)
    assert str(error.value).isprintable()
    assert len(str(error.value)) < 300 + len(str(tmp_path))


# ---------------------------------------------------------------- lines of JSON


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"label": 1, "text": "a", "more": ' + b"[" * 50_000 + b"]" * 50_000 + b"}", "not JSON: nested deeper"),
        (b'{"label": ' + b"9" * 5_000 + b', "text": "a"}', "not JSON: Exceeds the limit"),
        (b'{"label": 1, "text": "\x00"}', "not JSON: "),
        (b'{"label": 1, "text": "\xff"}', "not JSON: "),
        (b"\x00" * 97, "not JSON: "),
        (b'{"label": NaN, "text": "a"}', "not JSON: NaN is no JSON number"),
    ],
    ids=["deep", "long number", "NUL", "not UTF-8", "only NUL", "NaN"],
)
def test_a_line_that_is_no_row(tmp_path: Path, line: bytes, message: str) -> None:
    (tmp_path / "raw.jsonl").write_bytes(b'{"label": 1, "text": "a"}\n' + line + b"\n")
    with pytest.raises(UserError, match=f"raw.jsonl:2: {message}") as error:
        list(readers.json_rows(tmp_path / "raw.jsonl", **TEXTS))
    assert len(str(error.value).splitlines()) == 1
