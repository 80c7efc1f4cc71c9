"""Pathfinder's greys and places as the public generator's floating point has them, and the exact ones of mended
pictures."""

from dataclasses import replace

import numpy as np
import pathfinder_loops as loops
import pytest
from pathfinder_loops import builder

from lra.tasks.pathfinder import paint as painting
from lra.tasks.pathfinder import snakes
from lra.tasks.pathfinder.board import Snakes

CONTRASTS = {"pathfinder": (150, 200), "pathx": (90, 90)}


@pytest.mark.parametrize(
    ("value", "contrast", "brightest", "grey"),
    [
        (186, 150, 200, 139),  # 186 * 1.5 / 2 = 139.5
        (222, 150, 200, 166),  # 222 * 1.5 / 2 = 166.5
        (225, 90, 100, 202),  # 225 * 0.9 = 202.5
        (187, 150, 200, 140),  # 140.25: no half, so exact numbers give the same
        (225, 100, 200, 113),  # 112.5 of a marker or of a line of contrast 1, which float32 does not move
    ],
)
def test_halves_fall_below_as_in_the_generator(value: int, contrast: int, brightest: int, grey: int) -> None:
    """Computed by hand: the product of two float32 numbers is rounded, here to a number below the half."""
    exact_grey = (2 * value * contrast + brightest) // (2 * brightest)
    for exact, expected in ((False, grey), (True, exact_grey)):
        canvas = np.zeros((1, 2, 3), dtype=np.float32)
        canvas[0, 0, 1] = painting.lit(np.array(value, dtype=np.uint8), contrast, exact=exact)
        canvas[0, 1, 2] = painting.lit(np.array(255, dtype=np.uint8), brightest, exact=exact)
        assert painting._greys(canvas, exact=exact).tolist() == [[[0, expected, 0], [0, 0, 255]]]
    half = (2 * value * contrast) % (2 * brightest) == brightest
    assert exact_grey - grey == (half and contrast != 100)


def test_a_block_has_no_half_that_is_rounded_up() -> None:
    """Where a distractor is the brightest, nothing but 186 of 255 at contrast 1.5 could give 140."""
    design = builder("pathfinder").design
    images = snakes.block(0, 1, design)
    greys = set(images.pixels[images.known[:, 1] > 0].ravel().tolist())
    assert 139 in greys and 140 not in greys


def test_lines_are_as_bright_as_those_of_the_loops() -> None:
    """All directions at once, each snake a picture; a pixel of a distractor and a marker are beside them."""
    for option, contrasts in CONTRASTS.items():
        design = builder(option).design
        assert design.contrasts == contrasts
        style, reference = (
            design.paddles(design.paddle_margins[-1]),
            loops.Loops(design, design.paddle_margins[-1], seed=1),
        )
        degrees = np.arange(0, 360, 7)
        n, rim, side = len(degrees), style.rim, design.window
        place, short, end = (11, 13), (19, 7), (side - 3, side - 5)
        canvas = np.zeros((n, side + 2 * rim, side + 2 * rim), dtype=np.float32)
        for where, contrast in ((place, contrasts[0]), (short, contrasts[1])):
            snakes = Snakes(np.full((n, 1, 2), where), degrees[:, None], np.zeros((n, 2)))
            painting.paint(canvas, rim, painting.lit(style.line, contrast, exact=False), snakes, np.arange(n))
        inside = canvas[:, rim:-rim, rim:-rim]
        pixels = painting.marked(inside, np.full((n, 2, 2), end), design.marker_radius, exact=False)
        for picture, turn in zip(pixels, degrees.tolist(), strict=True):
            angle = loops.radians(turn - 180)
            long = reference.lit(reference.paddle(place, angle, side)[0], contrasts[0])
            faint = reference.lit(reference.paddle(short, angle, side)[0], contrasts[1])
            expected = loops.scaled(np.maximum(np.maximum(long, faint), reference.marker(end)))
            assert (picture == expected).all(), (option, turn)


@pytest.mark.parametrize("where", [(0, 3), (16, 30), (31, 31)])
def test_markers_are_those_of_the_loops(where: tuple[int, int]) -> None:
    design = builder("pathfinder").design
    expected = loops.Loops(design, 1, seed=1).marker(where) / 2
    expected[5, 11] = 1
    for exact in (False, True):
        canvas = np.zeros((1, 32, 32), dtype=np.float32)
        canvas[0, 5, 11] = 200 * 255 if exact else 2  # the brightest pixel: a marker has half of it
        marked = painting.marked(canvas, np.array([[where, where]]), design.marker_radius, exact=exact)[0]
        assert (marked == loops.scaled(expected.astype(np.float64))).all()


@pytest.mark.parametrize(("option", "others"), [("pathfinder", 54), ("pathfinder_64", 0), ("pathx", 0)])
def test_second_snakes_begin_where_those_of_the_loops_do(option: str, others: int) -> None:
    """Also where 7 sin 30 is no half in floating point; exact ones differ there, in `others` rows and columns of 32."""
    design = builder(option).design
    reference = loops.Loops(design, design.paddle_margins[0], seed=1)
    style, mended = (replace(design, mended=on).paddles(design.paddle_margins[0]) for on in (False, True))
    places = np.stack([np.arange(32)] * 2, axis=1)
    turns = np.repeat(np.arange(360)[:, None], 32, axis=1)
    ends, exact = (which.walked(which.second, turns, places) for which in (style, mended))
    for turn, points in enumerate(ends):
        around = loops.radians((turn + 180) % 360)
        assert points.tolist() == [list(reference.second((place, place), around)) for place in range(32)], turn
    assert (ends != exact).sum() == others
