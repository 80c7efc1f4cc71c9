"""Readers of raw files, errors that name file and line, and stored digests of raw data."""

import gzip
import io
import lzma
import os
import tarfile
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest

from lra.core.errors import UserError
from lra.core.files import digest
from lra.data import from_source, readers
from lra.data.from_source import Source
from lra.tasks import Place

pytestmark = pytest.mark.usefixtures("impatient")

TEXTS = {"label": int, "text": str}
MEMBERS = [("a/b", os.urandom(70_001)), ("c" * 150, os.urandom(30_011)), ("d", b"")]
DATA = b"raw data of 23 bytes, a"


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
}


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


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_regular_files_of_an_archive(tmp_path: Path, mode: str) -> None:
    path = archive(tmp_path / "raw.tar", *MEMBERS, mode=mode)
    assert contents_of(path) == MEMBERS
    assert [name for name, _, _ in readers.named_members(path, ["d", "b"])] == ["b", "d"]
    with pytest.raises(UserError, match="raw.tar: no member e"):
        list(readers.named_members(path, ["d", "e"]))
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(UserError, match=r": damaged: "):
        contents_of(path)


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
        (b'{"label": ' + b"9" * 5_000 + b', "text": "a"}', "not JSON: Exceeds the limit"),
        (b'{"label": 1, "text": "\xff"}', "not JSON: "),
        (b'{"label": NaN, "text": "a"}', "not JSON: NaN is no JSON number"),
    ],
    ids=["long number", "not UTF-8", "NaN"],
)
def test_a_line_that_is_no_row(tmp_path: Path, line: bytes, message: str) -> None:
    (tmp_path / "raw.jsonl").write_bytes(b'{"label": 1, "text": "a"}\n' + line + b"\n")
    with pytest.raises(UserError, match=f"raw.jsonl:2: {message}"):
        list(readers.json_rows(tmp_path / "raw.jsonl", **TEXTS))


@pytest.mark.parametrize("key", ["data", "folder"])
def test_a_path_is_as_typed_or_below_the_data_folder(tmp_path: Path, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place(cache=tmp_path, data_dir=tmp_path / "raw", workers=1, progress=lambda done, total: None)
    (tmp_path / "raw" / "inner").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    for typed in ("inner", "./inner/", "raw/inner", f"{tmp_path}/raw/inner"):
        assert from_source.located(place, typed, key).samefile(tmp_path / "raw" / "inner")
    with pytest.raises(UserError, match=f"^task.{key}: other: no such file or folder here or in LRA_DATA"):
        from_source.located(place, "other", key)


# ---------------------------------------------------------------- stored digests


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files that are read for a digest, in order."""
    names: list[str] = []
    read = from_source.sha256
    monkeypatch.setattr(from_source, "sha256", lambda path: (names.append(path.name), read(path))[1])
    return names


def stamp(path: Path, *inside: str, verify: bool = False) -> str:
    place = Place(
        cache=path.parent / "cache", data_dir=None, workers=1, progress=lambda done, total: None, verify=verify
    )
    [found] = Source(name="", read=list, paths=[path], inside=inside).stamps(place)
    assert found["name"] == path.name
    return found["sha256"]


def test_a_file_is_read_once_and_again_to_verify(tmp_path: Path, reads: list[str]) -> None:
    (tmp_path / "raw").write_bytes(DATA)
    for _ in range(3):
        assert stamp(tmp_path / "raw") == sha256(DATA).hexdigest()
    assert reads == ["raw"]
    [memo] = (tmp_path / "cache" / "raw").iterdir()
    memo.write_text(memo.read_text().replace(sha256(DATA).hexdigest(), "wrong"))
    assert stamp(tmp_path / "raw") == "wrong"
    assert stamp(tmp_path / "raw", verify=True) == stamp(tmp_path / "raw") == sha256(DATA).hexdigest()
    memo.write_bytes(b"[")
    assert stamp(tmp_path / "raw") == sha256(DATA).hexdigest()
    assert len(reads) == 3


def test_a_folder_is_the_names_and_contents_of_its_files(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    for name, data in {"a/x.txt": b"1", "b/x.txt": b"2", "a/y.jpg": b"3"}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    first = stamp(folder, "a/*.txt", "b/*.txt")
    assert first == digest({"a/x.txt": sha256(b"1").hexdigest(), "b/x.txt": sha256(b"2").hexdigest()})
    (folder / "a/y.jpg").write_bytes(b"4")
    assert stamp(folder, "a/*.txt", "b/*.txt") == first
    (folder / "a/x.txt").rename(folder / "a/z.txt")
    assert stamp(folder, "a/*.txt", "b/*.txt") != first


@pytest.mark.parametrize("replaced", [True, False])
def test_a_change_of_the_same_size_and_time_is_seen(tmp_path: Path, replaced: bool) -> None:
    raw = tmp_path / "raw"
    raw.write_bytes(DATA)
    stamp(raw)
    status, probe = raw.stat(), tmp_path / "probe"
    probe.touch()
    while probe.stat().st_ctime_ns == status.st_ctime_ns:  # the times of files may tick in milliseconds
        probe.touch()
    (probe if replaced else raw).write_bytes(DATA[::-1])
    if replaced:
        os.replace(probe, raw)
    os.utime(raw, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert stamp(raw) == sha256(DATA[::-1]).hexdigest()
