"""Readers of raw files, errors that name file and line, and stored digests of raw data."""

import gzip
import lzma
import os
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest
from support import data_config

from lra.core.errors import UserError
from lra.datasets import cache, readers
from lra.tasks.listops import ListOpsFiles

DATA = b"raw data of 23 bytes, a"


@pytest.mark.parametrize(("end", "pack"), [("", bytes), (".gz", gzip.compress), (".xz", lzma.compress)])
def test_lines_of_compressed_files(tmp_path: Path, end: str, pack: Callable) -> None:
    path = tmp_path / f"raw.tsv{end}"
    path.write_bytes(pack(b"one\r\ntwo\n\nlast"))
    assert list(readers.lines(path)) == [(f"{path}:{n}", line) for n, line in ((1, b"one"), (2, b"two"), (4, b"last"))]
    if end:
        path.write_bytes(path.read_bytes()[:-9])
        with pytest.raises(UserError, match=f"raw.tsv{end}: not readable: "):
            list(readers.lines(path))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"label": ' + b"9" * 5_000 + b', "text": "a"}', "not JSON: Exceeds the limit"),
        (b'{"label": 1, "text": "\xff"}', "not UTF-8"),
        (b'{"label": NaN, "text": "a"}', "not JSON: NaN is no JSON number"),
        (b'{"label": true, "text": "a"}', "field 'label' is True, expected int"),
        (b'{"label": 1}', "field 'text' is None, expected str"),
        (b"[1]", r"\[1\], expected an object with label, text"),
    ],
    ids=["long number", "not UTF-8", "NaN", "bool", "no text", "list"],
)
def test_a_line_that_is_no_row(tmp_path: Path, line: bytes, message: str) -> None:
    (tmp_path / "raw.jsonl").write_bytes(b'{"label": 1, "text": "a"}\n' + line + b"\n")
    with pytest.raises(UserError, match=f"raw.jsonl:2: {message}"):
        list(readers.json_rows(tmp_path / "raw.jsonl", label=int, text=str))


@pytest.mark.parametrize("key", ["data", "folder"])
def test_a_path_is_as_typed_or_below_the_data_folder(tmp_path: Path, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "raw" / "inner").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    builder = ListOpsFiles(folder="", max_length=1).at(data_config(tmp_path, tmp_path / "raw"))
    for typed in ("inner", "./inner/", "raw/inner", f"{tmp_path}/raw/inner"):
        assert builder.located(typed, key).samefile(tmp_path / "raw" / "inner")
    with pytest.raises(UserError, match=f"^task.{key}: other: no such file or folder here or in LRA_DATA"):
        builder.located("other", key)


# ---------------------------------------------------------------- stored digests


def digests(*paths: Path) -> dict[str, str]:
    builder = ListOpsFiles(folder="", max_length=1).at(data_config(paths[0].parent / "cache"))
    builder.files = lambda: [*paths]
    return cache.raw_sha256(builder)


@pytest.mark.parametrize("replaced", [True, False])
def test_a_change_of_the_same_size_and_time_is_seen(tmp_path: Path, replaced: bool) -> None:
    raw = tmp_path / "raw"
    raw.write_bytes(DATA)
    digests(raw)
    status, probe = raw.stat(), tmp_path / "probe"
    probe.touch()
    while probe.stat().st_ctime_ns == status.st_ctime_ns:  # the times of files may tick in milliseconds
        probe.touch()
    (probe if replaced else raw).write_bytes(DATA[::-1])
    if replaced:
        os.replace(probe, raw)
    os.utime(raw, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert digests(raw) == {"raw": sha256(DATA[::-1]).hexdigest()}
