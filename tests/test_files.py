"""JSON is strict, and writes replace whole files."""

import os
from pathlib import Path

import pytest

from lra.core.files import parse_json, sweep_partials, write_atomic


def test_a_link_is_replaced_and_its_target_is_kept(tmp_path: Path) -> None:
    path, target = tmp_path / "link", tmp_path / "target"
    target.write_bytes(b"text")
    path.symlink_to(target)
    write_atomic(path, b"other")
    assert (path.is_symlink(), path.read_bytes(), target.read_bytes()) == (False, b"other", b"text")


@pytest.mark.parametrize("text", ["[NaN]", "-Infinity", "[1,]", b"\xff\xfe\xff"], ids=range(4))
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
