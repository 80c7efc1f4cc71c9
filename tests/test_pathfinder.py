"""Pathfinder: sprites and distribution of a plain reference, and bytes that depend on the seed alone."""

import hashlib
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pathfinder_loops as loops
import pytest
from scipy.stats import ks_2samp
from statsmodels.stats.multitest import multipletests
from support import builder_of, data_config

from lra.core.errors import UserError
from lra.tasks import Task
from lra.tasks import _pathfinder_board as boards
from lra.tasks import _pathfinder_snakes as snakes
from lra.tasks._pathfinder_board import Snakes
from lra.tasks._pathfinder_snakes import Design, Images
from lra.tasks._pathfinder_sprites import Paddles, paddles

NAMES = {"pathfinder": "pathfinder", "pathfinder_64": "pathfinder 64", "pathx": "pathx", "pathx_256": "pathx 256"}


def design_of(option: str = "pathfinder", **changes: object) -> Design:
    return replace(builder_of(option).design, **changes)


SMALL = {"window": 17, "seed_distance": 3, "contour_length": 3, "distractors": 2, "distractor_length": 2}


@cache
def easy() -> Design:
    """Small pictures of short snakes."""
    return design_of(**SMALL)


@cache
def drawn() -> Images:
    return snakes.block(3, 5, easy())


# ---------------------------------------------------------------- paddles


def style_of(option: str) -> Paddles:
    """The paddles of a task with its largest margin."""
    design = design_of(option)
    sizes = design.paddle_length, design.paddle_thickness, design.paddle_margins[-1]
    return paddles(*sizes, design.continuity, design.seed_distance)


def test_paddles_are_those_of_the_loops() -> None:
    """Paddles of all directions and the pixels that the first one checks are equal, even if 120 degrees rounds up."""
    generator, style = loops.Loops(design_of(), 1, seed=1), style_of("pathfinder")
    for turn in range(0, 360, 4):
        line, mask = generator.paddle((4, 4), loops.radians(turn - 180), 9)
        assert (style.line[turn] == np.rint(255 * line)).all() and (style.mask[turn] == np.rint(255 * mask)).all(), turn
        assert set(map(tuple, style.seen[turn].tolist())) == set(generator.seen(loops.radians(turn - 180))), turn


@pytest.mark.parametrize("option", ["pathfinder", "pathfinder_64", "pathx"])
def test_snakes_walk_as_those_of_the_loops_do(option: str) -> None:
    """Snakes walk in all directions. A second snake that would begin between two pixels begins at the even one."""
    style, generator = style_of(option), loops.Loops(design_of(option), design_of(option).paddle_margins[-1], seed=1)
    further = np.arctan2(style.points[:, 0], style.points[:, 1]).tolist()
    angles = [loops.radians(degrees) for degrees in range(-180, 180)]
    step = generator.length + 2 * generator.margin
    assert style.ahead.tolist() == [list(loops.walk((0, 0), angle, step)) for angle in angles + further]
    assert style.head.tolist() == [list(loops.walk((0, 0), angle, generator.length)) for angle in angles]
    assert style.first.tolist() == [list(generator.pivot((0, 0), angle)) for angle in angles]
    for place in (12, 13):
        seconds = [list(generator.second((place, place), angle)) for angle in angles]
        assert np.rint(place + style.second).tolist() == seconds


def test_lines_are_as_bright_as_those_of_the_loops() -> None:
    """All directions at once, each snake a picture, with a paddle of a distractor and a marker."""
    for option, short_contrast in (("pathfinder", 200), ("pathx", 90)):
        design = design_of(option, distractor_contrast=short_contrast)
        style, reference = style_of(option), loops.Loops(design, design.paddle_margins[-1], seed=1)
        degrees = np.arange(0, 360, 7)
        n, rim, side = len(degrees), style.rim, design.window
        spot, short, end = (11, 13), (19, 7), (side - 3, side - 5)
        canvas = np.zeros((n, side + 2 * rim, side + 2 * rim), dtype=np.float32)
        for where, contrast in ((spot, design.contrast), (short, short_contrast)):
            snake = Snakes(np.full((n, 1, 2), where), degrees[:, None], np.zeros((n, 2)))
            boards.paint(canvas, rim, boards.lit(style.line, contrast), snake, np.arange(n))
        inside = canvas[:, rim:-rim, rim:-rim]
        pixels = boards.marked(inside, np.full((n, 2, 2), end), design.marker_radius)
        for picture, turn in zip(pixels, degrees.tolist(), strict=True):
            angle = loops.radians(turn - 180)
            long = reference.lit(reference.paddle(spot, angle, side)[0], design.contrast)
            faint = reference.lit(reference.paddle(short, angle, side)[0], short_contrast)
            expected = loops.scaled(np.maximum(np.maximum(long, faint), reference.marker(end)))
            assert (picture == expected).all(), (option, turn)


