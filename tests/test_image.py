"""Image: grey pixels as token ids, splits in the official order, lossy copies, refused input, published sizes."""

import lzma
from collections import Counter
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL.Image import fromarray
from support import built_under_one_name, composed, data_config, examples_of, refuses

from lra.datasets import hub
from lra.datasets.groups import held_out, limited
from lra.tasks import DataConfig, image
from lra.tasks.image import Image, grey

ROWS = 7  # of the test split


@pytest.fixture(autouse=True)
def few_rows(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """35 and 7 images are all of CIFAR-10, unless real data are read."""
    if "real_data" not in request.fixturenames:
        monkeypatch.setattr(image, "ROWS", {"train": 5 * ROWS, "test": ROWS})


def as_copies(folder: Path, rows: int = ROWS) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Grey files of 5 x `rows` and `rows` images; returns their pixels and labels."""
    folder = folder / "cifar10_gray"
    folder.mkdir(parents=True)
    rng = np.random.default_rng(6)
    written = {}
    for split, count in (("train", 5 * rows), ("test", rows)):
        pixels = rng.integers(256, size=(count, 1024), dtype=np.uint8)
        labels = (np.arange(count) % 10).astype(np.uint8)
        (folder / f"{split}.images.u8.xz").write_bytes(lzma.compress(pixels.tobytes(), preset=0))
        (folder / f"{split}.labels.u8").write_bytes(labels.tobytes())
        written[split] = pixels, labels
    return written


def expected(rows: list[tuple[int, np.ndarray]]) -> list[tuple[list[int], int]]:
    """Pixel by pixel in plain integers: luma as TensorFlow rounds it, plus one."""
    documents = []
    for label, colours in rows:
        red, green, blue = (colours[..., channel].ravel().tolist() for channel in range(3))
        pixels = zip(red, green, blue, strict=True)
        documents.append(([(2989 * r + 5870 * g + 1140 * b) * 511 // 5_100_000 + 1 for r, g, b in pixels], label))
    return documents


# ---------------------------------------------------------------- grey


def test_grey_is_the_rounding_of_tensorflow() -> None:
    corners = np.array([[0, 0, 0], [255, 255, 255], [255, 0, 0], [0, 255, 0], [0, 0, 255]], dtype=np.uint8)
    # x 255.5: 0.2989 -> 76.4, 0.5870 -> 149.98, 0.1140 -> 29.1; the weights sum to 0.9999, 255.47
    assert grey(corners).tolist() == [0, 255, 76, 149, 29]
    colours = np.random.default_rng(2).integers(256, size=(101, 31, 3), dtype=np.uint8)
    luma = colours.astype(float) / 255 @ np.array([0.2989, 0.5870, 0.1140])
    np.testing.assert_array_equal(np.floor(luma * 255.5), grey(colours))


# ---------------------------------------------------------------- the hub


def test_the_hub_is_read_in_the_official_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(5)
    rows = {
        split: [(int(rng.integers(10)), rng.integers(256, size=(32, 32, 3), dtype=np.uint8)) for _ in range(count)]
        for split, count in (("train", 5 * ROWS), ("test", ROWS))
    }

    def fetched(place: DataConfig, dataset: str, counts: dict[str, int], **_: Any) -> dict[str, list[dict[str, Any]]]:
        return {split: [{"img": fromarray(img), "label": label} for label, img in rows[split]] for split in counts}

    monkeypatch.setattr(hub, "rows", fetched)
    task = Image(limit=None).build(data_config(tmp_path))
    train = expected(rows["train"])
    assert (len(task.train), len(task.val), len(task.test)) == (32, 3, 7)
    assert (examples_of(task.train), examples_of(task.val)) == (train[:32], train[32:])
    assert examples_of(task.test) == expected(rows["test"])
    assert (task.name, task.source["from"]) == ("image", "the hub: uoft-cs/cifar10")


# ---------------------------------------------------------------- copies


def test_jpeg_copies_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image, "ROWS", {"train": 100, "test": 20})  # 10 of each class
    written = as_copies(tmp_path / "data", 20)
    task = Image(limit=None).build(data_config(tmp_path / "cache", tmp_path / "data"))
    assert task.name == "image (JPEG copies)"
    assert "JPEG" in task.source["note"]
    assert len(task.source["sha256"]) == 4
    assert np.bincount(task.train.labels).tolist() == [9] * 10
    assert np.bincount(task.val.labels).tolist() == [1] * 10
    assert task.val.labels.tolist() != list(range(10))  # drawn, not the last ones

    def rows(pixels: np.ndarray, labels: np.ndarray) -> list[tuple[list[int], int]]:
        return [((row.astype(int) + 1).tolist(), int(label)) for row, label in zip(pixels, labels, strict=True)]

    assert sorted(examples_of(task.train) + examples_of(task.val)) == sorted(rows(*written["train"]))
    assert examples_of(task.test) == rows(*written["test"])
    limited_task = Image(limit=3).build(data_config(tmp_path / "cache", tmp_path / "data"))
    assert limited_task.name == "image (JPEG copies, limit 3)"
    assert (len(limited_task.train), len(limited_task.val), len(limited_task.test)) == (3, 3, 3)


# ---------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("train.images.u8.xz", b"no xz", "train.images.u8.xz: not readable"),
        ("train.images.u8.xz", lzma.compress(b"a" * 1024), "train.images.u8.xz: 1,024 bytes, expected 35,840"),
        ("test.labels.u8", b"\0" * 6 + b"\x0b", "test has the label 11, expected 0 to 9"),
        ("test.labels.u8", None, "test.labels.u8: no such file; expected all of .*train.images.u8.xz"),
    ],
)
def test_bad_copies_are_refused(tmp_path: Path, name: str, data: bytes | None, message: str) -> None:
    as_copies(tmp_path / "data")
    path = tmp_path / "data" / "cifar10_gray" / name
    path.unlink()
    if data is not None:
        path.write_bytes(data)
    refuses(Image(limit=None), data_config(tmp_path / "cache", tmp_path / "data"), message)


# ---------------------------------------------------------------- configuration


BASE = {"dim": 128, "qkv_dim": 64, "heads": 8, "depth": 1, "mlp_dim": 128, "dropout": 0.3, "pooling": "cls"}
RELEASED = {  # google-research/long-range-arena, lra_benchmarks/image/configs/cifar10, where they differ from BASE
    "transformer": {},  # transformer_base.py
    "synthesizer": {},  # synthesizer_base.py
    "sinkhorn": {"dim": 32, "qkv_dim": 32, "heads": 1, "mlp_dim": 64, "dropout": 0.1},  # sinkhorn_base.py
    "sparse": {},  # sparse_transformer_base.py
    "reformer": {"dim": 64, "qkv_dim": 32, "mlp_dim": 64, "depth": 4},  # reformer_base.py
    "local": {"heads": 2, "pooling": "mean"},  # local_base.py
    "longformer": {"depth": 4, "heads": 4, "pooling": "mean"},  # longformer_base.py
    "linformer": {},  # linformer_base.py
    "bigbird": {"heads": 4},  # bigbird_base.py
    "linear": {},  # linear_transformer_base.py
    "performer": {},  # performer_base.py
}  # fmt: skip


@pytest.mark.parametrize("system", RELEASED)
def test_every_system_has_its_published_configuration(system: str) -> None:
    cfg = composed("task=image", f"system={system}", "protocol=lra")
    assert {key: cfg.model[key] for key in BASE} == {**BASE, **RELEASED[system]}
    train = cfg.train
    rates = (train.lr, train.weight_decay, train.steps, train.warmup, train.batch_size)
    assert rates == (0.0005, 0.7 if system == "sinkhorn" else 0.0, 200 * 175, 175, 256)
    assert (train.schedule, train.clip_norm, train.selection) == ("cosine", None, "last")
    sizes = {
        "local": ("window", 64),
        "bigbird": ("block", 64),
        "sinkhorn": ("block", 64),
        "longformer": ("window", 512),
    }
    if system in sizes:
        key, value = sizes[system]
        assert cfg.attention[key] == value


@pytest.mark.parametrize("task", ["image", "pathfinder", "pathx"])
def test_simple_attention_trains_where_google_has_narrower_heads(task: str) -> None:
    model = composed(f"task={task}", "system=simple", "protocol=lra").model
    assert model.qkv_dim == model.dim  # it has no output projection


# ---------------------------------------------------------------- the real images


def grey_copies(folder: Path, split: str) -> list[tuple[bytes, int]]:
    with lzma.open(folder / f"{split}.images.u8.xz") as file:
        pixels = file.read()
    labels = (folder / f"{split}.labels.u8").read_bytes()
    assert len(pixels) == 1024 * len(labels)
    return [(pixels[1024 * row : 1024 * (row + 1)], label) for row, label in enumerate(labels)]


@pytest.mark.slow
@pytest.mark.parametrize("limit", [1_009, None])
def test_real_copies_are_read_as_plain_python_reads_them(real_data: Path, tmp_path: Path, limit: int | None) -> None:
    task = built_under_one_name(Image(limit=limit), data_config(tmp_path, real_data))
    assert task.name == ("image (JPEG copies)" if limit is None else "image (JPEG copies, limit 1009)")
    train, test = (grey_copies(real_data / "cifar10_gray", split) for split in ("train", "test"))
    held = held_out(np.array([label for _, label in train]))
    divided = {"train": list(compress(train, ~held)), "val": list(compress(train, held)), "test": test}
    for split, count in (("train", 4500), ("val", 500), ("test", 1000)):
        assert Counter(label for _, label in divided[split]) == dict.fromkeys(range(10), count)
        rows = [divided[split][row] for row in limited(10 * count, limit, split)]
        dataset = getattr(task, split)
        assert dataset.labels.tolist() == [label for _, label in rows]
        for row in [0, len(rows) - 1, *np.random.default_rng(3).choice(len(rows), size=200, replace=False).tolist()]:
            assert dataset.document(row).tolist() == [value + 1 for value in rows[row][0]]
    if limit is None:
        assert task.baselines == pytest.approx({"majority class": 10.0, "nearest centroid": 24.16}, abs=0.01)
