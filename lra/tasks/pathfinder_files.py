"""Pathfinder from files: Long Range Arena's release, or two arrays.

A folder of the release (lra_release/pathfinder32/curv_contour_length_14) has metadata/0.npy, 1.npy and so on, which are
text files, and the PNGs that their lines name: folder, file, number, label, and settings of the generator. The loaders
of the S4 family (state-spaces/s4, src/dataloaders/lra.py) read the same files. Alternatively a folder has images.npy,
uint8 [n, W, W] or [n, W W], and labels.npy [n].
"""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import PIL.Image
from pydantic import PositiveInt

from lra.core.console import say
from lra.core.errors import UserError
from lra.data.cache import SPLITS, Identity
from lra.data.from_source import Content, Source, Stamp, counted, located
from lra.data.writer import Writer
from lra.tasks import Place, TaskSpec, titled
from lra.tasks.pathfinder import PUBLISHED, SIZES, VERSION, Paths, facts_of_pictures, write

METADATA, PICTURES = "metadata/*.npy", "imgs/*/*.png"
ARRAYS = ("images.npy", "labels.npy")
EASIER = ("curv_baseline", "curv_contour_length_9")
EMPTY = "curv_baseline/imgs/0/sample_172.png"  # the one file of the release that is
LABEL = 3  # its column in a line of metadata
S4_SEED = 42
AT_ONCE = 1_000

Part = tuple[np.ndarray, np.ndarray]
"""Pictures [n, W, W] uint8 and their labels [n]."""


class Data(NamedTuple):
    """n pictures; `part` reads the pictures of some rows."""

    n: int
    part: Callable[[np.ndarray], Part]


class PathfinderFiles(Paths):
    """Pictures from a folder, in the order of its files.

    Args:
        folder: as it is typed, or below the data folder.
        window: pixels of a side.
        split: `order` trains on the first eight tenths and validates and tests on one each; `s4` divides the files as
            the S4 family does, by PyTorch's random_split with seed 42.
    """

    def __init__(self, *, folder: str, window: PositiveInt, split: Literal["order", "s4"]) -> None:
        self.folder, self.window, self.split = Path(folder), window, split

    def facts_of(self, content: Content) -> TaskSpec:
        names = {design["window"]: name for name, design in PUBLISHED.items()}
        published = content.get("pictures", sum(SIZES.values())) == sum(SIZES.values()) and self.window in names
        kind = self.folder.resolve().name
        notes = {"files": not published, kind: kind in EASIER}
        name = names.get(self.window, f"pathfinder {self.window}")
        return facts_of_pictures(titled(name, notes | {"split s4": self.split == "s4"}), self.window, VERSION)

    def identity(self, place: Place, stamps: list[Stamp]) -> Identity:
        options = {"window": self.window, "split": self.split}
        return {"task": "pathfinder_files", "version": VERSION, **options, "raw": stamps or None}

    def find(self, place: Place) -> Source:
        folder = located(place, str(self.folder), "folder")
        if all((folder / name).is_file() for name in ARRAYS):
            paths = [folder / name for name in ARRAYS]
            return Source(
                name=str(folder),
                paths=paths,
                read=lambda: _arrays(*paths, self.window),
                content=lambda: {"pictures": len(_array(paths[0]))},
            )
        files = sorted(folder.glob(METADATA))
        if not files:
            raise UserError(
                f"{folder}: expected a set of LRA's release, with metadata/ and imgs/, or {' and '.join(ARRAYS)}; "
                "task.folder must name it"
            )
        return Source(
            name=str(folder),
            paths=[folder],
            inside=(METADATA, PICTURES),
            read=lambda: self._release(folder, files),
            content=lambda: {"pictures": sum(counted(place, path, _count) for path in files)},
        )

    def _release(self, folder: Path, files: list[Path]) -> Data:
        try:
            files = sorted(files, key=lambda path: int(path.stem))
        except ValueError as error:
            raise UserError(f"{folder}/metadata: expected files 0.npy, 1.npy and so on ({error})") from None
        entries = [entry for path in files for entry in _entries(folder, path)]
        return Data(len(entries), partial(_pictures, entries, self.window))

    def fill(self, place: Place, source: Source, writers: dict[str, Writer], staging: Path) -> dict[str, Any]:
        data = source.read()
        done = 0
        for split, rows in divided(data.n, self.split).items():
            for start in range(0, len(rows), AT_ONCE):
                pixels, labels = data.part(rows[start : start + AT_ONCE])
                write(writers[split], pixels, labels, None)
                done += len(labels)
                place.progress(done, data.n)
        return source.content()


