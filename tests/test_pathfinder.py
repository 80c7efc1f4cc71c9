"""Pathfinder: paddles as Pillow draws them, blocks that depend on the seed alone, laws of the pictures, and the same
distribution as one image after the other."""

import hashlib
import math
import time
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pathfinder_loops as loops
import pytest
from goodness import Pictures, compared
from pathfinder_loops import builder
from PIL import Image, ImageDraw

from lra.core.errors import UserError
from lra.data.pictures import sheet
from lra.tasks import Place, Task
from lra.tasks.pathfinder import snakes, sprites
from lra.tasks.pathfinder.snakes import Design, Images

NAMES = {"pathfinder": "pathfinder", "pathfinder_64": "pathfinder 64", "pathx": "pathx", "pathx_256": "pathx 256"}


def place(cache: Path, workers: int = 1) -> Place:
    return Place(cache=cache, data_dir=None, workers=workers, progress=lambda done, total: None)


@cache
def easy() -> Design:
    """Small pictures of short snakes."""
    changes = {"window": 17, "seed_distance": 3, "contour_length": 3, "distractors": 2, "distractor_length": 2}
    return replace(builder("pathfinder").design, **changes, mended=True)


@cache
def drawn() -> Images:
    return snakes.block(3, 5, easy())


# ---------------------------------------------------------------- paddles


@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_lines_are_those_of_pillow(width: int) -> None:
    for degrees in range(0, 360, 7):
        end = np.ceil(11 * np.array([math.sin(degrees), math.cos(degrees)])).astype(int)
        image = Image.new("L", (47, 47))
        ImageDraw.Draw(image).line([(23, 23), (23 + end[1], 23 + end[0])], fill=1, width=width)
        assert (sprites.line(47, end, width) == np.asarray(image)).all(), end


@pytest.mark.parametrize("sides", [(17, 9), (29, 15), (64, 32)])
def test_pictures_are_made_smaller_as_pillow_does(sides: tuple[int, int]) -> None:
    image = np.random.default_rng(2).integers(256, size=(sides[0],) * 2, dtype=np.uint8)
    small = Image.fromarray(image).resize((sides[1],) * 2, Image.Resampling.LANCZOS)
    assert (sprites.shrunk(image, sides[1]) == np.asarray(small)).all()


def test_sines_are_far_from_the_middle_between_two_whole_numbers() -> None:
    """So that every machine rounds them the same way, whose sines differ by 1e-15 at most."""
    for radius in (3, 6, 7, 8):
        angles = np.arange(math.ceil(2 * math.pi * radius)) / radius
        for values in (np.sin(angles), np.cos(angles), np.sin(np.deg2rad(np.arange(-180, 180)))):
            exact = values * sprites.ONE
            assert np.abs(np.abs(exact - np.floor(exact)) - 0.5).min() > 1e-5
        paces = radius * np.stack([np.sin(angles), np.cos(angles)])
        off = np.abs(paces - np.rint(paces))
        assert off[off > 1e-12].min() > 1e-7


def test_paddles_are_those_of_the_loops() -> None:
    """In every direction, also where floating point rounds 120 degrees up; and what a first one sees."""
    generator = loops.Loops(builder("pathfinder").design, 1, seed=1)
    style = snakes.Design.paddles(generator.design, 1)
    assert style.usable.sum() == 30
    for turn in range(0, 360, 4):
        line, mask = generator.paddle((4, 4), loops.radians(turn - 180), 9)
        assert (style.line[turn] == np.rint(255 * line)).all() and (style.mask[turn] == np.rint(255 * mask)).all(), turn
        assert set(map(tuple, style.seen[turn].tolist())) == set(generator.seen(loops.radians(turn - 180))), turn


def test_walks_end_where_those_of_the_loops_do() -> None:
    """Also at the upper and the left edge, where floating point carries them a pixel further; mended ones do not."""
    design = builder("pathfinder").design
    style, mended = design.paddles(1), replace(design, mended=True).paddles(1)
    further = np.arctan2(style.points[:, 0], style.points[:, 1]).tolist()
    angles = [loops.radians(degrees) for degrees in range(-180, 180)] + further
    places = np.stack([np.arange(32)] * 2, axis=1)
    for turn, angle in enumerate(angles):
        turns = np.full(32, turn)
        paces = {"ahead": [(angle, 4)]}
        if turn < 360:
            paces |= {"head": [(angle, 2)], "first": [(angle, 2), (loops.reverse(angle), 3)]}
        for name, legs in paces.items():
            for place, end in zip(places, style.walked(getattr(style, name), turns, places), strict=True):
                walked = tuple(place.tolist())
                for way, distance in legs:
                    walked = loops.walk(walked, way, distance)
                assert walked == tuple(end.tolist()), (name, turn, place)
        straight = mended.walked(mended.ahead, turns, places) - places
        assert (straight == straight[0]).all()
    down = np.array([90 + 180] * 3)
    assert style.walked(style.ahead, down, np.array([[9, 0], [9, 3], [9, 9]])).tolist() == [[13, 1], [13, 4], [13, 9]]


