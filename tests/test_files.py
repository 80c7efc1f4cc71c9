"""JSON is read strictly, and writing a file replaces a link."""

from pathlib import Path

import pytest

from lra.core.files import parse_json, write_atomic


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