def divided(n: int, split: str) -> dict[str, np.ndarray]:
    """Return the rows of each split of n pictures."""
    import torch

    order = np.arange(n)
    if split == "s4":
        order = torch.randperm(n, generator=torch.Generator().manual_seed(S4_SEED)).numpy()
    parts = np.split(order, [n - 2 * (n // 10), n - n // 10])
    return dict(zip(SPLITS, parts, strict=True))


Entry = tuple[Path, int]
"""A picture and its label."""


def _count(path: Path) -> int:
    return len(path.read_bytes().splitlines())


def _entries(folder: Path, path: Path) -> Iterator[Entry]:
    """Yield the pictures that a metadata file names, with their labels."""
    data = path.read_bytes()
    if data.startswith(b"\x93NUMPY"):
        raise UserError(f"{path}: an array of NumPy; expected the text that LRA's release has under this name")
    for number, line in enumerate(data.decode(errors="replace").splitlines(), start=1):
        fields = line.split()
        if len(fields) <= LABEL:
            raise UserError(
                f"{path}, line {number}: {len(fields)} fields, expected a folder, a file, a number, a label, ..."
            )
        if fields[LABEL] not in ("0", "1"):
            raise UserError(f"{path}, line {number}: label {fields[LABEL]!r}, expected 0 or 1")
        picture = folder / fields[0] / fields[1]
        if not (picture.is_file() and picture.resolve().is_relative_to(folder.resolve())):
            raise UserError(
                f"{path}, line {number}: {fields[0]}/{fields[1]}: no such file in {folder}; unpack the release again"
            )
        if picture.stat().st_size == 0 and picture.resolve().as_posix().endswith(EMPTY):
            say(f"{picture}: empty, as in the release; left out")
        else:
            yield picture, int(fields[LABEL])


def _pictures(entries: list[Entry], window: int, rows: np.ndarray) -> Part:
    chosen = [entries[row] for row in rows]
    return np.stack([_picture(path, window) for path, _ in chosen]), np.array([label for _, label in chosen])


def _picture(path: Path, window: int) -> np.ndarray:
    """Grey values [window, window] uint8."""
    try:
        with PIL.Image.open(path, formats=["PNG"]) as image:
            if image.size != (window, window) or image.mode != "L":
                actual = f"{image.size[0]} x {image.size[1]} pixels of mode {image.mode}"
                raise UserError(f"{path}: {actual}, expected {window} x {window} of mode L (task.window)")
            return np.asarray(image)
    except (OSError, SyntaxError, ValueError) as error:
        raise UserError(f"{path}: no whole PNG ({error}); unpack the release again") from None


def _array(path: Path) -> np.ndarray:
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: no array of NumPy ({error})") from None


def _arrays(images: Path, labels: Path, window: int) -> Data:
    pixels, classes = _array(images), _array(labels)
    shapes = ((window, window), (window**2,))
    if pixels.dtype != np.uint8 or pixels.shape[1:] not in shapes:
        actual = f"{pixels.dtype} {list(pixels.shape)}"
        raise UserError(f"{images}: {actual}, expected uint8 [n, {window}, {window}] or [n, {window**2}] (task.window)")
    if classes.dtype.kind not in "iu" or classes.shape != pixels.shape[:1]:
        actual = f"{classes.dtype} {list(classes.shape)}"
        raise UserError(f"{labels}: {actual}, expected whole numbers [{len(pixels)}], one for each of {images.name}")
    wrong = np.flatnonzero((classes != 0) & (classes != 1))
    if len(wrong):
        raise UserError(f"{labels}: row {wrong[0]}: label {classes[wrong[0]]}, expected 0 or 1")
    return Data(len(pixels), lambda rows: (pixels[rows].reshape(-1, window, window), classes[rows]))
