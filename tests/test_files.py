"""Strict reading: only regular files, of a limited size and depth; and writing that follows no link."""

import json
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from lra.core.files import JSON_DEPTH, open_regular, parse_json, read_json, read_regular, sweep_partials, write_atomic


def socket_at(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as unix_socket:
        unix_socket.bind(path.name)


KINDS: dict[str, Callable[[Path], object]] = {
    "a folder": Path.mkdir,
    "a FIFO": os.mkfifo,
    "a socket": socket_at,
    "a device": lambda path: path.symlink_to("/dev/zero"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_only_regular_files_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Nothing waits for the writer of a FIFO, and nothing reads a device without end."""
    monkeypatch.chdir(tmp_path)
    KINDS[kind](Path("one"))
    with pytest.raises(ValueError, match="expected a regular file"):
        read_regular(Path("one"), 100, follow=True)


def test_a_symbolic_link_is_followed_only_where_that_is_wanted(tmp_path: Path) -> None:
    path, target = tmp_path / "link", tmp_path / "target"
    target.write_bytes(b"text")
    path.symlink_to(target)
    for open_link in (lambda: read_regular(path, 100), lambda: open_regular(path, os.O_RDWR | os.O_CREAT)):
        with pytest.raises(ValueError, match="expected a regular file"):
            open_link()
    assert read_regular(path, 100, follow=True) == b"text"
    write_atomic(path, b"other")
    assert (path.is_symlink(), path.read_bytes(), target.read_bytes()) == (False, b"other", b"text")


def test_a_file_has_a_limited_size(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    assert read_regular(path, 5) == b"12345"
    with pytest.raises(ValueError, match="expected at most 4 bytes, found 5"):
        read_json(path, 4)
    with pytest.raises(FileNotFoundError):
        read_json(tmp_path / "none")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[" * 100_000, "nested deeper"),
        ("[" * (JSON_DEPTH + 1) + "]" * (JSON_DEPTH + 1), "nested deeper"),
        ('{"a":' * (JSON_DEPTH + 1) + "1" + "}" * (JSON_DEPTH + 1), "nested deeper"),
        ("9" * 5000, "integer string conversion"),
        ("[NaN]", "NaN is no JSON number"),
        ("-Infinity", "-Infinity is no JSON number"),
        ("[1,]", "Expecting value|trailing comma"),
        (b"\xff\xfe\xff", "decode"),
    ],
    ids=range(8),
)
def test_json_is_strict(text: str | bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_json(text)


def test_json_of_the_greatest_depth_is_read() -> None:
    text = "[" * JSON_DEPTH + "]" * JSON_DEPTH
    assert parse_json(text) == json.loads(text)


def test_two_writers_of_one_file_have_names_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also on two machines where both have the same process number."""
    partial = []
    replace = os.replace

    def note(source: Path, target: Path) -> None:
        partial.append(source.name)
        replace(source, target)

    monkeypatch.setattr(os, "replace", note)
    for _ in range(2):
        write_atomic(tmp_path / "file", b"text")
    assert len(set(partial)) == 2


def test_what_was_left_half_written_goes(tmp_path: Path) -> None:
    """Whatever process wrote it: this process may have the number of the one that was killed."""
    for name in (f".file.{os.getpid()}.tmp", ".file.1.tmp", ".file.0123456789abcdef.tmp", "file.tmp", ".run.lock"):
        (tmp_path / name).touch()
    sweep_partials(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".run.lock", "file.tmp"]
