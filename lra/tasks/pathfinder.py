"""Pathfinder: predict whether two markers are on one path, in pictures of two long snakes of paddles among short ones.

Unlike the public generator, the generator used here has a seed and no errors: a first paddle may have any direction,
the second snake does not begin on the first, no paddle is missing from the occupancy mask, and all edges are treated
alike.

Source:
    Linsley et al. 2018 (arXiv:1805.08315); generator of Kim et al. 2020. Task: Long Range Arena (Tay et al. 2021),
    with 32 pixels a side, and 128 as Path-X.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lra.datasets.baselines import majority, nearest_centroid
from lra.datasets.builder import GENERATED, Generated, TaskBuilder, in_order
from lra.datasets.cache import Splits, Writer
from lra.datasets.groups import Group, by_size, by_value
from lra.datasets.splits import Pictures
from lra.datasets.tokenise import BYTE_VOCABULARY, picture_of
from lra.tasks import Task, TaskSpec, titled
from lra.tasks._pathfinder_snakes import BLOCK, Design, block

VERSION = 1
ATTRIBUTES = 3  # number of attributes of a generated picture, see `Images`

# Options of the published data: the settings that LRA passes to the generator (lra_benchmarks/data/pathfinder.py) and,
# for options that LRA does not set, the defaults of the generator (snakes2_wrapper.py).
COMMON = {"padding": 1, "paddle_length": 5, "continuity": 1.8, "contour_length": 14, "distractor_length": 4}
SIZES = (160_000, 20_000, 20_000)  # of train, val and test
PUBLISHED: dict[str, dict[str, Any]] = {
    "pathfinder": COMMON
    | {"window": 32, "seed_distance": 7, "paddle_length": 2, "paddle_thickness": 0.5, "paddle_margins": [1]}
    | {"continuity": 1.0, "marker_radius": 1.5, "distractors": 5, "contrast": 150, "distractor_contrast": 200},
    "pathfinder 64": COMMON
    | {"window": 64, "seed_distance": 12, "paddle_thickness": 1, "paddle_margins": [1]}
    | {"marker_radius": 2.5, "distractors": 5, "contrast": 80, "distractor_contrast": 80},
    "pathx": COMMON
    | {"window": 128, "seed_distance": 20, "paddle_thickness": 1.5, "paddle_margins": [2, 3]}
    | {"marker_radius": 3, "distractors": 8, "contrast": 90, "distractor_contrast": 90},
    "pathx 256": COMMON
    | {"window": 256, "padding": 22, "seed_distance": 27, "paddle_thickness": 2, "paddle_margins": [3]}
    | {"marker_radius": 5, "distractors": 7, "contrast": 100, "distractor_contrast": 100},
}


class Paths(TaskBuilder):
    """Base class of the tasks with Pathfinder pictures, generated or from files."""

    def groups(self, split: Pictures) -> dict[str, Group]:
        groups = super().groups(split)
        if split.attributes is None:
            return groups
        distance, placed, path = split.attributes.reshape(len(split), ATTRIBUTES).T
        attributes = {"marker distance": by_size(distance), "distractors placed": by_value(placed)}
        return {**attributes, "path length": by_size(path), **groups}

    def baseline_predictions(self, task: Task) -> np.ndarray | None:
        """Return, for each test picture [n], the more frequent label of train pictures with the same marker distance.

        Pictures from files have no known distance; for them the result is None.
        """
        train, test = task.train, task.test
        assert isinstance(train, Pictures) and isinstance(test, Pictures)
        return None if train.attributes is None else by_distance(train, test)

    def baselines(self, splits: Splits) -> dict[str, float]:
        """Return test accuracies (percent) of the majority class, nearest centroid and, if known, marker distance."""
        train, test = splits["train"], splits["test"]
        scores = {"majority class": majority(train, test), "nearest centroid": nearest_centroid(train, test)}
        if train.attributes is not None:
            scores["distance of the markers"] = float(100 * np.mean(test.labels == by_distance(train, test)))
        return scores

    def decode(self, ids: np.ndarray, tokenizer: Path) -> np.ndarray:
        return picture_of(ids)


@dataclass(kw_only=True)
class Pathfinder(Design, Generated, Paths):
    """Builder of a task of generated pictures: the first go to train, the next to val, the last to test.

    The options are those of `Design`, and the sizes and the seed of `Generated`.
    """

    name = "pathfinder"

    @property
    def design(self) -> Design:
        """Options that determine a picture: all but the sizes and the seed."""
        return Design(**self.example_options)

    @property
    def spec(self) -> TaskSpec:
        base = min(PUBLISHED, key=lambda name: abs(PUBLISHED[name]["window"] - self.window))
        # "mended" means: not drawn by the public generator; old results have this word.
        notes = {"mended": True, **self.differences(PUBLISHED[base] | {"sizes": SIZES}, PUBLISHED[base])}
        return spec_of_pictures(titled(base, notes), self.window)

    def write(self, writers: dict[str, Writer], folder: Path) -> dict[str, Any]:
        stops = np.cumsum(list(self.sizes.values()))
        total, done = sum(self.sizes.values()), 0
        # Blocks have a fixed size, so that a larger data set begins with the same pictures.
        calls = ((number, self.seed, self.design) for number in range(-(-total // BLOCK)))  # rounded up
        for images in in_order(block, calls, self.config.workers):
            # Index of the split of each image; images of the last block beyond `total` have 3, which is no split.
            split = np.searchsorted(stops, done + np.arange(BLOCK), side="right")
            for number, writer in enumerate(writers.values()):
                rows = split == number
                lengths = np.full(np.count_nonzero(rows), self.window**2)
                writer.extend(images.pixels[rows], lengths, images.labels[rows], images.attributes[rows])
            done += BLOCK
            self.config.progress(min(done, total), total)
        return {"from": GENERATED, "pixels": self.window}


def spec_of_pictures(name: str, window: int) -> TaskSpec:
    """Return the spec of a task with pictures of `window` pixels a side."""
    return TaskSpec(
        name=name,
        version=VERSION,
        vocab_size=BYTE_VOCABULARY,
        max_len=window**2,
        classes=2,
        pictures=True,
        fixed_length=True,
    )


def by_distance(train: Pictures, test: Pictures) -> np.ndarray:
    """Return, for each test picture [n], the more frequent label of train pictures with the same marker distance.

    If no picture of train has this distance, the label is 0.
    """
    near, far = (np.asarray(split.attributes).reshape(len(split), ATTRIBUTES)[:, 0] for split in (train, test))
    counts = np.zeros((max(near.max(), far.max()) + 1, 2), dtype=np.int64)
    np.add.at(counts, (near, train.labels), 1)
    return counts.argmax(axis=1)[far]
