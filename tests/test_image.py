"""Image: grey pixels as token ids, splits in the official order, lossy copies, refused input, published sizes."""

import io
import lzma
import tarfile
from collections import Counter
from collections.abc import Callable
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
from support import built_under_one_name, composed, place

from lra.core.errors import UserError
from lra.core.files import sha256
from lra.data import hub
from lra.data.groups import held_out, limited
from lra.report.published import Published
from lra.tasks import Place, Split, image
from lra.tasks.image import Image, grey

ROWS = 7  # of an official file
NAMES = [*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"]
Batches = dict[str, list[tuple[int, np.ndarray]]]


@pytest.fixture(autouse=True)
def few_rows(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """An official file has 7 images here, unless real data are read."""
    if "real_data" not in request.fixturenames:
        monkeypatch.setattr(image, "BATCH_ROWS", ROWS)


@pytest.fixture
def batches() -> Batches:
    """Random labels and colours [3, 32, 32] of every official file."""
    rng = np.random.default_rng(5)
    return {
        name: [(int(rng.integers(10)), rng.integers(256, size=(3, 32, 32), dtype=np.uint8)) for _ in range(ROWS)]
        for name in NAMES
    }


def records(rows: list[tuple[int, np.ndarray]]) -> bytes:
    return b"".join(bytes([label]) + colours.tobytes() for label, colours in rows)


def write_archive(folder: Path, members: dict[str, bytes], name: str = "cifar-10-binary.tar.gz") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(folder / name, "w:gz") as archive:
        for member_name, data in members.items():
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{member_name}")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return folder / name


def as_archive(folder: Path, batches: Batches) -> Path:
    """The members in another order than their numbers, with the text files beside them."""
    members = {name: records(batches[name]) for name in reversed(NAMES)}
    return write_archive(folder, {"batches.meta.txt": b"airplane", **members, "readme.html": b"x"})


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


def stored(split: Split) -> list[tuple[list[int], int]]:
    return [(split.document(row).tolist(), int(split.labels[row])) for row in range(len(split))]


def expected(rows: list[tuple[int, np.ndarray]]) -> list[tuple[list[int], int]]:
    """Pixel by pixel in plain integers: luma as TensorFlow rounds it, plus one."""
    documents = []
    for label, colours in rows:
        red, green, blue = (channel.ravel().tolist() for channel in colours)
        pixels = zip(red, green, blue, strict=True)
        documents.append(([(2989 * r + 5870 * g + 1140 * b) * 511 // 5_100_000 + 1 for r, g, b in pixels], label))
    return documents


# ---------------------------------------------------------------- grey


def test_grey_is_the_rounding_of_tensorflow() -> None:
    corners = np.array([[[0, 255, 255, 0, 0], [0, 255, 0, 255, 0], [0, 255, 0, 0, 255]]], dtype=np.uint8)
    # x 255.5: 0.2989 -> 76.4, 0.5870 -> 149.98, 0.1140 -> 29.1; the weights sum to 0.9999, 255.47
    assert grey(corners).ravel().tolist() == [0, 255, 76, 149, 29]
    colours = np.random.default_rng(2).integers(256, size=(101, 3, 31), dtype=np.uint8)
    luma = np.tensordot(np.array([0.2989, 0.5870, 0.1140]), colours.astype(float) / 255, axes=(0, 1))
    np.testing.assert_array_equal(np.floor(luma * 255.5), grey(colours))


# ---------------------------------------------------------------- the official archive


def test_the_archive_is_read_in_the_official_order(tmp_path: Path, batches: Batches) -> None:
    archive = as_archive(tmp_path / "data", batches)
    task = Image(limit=None).build(place(tmp_path / "cache", tmp_path / "data"))
    train = expected([row for name in NAMES[:5] for row in batches[name]])
    assert (len(task.train), len(task.val), len(task.test)) == (32, 3, 7)
    assert stored(task.train) == train[:32]
    assert stored(task.val) == train[32:]
    assert stored(task.test) == expected(batches["test_batch.bin"])
    assert task.name == "image"
    assert task.source["sha256"] == {archive.name: sha256(archive)}


def test_a_sheet_shows_the_images(tmp_path: Path, batches: Batches) -> None:
    as_archive(tmp_path / "data", batches)
    builder = Image(limit=None)
    task = builder.build(place(tmp_path / "cache", tmp_path / "data"))
    with PIL.Image.open(io.BytesIO(builder.show(task, 1))) as sheet:
        shown = np.asarray(sheet)[18 : 18 + 32 * 3 : 3, 4 : 4 + 32 * 3 : 3]
    assert (shown.ravel() + 1.0).tolist() == stored(task.train)[0][0]


def test_the_hub_gives_the_same_images(tmp_path: Path, batches: Batches, monkeypatch: pytest.MonkeyPatch) -> None:
    from PIL.Image import fromarray

    def fetched(place: Place, dataset: str, *, split: str, size: str, wants: str) -> list[dict[str, Any]]:
        names = NAMES[:5] if split == "train" else NAMES[5:]
        rows = [row for name in names for row in batches[name]]
        return [{"img": fromarray(colours.transpose(1, 2, 0)), "label": label} for label, colours in rows]

    monkeypatch.setattr(hub, "rows", fetched)
    as_archive(tmp_path / "data", batches)
    from_archive = Image(limit=None).build(place(tmp_path / "one", tmp_path / "data"))
    from_hub = Image(limit=None).build(place(tmp_path / "two", None))
    assert from_hub.digest == from_archive.digest
    assert (from_hub.name, from_hub.source["from"]) == ("image", "the hub: uoft-cs/cifar10")


# ---------------------------------------------------------------- copies


def test_copies_say_that_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image, "BATCH_ROWS", 20)  # 10 of each class
    written = as_copies(tmp_path / "data", 20)
    task = Image(limit=None).build(place(tmp_path / "cache", tmp_path / "data"))
    assert task.name == "image (JPEG copies)"
    assert "JPEG" in task.source["note"]
    assert len(task.source["sha256"]) == 4
    assert np.bincount(task.train.labels).tolist() == [9] * 10
    assert np.bincount(task.val.labels).tolist() == [1] * 10
    assert task.val.labels.tolist() != list(range(10))  # drawn, not the last ones

    def rows(pixels: np.ndarray, labels: np.ndarray) -> list[tuple[list[int], int]]:
        return [((row.astype(int) + 1).tolist(), int(label)) for row, label in zip(pixels, labels, strict=True)]

    assert sorted(stored(task.train) + stored(task.val)) == sorted(rows(*written["train"]))
    assert stored(task.test) == rows(*written["test"])
    limited_task = Image(limit=3).build(place(tmp_path / "cache", tmp_path / "data"))
    assert limited_task.name == "image (JPEG copies, limit 3)"
    assert (len(limited_task.train), len(limited_task.val), len(limited_task.test)) == (3, 3, 3)


# ---------------------------------------------------------------- bad input


def refused(tmp_path: Path, message: str) -> None:
    with pytest.raises(UserError, match=message) as error:
        Image(limit=None).build(place(tmp_path / "cache", tmp_path / "data"))
    assert "\n" not in str(error.value)
    assert not list(tmp_path.rglob("manifest.json"))


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("data_batch_3.bin", lambda data: None, "no member data_batch_3.bin"),
        ("test_batch.bin", lambda data: data[:3072], "test_batch.bin: 3,072 bytes, expected 21,511"),
        (
            "data_batch_2.bin",
            lambda data: data[:3073] + b"\x0a" * 3073 * 6,
            "data_batch_2.bin: image 2: label 10, expected 0 to 9",
        ),
    ],
)
def test_a_bad_archive_is_refused(tmp_path: Path, batches: Batches, name: str, change: Callable, message: str) -> None:
    members = {member: records(batches[member]) for member in NAMES}
    members[name] = change(members[name])
    write_archive(tmp_path / "data", {member: data for member, data in members.items() if data is not None})
    refused(tmp_path, f"cifar-10-binary.tar.gz: .*{message}")


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("train.images.u8.xz", b"no xz", "train.images.u8.xz: not readable"),
        ("train.images.u8.xz", lzma.compress(b"a" * 1024), "train.images.u8.xz: 1,024 bytes, expected 35,840"),
        ("test.labels.u8", b"\0" * 6 + b"\x0b", "test.labels.u8: image 7: label 11, expected 0 to 9"),
        ("test.labels.u8", None, "test.labels.u8: no such file; it belongs to .*train.images.u8.xz"),
    ],
)
def test_bad_copies_are_refused(tmp_path: Path, name: str, data: bytes | None, message: str) -> None:
    as_copies(tmp_path / "data")
    path = tmp_path / "data" / "cifar10_gray" / name
    path.unlink()
    if data is not None:
        path.write_bytes(data)
    refused(tmp_path, message)


