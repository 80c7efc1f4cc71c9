"""Pathfinder's pictures against those of the public generator, in the version that wrote its authors' data.

    git clone https://github.com/drewlinsley/pathfinder
    LRA_PATHFINDER=pathfinder .venv/bin/nox -s oracles -- -k public_generator -s

Its present code replaces SciPy's `imresize`, with which the data were made and which turned everything into bytes, by
Pillow's `resize`, and ends at the first picture. Here SciPy's rule for bytes is back, and nothing is written.
"""

import importlib
import math
import os
import random
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from goodness import Pictures, compared
from PIL import Image
from support import builder_of

from lra.tasks import _pathfinder_snakes as snakes
from lra.tasks._pathfinder_snakes import Design

pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("ignore")]

SEED = 1


def resized(values: np.ndarray, size: tuple[int, int], interp: str = "lanczos") -> np.ndarray:
    """scipy.misc.imresize of SciPy 1.2: bytes as they are, other values from their least to their most."""
    assert interp == "lanczos"
    if values.dtype != np.uint8:
        least, most = values.min(), values.max()
        values = ((values - least) * (255 / ((most - least) or 1)) + 0.5).astype(np.uint8)
    return np.asarray(Image.fromarray(values).resize(size[::-1], Image.Resampling.LANCZOS))


@pytest.fixture
def generator(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    folder = os.environ.get("LRA_PATHFINDER")
    if not folder:
        pytest.skip("LRA_PATHFINDER is not set: a clone of github.com/drewlinsley/pathfinder")
    monkeypatch.setenv("MPLBACKEND", "agg")
    monkeypatch.syspath_prepend(str(Path(folder).resolve()))
    for name in ("snakes", "snakes2"):
        monkeypatch.setattr(importlib.import_module(name), "_imresize", resized)
    return importlib.import_module("snakes2")


class Watched:
    """The pictures of the generator, and what is known of each, from the calls of its functions."""

    def __init__(self, generator: ModuleType, design: Design, monkeypatch: pytest.MonkeyPatch) -> None:
        self.pixels: list[np.ndarray] = []
        self.known: list[list[int]] = []
        self._of_pair = 2 * (design.contour_length - 1)
        self._starts, self._heads, self._placed, self._markers = [], [], 0, []
        for module, name, seen in (
            (generator, "initialize_two_seeds", self._begun),
            (generator.snakes, "extend_snake", self._extended),
            (generator.snakes, "make_snake", self._made),
            (generator, "draw_circle", self._marked),
        ):
            monkeypatch.setattr(module, name, watched(getattr(module, name), seen))
        monkeypatch.setattr(generator, "_imsave", self._saved)

    def _begun(self, _: tuple, result: tuple) -> None:
        self._starts, self._heads, self._placed, self._markers = result[5], [], 0, []

    def _extended(self, _: tuple, result: tuple) -> None:
        self._heads.append(result[5])

    def _made(self, _: tuple, result: tuple) -> None:
        self._placed += result[2]

    def _marked(self, arguments: tuple, _: np.ndarray) -> None:
        self._markers.append(arguments[1])

    def _saved(self, _: str, picture: np.ndarray) -> None:
        start, end = self._markers
        snake = next(number for number, place in enumerate(self._starts) if place is start)
        heads = self._heads[snake : self._of_pair : 2]
        path = sum(math.dist(*step) for step in pairwise([start, *heads]))
        self.pixels.append((picture * (255 / picture.max()) + 0.5).astype(np.uint8))
        self.known.append([round(math.dist(start, end)), self._placed, round(path)])


def watched(function: Callable, seen: Callable[[tuple, Any], None]) -> Callable:
    def call(*arguments: Any, **named: Any) -> Any:
        result = function(*arguments, **named)
        seen(arguments, result)
        return result

    return call


def arguments(design: Design, n: int, folder: Path) -> SimpleNamespace:
    return SimpleNamespace(
        contour_path=str(folder),
        batch_id=0,
        n_images=n,
        window_size=[design.window] * 2,
        padding=design.padding,
        antialias_scale=2,
        seed_distance=design.seed_distance,
        marker_radius=design.marker_radius,
        contour_length=design.contour_length,
        distractor_length=design.distractor_length,
        num_distractor_snakes=design.distractors,
        snake_contrast_list=[design.distractor_contrast / 100],
        use_single_paddles=False,
        max_distractor_contour_retrial=4,
        max_paddle_retrial=2,
        continuity=design.continuity,
        paddle_length=design.paddle_length,
        paddle_thickness=design.paddle_thickness,
        paddle_margin_list=list(design.paddle_margins),
        paddle_contrast_list=[design.contrast / design.distractor_contrast],
        pause_display=False,
        save_images=True,
        save_metadata=False,
        segmentation_task=False,
    )


@pytest.mark.parametrize(("option", "n"), [("pathfinder", 2_000), ("pathfinder_64", 200), ("pathx", 200)])
def test_the_distribution_is_that_of_the_public_generator(
    option: str, n: int, generator: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its pictures cost 0.2 seconds each, of 64 pixels 12, of 128 pixels 3 to 6."""
    design = builder_of(option).design
    theirs = Watched(generator, design, monkeypatch)
    np.random.seed(SEED)
    random.seed(SEED)
    generator.from_wrapper(arguments(design, n, tmp_path))
    blocks = [snakes.block(number, SEED, design) for number in range(-(-4 * n // snakes.BLOCK))]
    ours = Pictures(*(np.concatenate([getattr(block, name) for block in blocks]) for name in ("pixels", "attributes")))
    assert compared(Pictures(np.stack(theirs.pixels), np.array(theirs.known)), ours) >= 0.01