# ---------------------------------------------------------------- blocks


def test_a_block_is_a_function_of_seed_and_number() -> None:
    again, other = (snakes.block(number, 5, easy()) for number in (3, 4))
    for first, second in zip(drawn(), again, strict=True):
        assert (first == second).all()
    assert (drawn().pixels != other.pixels).any(axis=(1, 2)).all()


def test_a_block_has_the_bytes_that_it_had() -> None:
    """On every machine."""
    content = drawn().pixels.tobytes() + drawn().known.astype("<i8").tobytes()
    assert hashlib.sha256(content).hexdigest()[:16] == "7893d0b057aaa893"


def test_pictures_have_both_labels_full_scale_and_two_markers() -> None:
    images = drawn()
    assert images.pixels.shape == (snakes.BLOCK, 17, 17) and images.pixels.dtype == np.uint8
    assert 0.4 < images.labels.mean() < 0.6
    assert (images.pixels.max(axis=(1, 2)) == 255).all() and (images.pixels.min(axis=(1, 2)) == 0).all()
    assert set(images.known[:, 1]) == {1, 2}
    same = images.labels == 1
    assert (images.known[same, 0] <= images.known[same, 2] + 1).all(), "no path is shorter than the straight line"


def test_where_both_snakes_meet_the_label_does_not_show() -> None:
    """The other labels with the same draws give the same picture there, and another one elsewhere."""
    labels, origins = drawn().labels, np.arange(snakes.BLOCK) % 2
    pixels, _, meet = snakes._drawn(snakes.Draws(5, 3), easy(), 1, labels, origins)
    others, _, again = snakes._drawn(snakes.Draws(5, 3), easy(), 1, 1 - labels, origins)
    assert (meet == again).all() and 0 < meet.sum() < 50
    assert ((pixels == others).all(axis=(1, 2)) == meet).all()


def test_mended_pictures_miss_no_first_direction() -> None:
    style = easy().paddles(1)
    turns = {}
    for mended in (False, True):
        design = replace(builder("pathfinder").design, mended=mended)
        board = snakes.empty(design.window, design.padding, style, 5_003)
        _, pair = snakes._seeds(snakes.Draws(5, 0), design, board)
        turns[mended] = len(np.unique(pair[0].turns))
    assert turns == {False: 30, True: 360}


# ---------------------------------------------------------------- the task

FEW = {"window": 17, "seed_distance": 3, "contour_length": 3, "distractors": 2, "distractor_length": 2, "mended": True}
FEW |= {"train_size": 307, "val_size": 101, "test_size": 103}


@pytest.mark.parametrize("option", NAMES)
def test_the_settings_of_lra_have_the_published_names(option: str) -> None:
    assert builder(option).facts.name == NAMES[option]
    assert builder(option).facts.max_len == builder(option).design.window ** 2
    changed = builder(option, mended=True, contour_length=9, test_size=10_000)
    assert changed.facts.name == f"{NAMES[option]} (mended, contour length 9, 160000/20000/10000 examples)"


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Task:
    return builder("pathfinder", **FEW).build(place(tmp_path_factory.mktemp("cache")))


def test_a_prepared_task_holds_the_blocks_in_order_as_bytes(task: Task) -> None:
    made = [snakes.block(number, 1, builder("pathfinder", **FEW).design) for number in range(2)]
    pixels, labels, known, meet = (np.concatenate(parts) for parts in zip(*made, strict=True))
    start = 0
    for split, size in ((task.train, 307), (task.val, 101), (task.test, 103)):
        rows = np.arange(size)
        assert split.tokens.dtype == np.uint8
        assert (split.pad(rows, 289) == pixels[start : start + size].reshape(size, -1) + np.uint16(1)).all()
        assert (split.labels == labels[start : start + size]).all()
        assert (split.known == known[start : start + size].ravel()).all()
        assert (split.document(7) == split.pad(rows[7:8], 289)[0]).all()
        start += size
    assert task.source["pictures in which both snakes end on one pixel"] == str(meet[:start].sum()) != "0"
    assert {"majority class", "distance of the markers", "nearest centroid"} < set(task.baselines)
    assert "small convolution, 307 pictures" in task.baselines