@pytest.mark.parametrize("where", [(0, 3), (16, 30), (31, 31)])
def test_markers_are_those_of_the_loops(where: tuple[int, int]) -> None:
    design = design_of()
    brightest = 200 * 255  # a marker has half of it
    canvas = np.zeros((1, 32, 32), dtype=np.float32)
    expected = loops.Loops(design, 1, seed=1).marker(where)
    canvas[0, 5, 11] = expected[5, 11] = brightest
    marked = boards.marked(canvas, np.array([[where, where]]), design.marker_radius)[0]
    assert (marked == loops.scaled(expected)).all()


# ---------------------------------------------------------------- blocks


def test_a_block_is_a_function_of_seed_and_number() -> None:
    again, other = (snakes.block(number, 5, easy()) for number in (3, 4))
    for first, second in zip(drawn(), again, strict=True):
        assert (first == second).all()
    assert (drawn().pixels != other.pixels).any(axis=(1, 2)).all()


def test_a_block_has_the_bytes_that_it_had() -> None:
    """The bytes are the same on every machine."""
    content = drawn().pixels.tobytes() + drawn().attributes.astype("<i8").tobytes()
    assert hashlib.sha256(content).hexdigest()[:16] == "7893d0b057aaa893"


def test_pictures_have_both_labels_full_scale_and_two_markers() -> None:
    images = drawn()
    assert images.pixels.shape == (snakes.BLOCK, 17, 17) and images.pixels.dtype == np.uint8
    assert 0.4 < images.labels.mean() < 0.6
    assert (images.pixels.max(axis=(1, 2)) == 255).all() and (images.pixels.min(axis=(1, 2)) == 0).all()
    assert set(images.attributes[:, 1]) == {1, 2}
    same = images.labels == 1
    assert (images.attributes[same, 0] <= images.attributes[same, 2] + 1).all(), (
        "no path is shorter than the straight line"
    )


# ---------------------------------------------------------------- the task

SIZES = {"train_size": 307, "val_size": 101, "test_size": 103}


@pytest.mark.parametrize("option", NAMES)
def test_names_list_differences_from_lra(option: str) -> None:
    """`mended` says that the generator is not the public one; published numbers are for `pathfinder_files`."""
    contrast = {"distractor_contrast": 200} if option == "pathfinder" else {}
    assert builder_of(option, **contrast).spec.name == f"{NAMES[option]} (mended)"
    assert builder_of(option).spec.max_len == builder_of(option).design.window ** 2
    changed = builder_of(option, **contrast, contour_length=9, test_size=10_000)
    assert changed.spec.name == f"{NAMES[option]} (mended, contour length 9, 160000/20000/10000 examples)"


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Task:
    return builder_of("pathfinder", **SMALL, **SIZES).build(data_config(tmp_path_factory.mktemp("cache")))


def test_a_prepared_task_holds_the_blocks_in_order_as_bytes(task: Task) -> None:
    made = [snakes.block(number, 1, easy()) for number in range(2)]
    pixels, labels, known = (np.concatenate(parts) for parts in zip(*made, strict=True))
    start = 0
    for split, size in ((task.train, 307), (task.val, 101), (task.test, 103)):
        rows = np.arange(size)
        assert split.tokens.dtype == np.uint8
        assert (split.pad(rows, 289) == pixels[start : start + size].reshape(size, -1) + np.uint16(1)).all()
        assert (split.labels == labels[start : start + size]).all()
        assert (split.attributes == known[start : start + size].ravel()).all()
        assert (split.document(7) == split.pad(rows[7:8], 289)[0]).all()
        start += size
    assert set(task.baselines) == {"majority class", "distance of the markers", "nearest centroid"}


