"""Build Pathfinder tasks from the files of Long Range Arena's release.

A folder such as lra_release/pathfinder32/curv_contour_length_14 has text files metadata/0.npy, 1.npy and so on, and PNG
files. Each line of a text file describes one PNG: folder, file, number, label, and settings of the generator. The
loaders of the S4 family (state-spaces/s4, src/dataloaders/lra.py) read the same files.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import PIL.Image
from pydantic import PositiveInt

from lra.core.console import say
from lra.core.errors import UserError
from lra.datasets.builder import FromSource, Source
from lra.datasets.cache import SPLITS, Identity, Writer
from lra.tasks import TaskSpec, titled
from lra.tasks.pathfinder import PUBLISHED, VERSION, Paths, spec_of_pictures

METADATA, PICTURES = "metadata/[0-9]*.npy", "imgs/*/*.png"
EASIER = ("curv_baseline", "curv_contour_length_9")  # sets of the release that are easier than the published task
LABEL = 3  # column of the label in a line of metadata
S4_SEED = 42  # seed of the random split of the S4 family
AT_ONCE = 1_000  # number of pictures that are read at once

Entry = tuple[Path, int]
"""A picture and its label."""


@dataclass(kw_only=True)
class PathfinderFiles(Paths, FromSource):
    """Builder of a task with the pictures listed in a folder's metadata files, in this order unless `split` is `s4`.

    Args:
        folder: path of a folder of the release, relative to the working directory or to the data folder, or absolute.
        window: side of the pictures in pixels.
        split: `order` uses the first 80 % for training, the next 10 % for validation and the last 10 % for test; `s4`
            splits as the S4 family does, by PyTorch's random_split with seed 42.
    """

    name = "pathfinder_files"

    folder: str
    window: PositiveInt
    split: Literal["order", "s4"]

    @property
    def spec(self) -> TaskSpec:
        names = {design["window"]: name for name, design in PUBLISHED.items()}
        kind = Path(self.folder).resolve().name
        notes = {"files": self.window not in names, kind: kind in EASIER, "split s4": self.split == "s4"}
        name = names.get(self.window, f"pathfinder {self.window}")
        return spec_of_pictures(titled(name, notes), self.window)

    def identity(self) -> Identity:
        return {"task": self.name, "version": VERSION, "window": self.window, "split": self.split}

    def find(self) -> Source:
        folder = self.located(self.folder, "folder")
        files = sorted(folder.glob(METADATA))
        if not files:
            raise UserError(f"{folder}: expected a set of LRA's release, with metadata/ and imgs/")
        return Source(
            name=str(folder),
            files=[*files, *sorted(folder.glob(PICTURES))],
            read=lambda: _entries(folder, files),
        )

    def fill(self, source: Source, writers: dict[str, Writer], folder: Path) -> dict[str, Any]:
        entries: list[Entry] = source.read()
        done = 0
        for split, rows in divided(len(entries), self.split).items():
            for start in range(0, len(rows), AT_ONCE):
                chosen = [entries[row] for row in rows[start : start + AT_ONCE]]
                pixels = np.stack([_picture(path, self.window) for path, _ in chosen])
                lengths = np.full(len(chosen), self.window**2)
                writers[split].extend(pixels, lengths, np.array([label for _, label in chosen]))
                done += len(chosen)
                self.config.progress(done, len(entries))
        return {"pictures": len(entries)}


def divided(n: int, split: str) -> dict[str, np.ndarray]:
    """Return, for each split, the indices of its pictures out of n pictures.

    `split` is `order` or `s4`, see `PathfinderFiles`.
    """
    import torch

    order = np.arange(n)
    if split == "s4":
        # torch.utils.data.random_split draws the same permutation.
        order = torch.randperm(n, generator=torch.Generator().manual_seed(S4_SEED)).numpy()
    parts = np.split(order, [n - 2 * (n // 10), n - n // 10])
    return dict(zip(SPLITS, parts, strict=True))


def _entries(folder: Path, files: list[Path]) -> list[Entry]:
    """Return the pictures and labels that the metadata files list; the files are read in the order of their numbers."""
    entries = []
    for path in sorted(files, key=lambda path: int(path.stem)):
        # A name that is not UTF-8 is reported below as a missing file.
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), start=1):
            fields = line.split()
            if len(fields) <= LABEL or fields[LABEL] not in ("0", "1"):
                raise UserError(f"{path}:{number}: {line!r:.80}, expected a folder, a file, a number, a label 0 or 1")
            picture = folder / fields[0] / fields[1]
            if not picture.is_file():
                raise UserError(f"{path}:{number}: {picture}: no such file; unpack the release again")
            if picture.stat().st_size == 0:  # in the release one file is empty: curv_baseline/imgs/0/sample_172.png
                say(f"{picture}: empty; left out")
            else:
                entries.append((picture, int(fields[LABEL])))
    return entries


def _picture(path: Path, window: int) -> np.ndarray:
    """Return the grey values [window, window] uint8 of a PNG."""
    try:
        with PIL.Image.open(path, formats=["PNG"]) as image:
            if image.size != (window, window) or image.mode != "L":
                actual = f"{image.size[0]} x {image.size[1]} pixels of mode {image.mode}"
                raise UserError(f"{path}: {actual}, expected {window} x {window} of mode L (task.window)")
            return np.asarray(image)
    except (OSError, SyntaxError, ValueError) as error:
        raise UserError(f"{path}: not a complete PNG ({error}); unpack the release again") from None
