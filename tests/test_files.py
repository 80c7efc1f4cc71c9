"""Only regular files of a limited size are read, JSON is strict, and writes replace whole files."""

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from lra.core.files import parse_json, read_json, read_regular, sweep_partials, write_atomic


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
        read_regular(Path("one"), 100)


def test_links_are_read_and_replaced(tmp_path: Path) -> None:
    path, target = tmp_path / "link", tmp_path / "target"
    target.write_bytes(b"text")
    path.symlink_to(target)
    assert read_regular(path, 4) == b"text"
    write_atomic(path, b"other")
    assert (path.is_symlink(), path.read_bytes(), target.read_bytes()) == (False, b"other", b"text")
    with pytest.raises(ValueError, match="expected at most 4 bytes, found 5"):
        read_json(path, 4)


@pytest.mark.parametrize(
    "text", ["[" * 100_000, "9" * 5000, "[NaN]", "-Infinity", "[1,]", b"\xff\xfe\xff"], ids=range(6)
)
def test_json_is_strict(text: str | bytes) -> None:
    with pytest.raises(ValueError):
        parse_json(text)


def test_partial_files_have_names_of_their_own_and_are_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also on two machines where both have the same process number."""
    partial, replace = [], os.replace

    def note(source: Path, target: Path) -> None:
        partial.append(source.name)
        replace(source, target)

    monkeypatch.setattr(os, "replace", note)
    for _ in range(2):
        write_atomic(tmp_path / "file", b"text")
    assert len(set(partial)) == 2
    for name in (*partial, "file.tmp", ".run.lock"):
        (tmp_path / name).touch()
    sweep_partials(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".run.lock", "file", "file.tmp"]