def test_groups_and_guesses_say_what_is_known(task: Task) -> None:
    known = task.test.attributes.reshape(-1, 3)
    groups = builder_of("pathfinder", **SMALL, **SIZES).groups(task.test)
    assert set(groups) == {"marker distance", "distractors placed", "path length", "length", "class"}
    for value, rows in groups["distractors placed"].items():
        assert set(known[rows, 1]) == {int(value)}
    guesses = builder_of("pathfinder", **SMALL, **SIZES).baseline_predictions(task)
    for row, guess in enumerate(guesses[:11]):
        near = task.train.labels[task.train.attributes.reshape(-1, 3)[:, 0] == known[row, 0]]
        assert guess == (2 * near.sum() > len(near)), row
    assert task.baselines["distance of the markers"] == pytest.approx(100 * np.mean(guesses == task.test.labels))


def test_nearest_centroid_is_what_explicit_distances_give(task: Task) -> None:
    train, test = (split.grey(np.arange(len(split))).astype(float) for split in (task.train, task.test))
    means = np.stack([train[task.train.labels == label].mean(axis=0) for label in range(2)])
    nearest = ((test[:, None] - means) ** 2).sum(axis=2).argmin(axis=1)
    assert task.baselines["nearest centroid"] == pytest.approx(100 * np.mean(nearest == task.test.labels))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"paddle_thickness": 0.7}, "task.paddle_thickness=0.7: "),
        ({"paddle_margins": []}, "task.paddle_margins=[]: "),
        ({"seed_distance": 9}, "no first paddle fits 18 pixels (twice task.seed_distance)"),
    ],
)
def test_impossible_designs_are_refused(tmp_path: Path, changes: dict, message: str) -> None:
    with pytest.raises(UserError) as caught:
        builder_of("pathfinder", **changes).build(data_config(tmp_path))
    assert message in str(caught.value)


def test_snakes_without_room_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snakes, "FRUITLESS", 100)
    with pytest.raises(UserError, match=r"no two snakes of 40 paddles fit in 17 pixels; ask for shorter ones"):
        snakes.block(0, 1, replace(easy(), contour_length=40))


# ---------------------------------------------------------------- distribution


@pytest.mark.slow
def test_two_workers_make_the_same_bytes(tmp_path: Path) -> None:
    sizes = {"train_size": 1_601, "val_size": 211, "test_size": 199}
    first, second = (
        builder_of("pathfinder", **sizes).build(data_config(tmp_path / str(workers), workers=workers))
        for workers in (1, 2)
    )
    assert first.digest == second.digest


def statistics(pixels: np.ndarray, attributes: np.ndarray) -> list[np.ndarray]:
    """Return statistics of each picture: mean, lit pixels, its attributes, and pixels of each of ten ranges of grey."""
    grey = np.stack([np.histogram(picture, bins=10, range=(1, 256))[0] for picture in pixels], axis=1)
    return [pixels.mean(axis=(1, 2)), (pixels > 127).mean(axis=(1, 2)), *attributes.T, *grey]


@pytest.mark.slow
def test_the_distribution_is_that_of_one_image_after_the_other() -> None:
    """1,000 pictures of the loops and 4,000 of the blocks: Kolmogorov-Smirnov tests with Holm correction."""
    generator = loops.Loops(design_of(), 1, seed=7)
    pictures = [generator.picture() for _ in range(1_000)]
    known = np.array([[round(picture.distance), picture.placed, round(picture.path)] for picture in pictures])
    theirs = statistics(np.stack([picture.pixels for picture in pictures]), known)
    blocks = [snakes.block(number, 11, design_of()) for number in range(8)]
    ours = statistics(
        *(np.concatenate([getattr(block, name) for block in blocks]) for name in ("pixels", "attributes"))
    )
    chances = [ks_2samp(*pair, method="asymp").pvalue for pair in zip(theirs, ours, strict=True)]
    assert multipletests(chances, method="holm")[1].min() >= 0.01
    assert 0.47 < np.mean([picture.label for picture in pictures]) < 0.53
