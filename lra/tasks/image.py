"""Image: CIFAR-10 in grey, read pixel by pixel, row after row; 1,024 tokens, 10 classes.

Long Range Arena trains on the first 90 % of train in the order of its own loader, so its validation split has other
images than the one built here.

Source:
    Data: Krizhevsky 2009, 50,000 images for training and 10,000 for test. Task: Long Range Arena (Tay et al. 2021).
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import PositiveInt

from lra.core.errors import UserError
from lra.datasets import hub, readers
from lra.datasets.baselines import majority, nearest_centroid
from lra.datasets.builder import FromSource, Source
from lra.datasets.cache import Splits, Writer
from lra.datasets.groups import held_out, limited
from lra.datasets.tokenise import BYTE_VOCABULARY, picture_of
from lra.tasks import DataConfig, TaskSpec, titled

VERSION = 2  # version 1 had the same pictures, but only the majority class as a baseline
PIXELS = 1_024
CLASSES = 10
ROWS = {"train": 50_000, "test": 10_000}

COPIES, HUB = "cifar10_gray", "uoft-cs/cifar10"
LICENCE = "none stated; cite Krizhevsky 2009"
IMAGES, LABELS = "images.u8.xz", "labels.u8"
COPIES_FILES = {f"{split}.{kind}": f"{COPIES}/{split}.{kind}" for split in ROWS for kind in (IMAGES, LABELS)}
COPIES_NOTE = "lossy JPEG copies, order not the original"

Images = tuple[np.ndarray, np.ndarray]
"""Grey pixels [n, 1024] uint8 and labels [n] uint8."""


@dataclass(kw_only=True)
class Image(FromSource):
    """Builder of the task; an example is a picture, and a token is a grey value (0 to 255) + 1, since 0 is padding.

    Args:
        limit: maximum number of examples of each split, or None.
    """

    name = "image"

    limit: PositiveInt | None

    @property
    def spec(self) -> TaskSpec:
        copies = bool(self.together(COPIES_FILES))
        return TaskSpec(
            name=titled(self.name, {"JPEG copies": copies, f"limit {self.limit}": self.limit is not None}),
            version=VERSION,
            vocab_size=BYTE_VOCABULARY,
            max_len=PIXELS,
            classes=CLASSES,
            fixed_length=True,
        )

    def find(self) -> Source:
        """Return the source: the folder of grey copies if it exists, else the hub."""
        if files := self.together(COPIES_FILES):
            return Source(name=COPIES, files=[*files.values()], read=lambda: _read_copies(files))
        return Source(name=f"the hub: {HUB}", read=lambda: _read_hub(self.config))

    def fill(self, source: Source, writers: dict[str, Writer], folder: Path) -> dict[str, Any]:
        copies, read = source.name == COPIES, source.read()
        pixels, labels = read["train"]
        # The validation split of the data on the hub is the last tenth of train. The copies are not in the official
        # order, so a random tenth of each class is taken from them.
        held = held_out(labels) if copies else np.arange(len(labels)) >= len(labels) - len(labels) // 10
        splits = {"train": (pixels[~held], labels[~held]), "val": (pixels[held], labels[held]), "test": read["test"]}
        for split, (pixels, labels) in splits.items():
            for row in limited(len(labels), self.limit, split):
                writers[split].add(int(labels[row]), pixels[row].astype(np.uint16) + 1)
        return {"licence": LICENCE, **({"note": COPIES_NOTE} if copies else {})}

    def baselines(self, splits: Splits) -> dict[str, float]:
        train, test = splits["train"], splits["test"]
        return {"majority class": majority(train, test), "nearest centroid": nearest_centroid(train, test)}

    def class_names(self) -> list[str]:
        return ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]

    def decode(self, ids: np.ndarray, tokenizer: Path) -> np.ndarray:
        return picture_of(ids)


def grey(rgb: np.ndarray) -> np.ndarray:
    """Return the luma 0.2989 R + 0.5870 G + 0.1140 B (ITU-R 601) of colours.

    The luma is multiplied by 255.5 / 255 and truncated, as in TensorFlow's rgb_to_grayscale, which Long Range Arena
    uses. Integer arithmetic gives the same bytes on every machine.

    Args:
        rgb: channels [..., 3] uint8.

    Returns:
        Grey values [...] uint8.
    """
    red, green, blue = (rgb[..., channel].astype(np.uint32) for channel in range(3))
    # 511 / 5_100_000 = 255.5 / 255 / 10_000.
    return ((2989 * red + 5870 * green + 1140 * blue) * 511 // 5_100_000).astype(np.uint8)


def _read_copies(files: dict[str, Path]) -> dict[str, Images]:
    read = {}
    for split, rows in ROWS.items():
        pixels = _sized(files[f"{split}.{IMAGES}"], rows * PIXELS).reshape(rows, PIXELS)
        read[split] = pixels, _sized(files[f"{split}.{LABELS}"], rows)
    return read


def _sized(path: Path, size: int) -> np.ndarray:
    data = readers.contents(path)
    if len(data) != size:
        raise UserError(f"{path}: {len(data):,} bytes, expected {size:,}")
    return np.frombuffer(data, dtype=np.uint8)


def _read_hub(config: DataConfig) -> dict[str, Images]:
    read = {}
    for split, rows in hub.rows(config, HUB, ROWS, wants=f"the folder {COPIES}").items():
        pixels = np.stack([grey(np.asarray(row["img"])).ravel() for row in rows])
        read[split] = pixels, np.array([row["label"] for row in rows], dtype=np.uint8)
    return read
