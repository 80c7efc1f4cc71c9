"""Image: CIFAR-10 in grey, read pixel by pixel, row after row; 1,024 tokens, 10 classes.

Long Range Arena trains on the first nine tenths in the order of its loader, which differs from that of the archive, so
its validation split holds other images than ours.

Source:
    Data: Krizhevsky 2009, 50,000 images for training and 10,000 for test. Task: Long Range Arena (Tay et al. 2021).
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import PositiveInt

from lra.core.errors import UserError
from lra.data import hub, readers
from lra.data.baselines import majority
from lra.data.cache import Splits
from lra.data.from_source import Content, FromSource, Source, first, together
from lra.data.groups import held_out, limited
from lra.data.pictures import picture_baselines, sheet
from lra.data.tokenise import BYTE_VOCABULARY
from lra.data.writer import Writer
from lra.tasks import Place, Progress, Task, TaskSpec, titled

VERSION = 2  # 1 had no baseline but the majority class; its pictures are the same
PIXELS = 1_024
CLASSES = 10
BATCH_ROWS = 10_000  # of one official file: five of train, one of test
BATCHES = (*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin")

BINARY, COPIES, HUB = "cifar-10-binary.tar.gz", "cifar10_gray", "uoft-cs/cifar10"
SIZE = "162 MB"
LICENCE = "none stated; cite Krizhevsky 2009"
COPIES_FILES = tuple(
    f"{COPIES}/{split}.{kind}" for split in ("train", "test") for kind in ("images.u8.xz", "labels.u8")
)
COPIES_NOTE = "lossy JPEG copies, order not the original"

Images = tuple[np.ndarray, np.ndarray]
"""Grey pixels [n, 1024] uint8 and labels [n] uint8."""


@dataclass(kw_only=True)
class Image(FromSource):
    """Grey values 0 to 255, id = value + 1, so that no pixel is padding.

    Args:
        limit: maximum number of examples of each split, or None.
    """

    name = "image"

    limit: PositiveInt | None

    def facts_of(self, content: Content) -> TaskSpec:
        return TaskSpec(
            name=titled(self.name, {"JPEG copies": "note" in content, f"limit {self.limit}": self.limit is not None}),
            version=VERSION,
            vocab_size=BYTE_VOCABULARY,
            max_len=PIXELS,
            classes=CLASSES,
            fixed_length=True,
        )

    def find(self, place: Place) -> Source:
        """Return the first of: the official binary archive, the folder of grey copies, the hub."""
        if binary := first(place, BINARY, f"cifar10/{BINARY}"):
            return Source(name=BINARY, files=[binary], read=lambda: _read_binary(binary))
        if files := together(place, COPIES_FILES):
            return Source(
                name=COPIES, files=files, read=lambda: _read_copies(files), content=lambda: {"note": COPIES_NOTE}
            )
        return Source(name=f"the hub: {HUB}", read=lambda: _read_hub(place))

    def fill(self, place: Place, source: Source, writers: dict[str, Writer], staging: Path) -> dict[str, Any]:
        content = source.content()
        for split, images in _splits(source.read(), copies="note" in content).items():
            self._write(writers[split], *images, place.progress)
        return {"licence": LICENCE, **content}

    def _write(self, writer: Writer, pixels: np.ndarray, labels: np.ndarray, progress: Progress) -> None:
        rows = limited(len(labels), self.limit, writer.split)
        for number, row in enumerate(rows, start=1):
            writer.add(int(labels[row]), pixels[row].astype(np.uint16) + 1)
            if number % 1000 == 0:
                progress(number, len(rows))

    def baselines(self, splits: Splits) -> dict[str, float]:
        """Return test accuracies (percent) of the majority class and of `picture_baselines`."""
        train, test = splits["train"], splits["test"]
        return {"majority class": majority(train, test)} | picture_baselines(train, test)

    def show(self, task: Task, number: int) -> bytes:
        rows = np.arange(min(number, len(task.train)))
        return sheet(task.train.pad(rows, PIXELS).astype(np.uint8) - 1, task.train.labels[rows])


def _splits(read: dict[str, Images], *, copies: bool) -> dict[str, Images]:
    """Hold out the last tenth of train for validation; of copies in another order, a seeded tenth of each class."""
    pixels, labels = read["train"]
    held = held_out(labels) if copies else np.arange(len(labels)) >= len(labels) - len(labels) // 10
    return {"train": (pixels[~held], labels[~held]), "val": (pixels[held], labels[held]), "test": read["test"]}


def grey(rgb: np.ndarray) -> np.ndarray:
    """Convert colours to luma 0.2989 R + 0.5870 G + 0.1140 B (ITU-R 601).

    The result is multiplied by 255.5 / 255 and truncated, as in TensorFlow's rgb_to_grayscale, which Long Range Arena
    uses. Integer arithmetic gives the same bytes on every machine.

    Args:
        rgb: channels [..., 3, n] uint8.

    Returns:
        Grey values [..., n] uint8.
    """
    red, green, blue = (rgb[..., channel, :].astype(np.uint32) for channel in range(3))
    return ((2989 * red + 5870 * green + 1140 * blue) * 511 // 5_100_000).astype(np.uint8)


def _read_binary(path: Path) -> dict[str, Images]:
    """Read records of a label and the red, green and blue pixels, row after row."""
    batches = []
    for name, data in zip(BATCHES, readers.named_members(path, *BATCHES), strict=True):
        records = _sized(f"{path}: {name}", data, BATCH_ROWS * (1 + 3 * PIXELS)).reshape(BATCH_ROWS, 1 + 3 * PIXELS)
        labels = _checked(records[:, 0].copy(), f"{path}: {name}")
        batches.append((grey(records[:, 1:].reshape(BATCH_ROWS, 3, PIXELS)), labels))
    pixels, labels = zip(*batches[:-1], strict=True)
    return {"train": (np.concatenate(pixels), np.concatenate(labels)), "test": batches[-1]}


def _read_copies(files: list[Path]) -> dict[str, Images]:
    read = {}
    for split, rows, images, labels in (("train", 5 * BATCH_ROWS, *files[:2]), ("test", BATCH_ROWS, *files[2:])):
        pixels = _sized(str(images), readers.contents(images), rows * PIXELS).reshape(rows, PIXELS)
        read[split] = pixels, _checked(_sized(str(labels), readers.contents(labels), rows), str(labels))
    return read


def _sized(where: str, data: bytes, size: int) -> np.ndarray:
    if len(data) != size:
        raise UserError(f"{where}: {len(data):,} bytes, expected {size:,}")
    return np.frombuffer(data, dtype=np.uint8)


def _checked(labels: np.ndarray, where: str) -> np.ndarray:
    bad = np.flatnonzero(labels >= CLASSES)
    if len(bad):
        raise UserError(f"{where}: image {bad[0] + 1}: label {labels[bad[0]]}, expected 0 to {CLASSES - 1}")
    return labels


def _read_hub(place: Place) -> dict[str, Images]:
    read = {}
    for split, rows in (("train", 5 * BATCH_ROWS), ("test", BATCH_ROWS)):
        data = hub.rows(place, HUB, split=split, size=SIZE, wants=BINARY)
        if len(data) != rows:
            raise UserError(f"{HUB}: {len(data):,} images in {split}, expected {rows:,}")
        pixels, labels = np.empty((rows, PIXELS), dtype=np.uint8), np.empty(rows, dtype=np.uint8)
        for row, example in enumerate(data):
            channels = np.asarray(example["img"]).reshape(PIXELS, 3).T
            pixels[row], labels[row] = grey(channels), example["label"]
        read[split] = pixels, _checked(labels, f"{HUB}: {split}")
    return read
