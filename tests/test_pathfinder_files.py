"""Pathfinder from files: pictures of LRA's layout the splits, and refused files."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from support import data_config

from lra.core.errors import UserError
from lra.tasks import Task
from lra.tasks.pathfinder_files import PathfinderFiles, divided

SIDE, FILES, EACH = 11, 3, 7  # pixels, files of metadata, pictures of each
N = FILES * EACH


def build(folder: Path, *, window: int = SIDE, split: str = "order") -> Task:
    return PathfinderFiles(folder=str(folder), window=window, split=split).build(data_config(folder.parent / "cache"))


@pytest.fixture
def pictures() -> np.ndarray:
    return np.random.default_rng(3).integers(256, size=(N, SIDE, SIDE), dtype=np.uint8)


LABELS = np.arange(N) % 3 % 2  # 0, 1, 0 and so on


@pytest.fixture
def release(tmp_path: Path, pictures: np.ndarray) -> Path:
    """A set in the layout of LRA: 10.npy comes after 2.npy."""
    folder = tmp_path / "curv_baseline"
    (folder / "metadata").mkdir(parents=True)
    for file, name in enumerate((0, 2, 10)):
        (folder / f"imgs/{name}").mkdir(parents=True)
        lines = []
        for number in range(EACH):
            row = file * EACH + number
            Image.fromarray(pictures[row]).save(folder / f"imgs/{name}/sample_{number}.png")
            lines.append(f"imgs/{name} sample_{number}.png {number} {LABELS[row]} 1.8 6 2 5 1 1 1\n")
        (folder / f"metadata/{name}.npy").write_text("".join(lines))
    return folder


def content(task: Task) -> tuple[np.ndarray, np.ndarray]:
    splits = (task.train, task.val, task.test)
    return tuple(
        np.concatenate(parts)
        for parts in zip(*((split.grey(np.arange(len(split))), split.labels) for split in splits), strict=True)
    )


def test_the_pictures_come_in_the_order_of_the_files(release: Path, pictures: np.ndarray) -> None:
    task = build(release)
    assert [len(split) for split in (task.train, task.val, task.test)] == [17, 2, 2]
    pixels, labels = content(task)
    assert (pixels == pictures.reshape(N, -1)).all() and (labels == LABELS).all()
    assert task.max_len == SIDE**2 and task.name.startswith(f"pathfinder {SIDE} (files")
    assert set(task.baselines) == {"majority class", "nearest centroid"}


def test_the_split_of_the_s4_family_is_pytorchs(release: Path, pictures: np.ndarray) -> None:
    """state-spaces/s4, src/dataloaders/lra.py: random_split with seed 42, lengths rounded down."""
    parts = torch.utils.data.random_split(range(N), [17, 2, 2], generator=torch.Generator().manual_seed(42))
    for part, rows in zip(parts, divided(N, "s4").values(), strict=True):
        assert list(part) == rows.tolist()
    task = build(release, split="s4")
    assert (task.test.grey(np.arange(2)) == pictures.reshape(N, -1)[list(parts[2])]).all()
    assert "split s4" in task.name


def test_an_empty_picture_is_named_and_left_out(
    release: Path, pictures: np.ndarray, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LRA's release has an empty picture. However the folder is spelt, the task is the same."""
    (release / "imgs/0/sample_172.png").write_bytes(b"")
    lines = release / "metadata/0.npy"
    lines.write_text(lines.read_text() + "imgs/0 sample_172.png 172 1 1.8 6 2 5 1 1 1\n")
    whole = build(release)
    assert (content(whole)[0] == pictures.reshape(N, -1)).all()
    assert f"{release}/imgs/0/sample_172.png: empty; left out" in capsys.readouterr().err
    monkeypatch.chdir(release)
    assert build(Path("../curv_baseline")).digest == whole.digest


def cut(folder: Path) -> None:
    path = folder / "imgs/2/sample_3.png"
    path.write_bytes(path.read_bytes()[:-40])


def line(text: str) -> Callable[[Path], None]:
    """Change the second line of a file of metadata."""

    def change(folder: Path) -> None:
        path = folder / "metadata/2.npy"
        first, _, *rest = path.read_text().splitlines()
        path.write_text("\n".join([first, text, *rest]))

    return change


def blank(mode: str, width: int) -> Callable[[Path], None]:
    return lambda folder: Image.new(mode, (width, SIDE)).save(folder / "imgs/10/sample_5.png")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (cut, "imgs/2/sample_3.png: not a complete PNG (image file is truncated"),
        (blank("L", SIDE + 2), f"imgs/10/sample_5.png: {SIDE + 2} x {SIDE} pixels of mode L, expected {SIDE} x {SIDE}"),
        (blank("RGB", SIDE), f"imgs/10/sample_5.png: {SIDE} x {SIDE} pixels of mode RGB, expected"),
        (line("imgs/2 sample_99.png 1 0"), "imgs/2/sample_99.png: no such file"),
        (line("imgs/2 sample_1.png 1 2"), "metadata/2.npy:2: 'imgs/2 sample_1.png 1 2', expected a folder, a file"),
        (
            line("imgs/2 sample_1.png"),
            "metadata/2.npy:2: 'imgs/2 sample_1.png', expected a folder, a file, a number, a",
        ),
        (lambda folder: shutil.rmtree(folder / "metadata"), "expected a set of LRA's release"),
    ],
)
def test_a_bad_file_of_a_release_is_named(release: Path, spoil: Callable[[Path], None], message: str) -> None:
    spoil(release)
    with pytest.raises(UserError) as caught:
        build(release)
    assert message in str(caught.value) and "\n" not in caught.value.args[0]
