"""Readers of raw files: independent of the format, and every error names file and line or member."""

import gzip
import io
import lzma
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from lra.core.errors import UserError
from lra.core.files import sha256
from lra.data import readers

pytestmark = pytest.mark.usefixtures("impatient")

TEXTS = {"label": int, "text": str}
MEMBERS = [("a/b", os.urandom(70_001)), ("c" * 150, os.urandom(30_011)), ("d", b"")]


def archive(path: Path, *members: tuple[str, bytes], mode: str = "w") -> Path:
    with tarfile.open(path, mode) as tar:
        for name, data in members:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
        link = tarfile.TarInfo("link")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    return path


def contents_of(path: Path) -> list[tuple[str, bytes]]:
    return [(name, readers.contents(name, stream)) for name, stream in readers.members(path)]


READERS = {
    "raw.jsonl": lambda path: list(readers.json_rows(path, **TEXTS)),
    "raw.jsonl.xz": lambda path: list(readers.lines(path)),
    "raw.tar.gz": contents_of,
    "raw.parquet": lambda path: list(readers.parquet_rows([path], **TEXTS)),
    "raw.bin": sha256,
}


@pytest.mark.parametrize(("kind", "make"), [("a FIFO", os.mkfifo), ("a folder", os.mkdir)])
@pytest.mark.parametrize("name", READERS)
def test_only_regular_files_are_opened(tmp_path: Path, name: str, kind: str, make: Callable) -> None:
    make(tmp_path / name)
    with pytest.raises(UserError, match=f"{name}: expected a regular file"):
        READERS[name](tmp_path / name)


def test_a_link_to_a_file_is_that_file(tmp_path: Path) -> None:
    (tmp_path / "there").write_bytes(b"a\nb\n")
    (tmp_path / "raw").symlink_to("there")
    assert [line for _, line in readers.lines(tmp_path / "raw")] == [b"a", b"b"]


@pytest.mark.parametrize(("end", "pack"), [("", bytes), (".gz", gzip.compress), (".xz", lzma.compress)])
def test_lines_of_compressed_files(tmp_path: Path, end: str, pack: Callable) -> None:
    path = tmp_path / f"raw.tsv{end}"
    path.write_bytes(pack(b"one\r\ntwo\n\nlast"))
    assert list(readers.lines(path)) == [
        (f"{path}:{number}", line) for number, line in enumerate([b"one", b"two", b"", b"last"], start=1)
    ]
    assert readers.count(path) == 3
    if end:
        path.write_bytes(path.read_bytes()[:-9])
        with pytest.raises(UserError, match=f"raw.tsv{end}: damaged: "):
            list(readers.lines(path))


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:xz", "w:bz2"])
def test_regular_files_of_an_archive(tmp_path: Path, mode: str) -> None:
    path = archive(tmp_path / "raw.tar", *MEMBERS, mode=mode)
    assert contents_of(path) == MEMBERS
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(UserError, match=r": damaged: "):
        contents_of(path)


def test_named_members(tmp_path: Path) -> None:
    path = archive(tmp_path / "raw.tar", *MEMBERS)
    assert [(name, where) for name, where, _ in readers.named_members(path, ["d", "b"])] == [
        ("b", f"{path}: a/b"),
        ("d", f"{path}: d"),
    ]
    with pytest.raises(UserError, match="raw.tar: no member e"):
        list(readers.named_members(path, ["d", "e"]))


def test_a_table_is_read_as_it_was_written(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [{"label": number % 7, "text": f"{number % 5} très"} for number in range(1_009)]
    pq.write_table(pa.Table.from_pylist([{"other": [1.5], **row} for row in rows]), tmp_path / "raw.parquet")
    assert [row for _, row in readers.parquet_rows([tmp_path / "raw.parquet"], **TEXTS)] == rows
    assert readers.count(tmp_path / "raw.parquet") == 1_009


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"label": 1, "text": "a", "more": ' + b"[" * 50_000 + b"]" * 50_000 + b"}", "not JSON: nested deeper"),
        (b'{"label": ' + b"9" * 5_000 + b', "text": "a"}', "not JSON: Exceeds the limit"),
        (b'{"label": 1, "text": "\xff"}', "not JSON: "),
        (b'{"label": NaN, "text": "a"}', "not JSON: NaN is no JSON number"),
    ],
    ids=["deep", "long number", "not UTF-8", "NaN"],
)
def test_a_line_that_is_no_row(tmp_path: Path, line: bytes, message: str) -> None:
    (tmp_path / "raw.jsonl").write_bytes(b'{"label": 1, "text": "a"}\n' + line + b"\n")
    with pytest.raises(UserError, match=f"raw.jsonl:2: {message}"):
        list(readers.json_rows(tmp_path / "raw.jsonl", **TEXTS))