def test_groups_and_guesses_say_what_is_known(task: Task) -> None:
    known = task.test.known.reshape(-1, 3)
    groups = builder("pathfinder", **FEW).groups(task.test)
    assert set(groups) == {"marker distance", "distractors placed", "path length", "length", "class"}
    for value, rows in groups["distractors placed"].items():
        assert set(known[rows, 1]) == {int(value)}
    guesses = builder("pathfinder", **FEW).guesses(task)
    for row, guess in enumerate(guesses[:11]):
        near = task.train.labels[task.train.known.reshape(-1, 3)[:, 0] == known[row, 0]]
        assert guess == (2 * near.sum() > len(near)), row
    assert task.baselines["distance of the markers"] == pytest.approx(100 * np.mean(guesses == task.test.labels))


def test_nearest_centroid_is_what_explicit_distances_give(task: Task) -> None:
    train, test = (split.grey(np.arange(len(split))).astype(float) for split in (task.train, task.test))
    means = np.stack([train[task.train.labels == label].mean(axis=0) for label in range(2)])
    nearest = ((test[:, None] - means) ** 2).sum(axis=2).argmin(axis=1)
    assert task.baselines["nearest centroid"] == pytest.approx(100 * np.mean(nearest == task.test.labels))


def test_a_sheet_shows_pictures_with_their_labels(task: Task, tmp_path: Path) -> None:
    (tmp_path / "sheet.png").write_bytes(sheet(task.train.grey(np.arange(7)), task.train.labels[:7]))
    with Image.open(tmp_path / "sheet.png") as image:
        assert image.size == (4 + 3 * (17 * 6 + 4), 4 + 3 * (17 * 6 + 18))
        first = np.asarray(image)[18 : 18 + 17 * 6 : 6, 4 : 4 + 17 * 6 : 6]
    assert (first.ravel() == task.train.grey(np.array([0]))[0]).all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"paddle_thickness": 0.7}, "task.paddle_thickness=0.7: expected a multiple of 0.5"),
        ({"paddle_margins": []}, "task.paddle_margins=[]: expected at least one margin"),
        ({"seed_distance": 9}, "no first paddle fits 18 pixels (twice task.seed_distance)"),
    ],
)
def test_what_cannot_be_drawn_is_refused(tmp_path: Path, changes: dict, message: str) -> None:
    with pytest.raises(UserError) as caught:
        builder("pathfinder", **changes).build(place(tmp_path))
    assert message in str(caught.value)


def test_snakes_without_room_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snakes, "FRUITLESS", 100)
    with pytest.raises(UserError, match=r"no two snakes of 40 paddles find room in 17 pixels; ask for shorter ones"):
        snakes.block(0, 1, replace(easy(), contour_length=40))


# ---------------------------------------------------------------- beside one image after the other


@pytest.mark.slow
def test_two_workers_make_the_same_bytes(tmp_path: Path) -> None:
    sizes = {"train_size": 1_601, "val_size": 211, "test_size": 199}
    first, second = (
        builder("pathfinder", **sizes).build(place(tmp_path / str(workers), workers)) for workers in (1, 2)
    )
    assert first.digest == second.digest


@pytest.mark.slow
def test_the_distribution_is_that_of_one_image_after_the_other() -> None:
    """1,000 pictures of the loops, 4,000 of the blocks: two-sample tests of Kolmogorov and Smirnov, adjusted by Holm.

    Run with -s, it prints the table and the times.
    """
    design, n = builder("pathfinder").design, 1_000
    start = time.process_time()
    generator = loops.Loops(design, 1, seed=7)
    pictures = [generator.picture() for _ in range(n)]
    slow = (time.process_time() - start) / n
    design.paddles(1)
    start = time.process_time()
    blocks = [snakes.block(number, 11, design) for number in range(8)]
    quick = (time.process_time() - start) / (8 * snakes.BLOCK)
    theirs = Pictures(
        np.stack([picture.pixels for picture in pictures]),
        np.array([[round(picture.distance), picture.placed, round(picture.path)] for picture in pictures]),
    )
    ours = Pictures(*(np.concatenate([getattr(block, name) for block in blocks]) for name in ("pixels", "known")))
    chance = compared(theirs, ours)
    print(f"{1e3 * slow:.1f} ms and {1e3 * quick:.2f} ms a picture: {slow / quick:.0f} times as quick")
    assert chance >= 0.01
    assert 0.47 < np.mean([picture.label for picture in pictures]) < 0.53