def test_another_number_of_images_on_the_hub_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data").mkdir()
    monkeypatch.setattr(hub, "rows", lambda *_, **__: [])
    refused(tmp_path, "uoft-cs/cifar10: 0 images in train, expected 35")


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


def test_no_published_number_is_for_copies() -> None:
    source = Published().source("image")
    assert source is not None and source.number("Transformer", "image") == 42.44
    assert [Published().source(f"image ({note})") for note in ("JPEG copies", "limit 5")] == [None, None]


# ---------------------------------------------------------------- the real images


def grey_copies(folder: Path, split: str) -> list[tuple[bytes, int]]:
    with lzma.open(folder / f"{split}.images.u8.xz") as file:
        pixels = file.read()
    labels = (folder / f"{split}.labels.u8").read_bytes()
    assert len(pixels) == 1024 * len(labels)
    return [(pixels[1024 * row : 1024 * (row + 1)], label) for row, label in enumerate(labels)]


@pytest.mark.slow
@pytest.mark.parametrize("limit", [1_009, None])
def test_real_copies_are_read_as_plain_python_reads_them(
    real_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int | None
) -> None:
    monkeypatch.setattr(image, "picture_baselines", lambda *_: {})  # it trains; the slow test below has it
    task = built_under_one_name(Image(limit=limit), place(tmp_path, real_data))
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


@pytest.mark.slow
def test_baselines_of_the_real_copies(real_data: Path, tmp_path: Path) -> None:
    majority, centroid, convolution = Image(limit=None).build(place(tmp_path, real_data)).baselines.values()
    assert majority == 10.0 < centroid < convolution
