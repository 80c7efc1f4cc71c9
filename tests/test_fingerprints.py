"""What is remembered of raw data saves reading them; where it is wrong or damaged, that costs another reading."""

import os
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest

from lra.core.errors import UserError
from lra.core.files import digest
from lra.data import fingerprints
from lra.tasks import Place

DATA = b"raw data of 23 bytes, a"


def place(folder: Path, verify: bool = False) -> Place:
    return Place(cache=folder / "cache", data_dir=folder, workers=1, progress=lambda done, total: None, verify=verify)


@pytest.fixture
def raw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that may be remembered at once."""
    monkeypatch.setattr(fingerprints, "SETTLED_NS", -1)
    (tmp_path / "raw").write_bytes(DATA)
    return tmp_path / "raw"


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that were read, in their order."""
    names: list[str] = []
    read = fingerprints.sha256

    def counted(path: Path) -> str:
        names.append(path.name)
        return read(path)

    monkeypatch.setattr(fingerprints, "sha256", counted)
    return names


def test_a_file_is_read_once(tmp_path: Path, raw: Path, reads: list[str]) -> None:
    for _ in range(3):
        assert fingerprints.stamps(place(tmp_path), [raw]) == [{"name": "raw", "sha256": sha256(DATA).hexdigest()}]
    assert reads == ["raw"]


def test_a_folder_is_the_names_and_contents_of_its_files(tmp_path: Path, raw: Path, reads: list[str]) -> None:
    folder = tmp_path / "folder"
    for name, data in {"a/x.txt": b"1", "b/x.txt": b"2", "a/y.jpg": b"3"}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)

    def stamp(*patterns: str) -> str:
        return fingerprints.stamps(place(tmp_path), [folder], inside=patterns)[0]["sha256"]

    first = stamp("a/*.txt", "b/*.txt")
    assert first == digest({"a/x.txt": sha256(b"1").hexdigest(), "b/x.txt": sha256(b"2").hexdigest()})
    assert stamp("a/*.txt", "b/*.txt") == first
    assert len(reads) == 2
    (folder / "a/y.jpg").write_bytes(b"4")
    assert stamp("a/*.txt", "b/*.txt") == first
    (folder / "a/x.txt").rename(folder / "a/z.txt")
    assert stamp("a/*.txt", "b/*.txt") != first


def edited(path: Path) -> None:
    path.write_bytes(DATA[::-1])


def edited_with_its_time(path: Path) -> None:
    status = path.stat()
    edited(path)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def replaced(path: Path) -> None:
    (path.parent / "new").write_bytes(DATA[::-1])
    status = path.stat()
    os.utime(path.parent / "new", ns=(status.st_atime_ns, status.st_mtime_ns))
    os.replace(path.parent / "new", path)


@pytest.mark.parametrize("change", [edited, edited_with_its_time, replaced])
def test_a_change_of_the_same_size_is_seen(tmp_path: Path, raw: Path, change: Callable[[Path], None]) -> None:
    fingerprints.stamps(place(tmp_path), [raw])
    probe, before = tmp_path / "probe", raw.stat().st_ctime_ns
    probe.touch()
    while probe.stat().st_ctime_ns == before:  # the times of files may tick in milliseconds
        probe.touch()
    change(raw)
    assert fingerprints.stamps(place(tmp_path), [raw])[0]["sha256"] == sha256(DATA[::-1]).hexdigest()


def test_a_file_that_has_just_changed_is_not_remembered(tmp_path: Path, raw: Path, monkeypatch) -> None:
    """Another change may come within the resolution of its times."""
    monkeypatch.setattr(fingerprints, "SETTLED_NS", 10**15)
    fingerprints.stamps(place(tmp_path), [raw])
    assert not (tmp_path / "cache").exists()


def test_verify_reads_anew_and_corrects(tmp_path: Path, raw: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system whose times say nothing."""
    monkeypatch.setattr(fingerprints, "_state", lambda files: ("the same", 0))
    before = fingerprints.stamps(place(tmp_path), [raw])
    raw.write_bytes(DATA[::-1])
    assert fingerprints.stamps(place(tmp_path), [raw]) == before
    now = fingerprints.stamps(place(tmp_path, verify=True), [raw])
    assert now[0]["sha256"] == sha256(DATA[::-1]).hexdigest()
    assert fingerprints.stamps(place(tmp_path), [raw]) == now


def test_data_that_change_while_they_are_read_are_refused(tmp_path: Path, raw: Path) -> None:
    known = fingerprints.stamps(place(tmp_path), [raw])
    assert fingerprints.confirmed(place(tmp_path), [raw], known) == {"raw": sha256(DATA).hexdigest()}
    raw.write_bytes(DATA + b"more")
    with pytest.raises(UserError, match="raw: changed while it was read"):
        fingerprints.confirmed(place(tmp_path), [raw], known)


def test_a_cache_that_cannot_be_written_costs_reading(tmp_path: Path, raw: Path, reads: list[str]) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "raw").write_text("a file")
    for _ in range(2):
        fingerprints.stamps(place(tmp_path), [raw])
    assert reads == ["raw", "raw"]


def test_a_damaged_memo_costs_reading(tmp_path: Path, raw: Path, reads: list[str]) -> None:
    expected = fingerprints.stamps(place(tmp_path), [raw])
    [memo] = (tmp_path / "cache" / "raw").iterdir()
    whole = memo.read_bytes()
    for damage in (whole[:-9], b"", b"[]", b"[" * 10**5, b"\xff", whole.replace(b'"value"', b'"walue"')):
        memo.write_bytes(damage)
        assert fingerprints.stamps(place(tmp_path), [raw]) == expected, damage
    assert len(reads) == 7
