"""Generate Pathfinder's images: two snakes of paddles, distractors, and two markers, both on one snake or one on each.

The images of a block are generated together: many pairs of snakes grow paddle by paddle, and pairs at a dead end are
dropped. A block depends only on the `Design`, the seed and its own index. It is computed from raw Philox bits, and with
the same rounding on every machine, so that a seed gives the same images everywhere.

Legend: n images, S paddles of a snake, W side of an image in pixels. Positions are (row, column); turns are indices of
directions in the arrays of `Paddles`.
"""

from dataclasses import dataclass
from typing import Annotated, NamedTuple

import numpy as np
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from lra.core.errors import UserError
from lra.datasets.probes import Draws
from lra.tasks._pathfinder_board import Board, Snakes, empty, joined, lit, marked, paint
from lra.tasks._pathfinder_sprites import DEGREES, FULL, WEIGHT, Paddles, paddles

BLOCK = 500  # number of images in a block
# maximum number of pairs of snakes that are begun together, and maximum number of pixels of their masks
PAIRS_AT_ONCE, PIXELS_AT_ONCE = 1 << 12, 1 << 25
TRIES = 3  # maximum number of attempts to add a paddle to a snake
DISTRACTOR_TRIES = 5  # maximum number of attempts to place a distractor
# A snake cannot grow if the weights of all candidates for its next paddle sum to at most this number. It is the bound
# 1e-4 of the public generator, multiplied by the maximum weight WEIGHT * FULL.
DEAD_END = WEIGHT * FULL // 10_000
GUESSES = 16  # number of random positions to try for a first paddle before all positions are checked
FRUITLESS = 1 << 15  # number of pairs begun per completed pair above which `_pairs` gives up


@dataclass(kw_only=True)
class Design:
    """Options that determine an image, as in the public generator.

    Args:
        window: side of the image in pixels.
        padding: width in pixels of the frame that stays empty.
        seed_distance: distance in pixels between the first paddles of the two snakes.
        paddle_length: length of a paddle in pixels.
        paddle_thickness: thickness of a paddle in pixels, a multiple of 0.5.
        paddle_margins: numbers of free pixels around a paddle; for each image one of these numbers is drawn.
        continuity: straightness of snakes; the larger it is, the smaller are the angles between consecutive paddles.
        marker_radius: radius of a marker in pixels.
        contour_length: number of paddles of a snake.
        distractors: number of distractors, which are short snakes; a distractor without room is left out.
        distractor_length: number of paddles of a distractor.
        contrast: contrast of the snakes in percent.
        distractor_contrast: contrast of the distractors in percent.
    """

    window: PositiveInt
    padding: PositiveInt
    seed_distance: PositiveInt
    paddle_length: PositiveInt
    paddle_thickness: Annotated[float, Field(gt=0, multiple_of=0.5)]  # sprites are drawn at twice the size
    paddle_margins: Annotated[list[PositiveInt], Field(min_length=1)]
    continuity: NonNegativeFloat
    marker_radius: PositiveFloat
    contour_length: PositiveInt
    distractors: NonNegativeInt
    distractor_length: PositiveInt
    contrast: PositiveInt
    distractor_contrast: PositiveInt


class Images(NamedTuple):
    """Images of a block.

    Attributes:
        pixels: grey values [n, W, W] uint8.
        labels: array [n], 1 if both markers are on one snake, else 0.
        attributes: array [n, 3] with the distance between the markers in pixels, the number of distractors placed, and
            the length in pixels of the snake with the first marker.
    """

    pixels: np.ndarray
    labels: np.ndarray
    attributes: np.ndarray


def block(index: int, seed: int, design: Design) -> Images:
    """Return the BLOCK images of block `index`."""
    draws = Draws(seed, index)  # all draws of a block are in one stream, so their order determines the images
    margins = draws.below(len(design.paddle_margins), BLOCK)
    labels, origins = draws.below(2, BLOCK), draws.below(2, BLOCK)
    pixels = np.empty((BLOCK, design.window, design.window), dtype=np.uint8)
    attributes = np.empty((BLOCK, 3), dtype=np.int64)
    for number, margin in enumerate(design.paddle_margins):
        rows = np.flatnonzero(margins == number)
        if len(rows):
            pixels[rows], attributes[rows] = _drawn(draws, design, margin, labels[rows], origins[rows])
    return Images(pixels, labels, attributes)


def _drawn(
    draws: Draws, design: Design, margin: int, labels: np.ndarray, origins: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return pixels [n, W, W] and attributes [n, 3] of images with these labels [n].

    `origins` [n] is the index, 0 or 1, of the snake with the first marker.
    """
    sizes = design.paddle_length, design.paddle_thickness, margin
    style, rows = paddles(*sizes, design.continuity, design.seed_distance), np.arange(len(labels))
    board, *pair = _pairs(draws, design, style, len(labels))
    side = design.window + 2 * style.rim
    canvas = np.zeros((len(labels), side, side), dtype=np.float32)
    lines, short_lines = lit(style.line, design.contrast), lit(style.line, design.distractor_contrast)
    for snake in pair:
        paint(canvas, style.rim, lines, snake, rows)
    placed = np.zeros(len(labels), dtype=np.int64)
    for _ in range(design.distractors):
        done, snake = _distractors(draws, design, board)
        placed[done] += 1
        paint(canvas, style.rim, short_lines, snake, done)
    positions = np.stack([snake.positions for snake in pair], axis=1)  # [n, 2, S, 2]
    start, end = positions[rows, origins, 0], positions[rows, np.where(labels == 1, origins, 1 - origins), -1]
    rim = style.rim
    ends = np.stack([start, end], axis=1)  # [n, 2, 2]
    pixels = marked(canvas[:, rim:-rim, rim:-rim], ends, design.marker_radius)
    # [n, S, 2]: the step from marker to marker, then the steps between the paddles of the snake with the first marker.
    steps = np.concatenate([(end - start)[:, None], np.diff(positions[rows, origins], axis=1)], axis=1)
    # [n, S]: whole numbers, in units of 1/256 pixel, so that their sums are equal on all machines.
    lengths = np.rint(256 * np.sqrt((steps**2).sum(axis=-1))).astype(np.int64)
    distance, path = ((each + 128) // 256 for each in (lengths[:, 0], lengths[:, 1:].sum(axis=1)))  # rounded to pixels
    return pixels, np.stack([distance, placed, path], axis=1)


def _pairs(draws: Draws, design: Design, style: Paddles, n: int) -> tuple[Board, Snakes, Snakes]:
    """Return a board of n images that have two complete snakes each; also return the first and the second snakes."""
    at_once = min(PAIRS_AT_ONCE, PIXELS_AT_ONCE // (design.window + 2 * style.rim) ** 2)
    arrivals: list[tuple[Board, Snakes, Snakes]] = []
    begun = arrived = 0
    while arrived < n:
        board = empty(design.window, design.padding, style, at_once)
        rows, pair = _seeds(draws, design, board)
        for _ in range(design.contour_length - 1):
            for number in range(2):  # alternately, so that neither snake takes all the room
                kept, pair[number] = _extended(draws, board, rows, pair[number])
                rows, pair[1 - number] = rows[kept], pair[1 - number].at(kept)
        for snake in pair:  # draw the last paddles; `_extended` has drawn the others
            board.add(rows, snake.positions[:, -1], snake.turns[:, -1])
        arrivals.append((board.at(rows), pair[0], pair[1]))
        begun, arrived = begun + at_once, arrived + len(rows)
        if begun > FRUITLESS * (1 + arrived):
            raise UserError(
                f"pathfinder: no two snakes of {design.contour_length} paddles fit in {design.window} pixels; "
                "ask for shorter ones (task.contour_length) or for a larger window (task.window)"
            )
    boards, *sides = zip(*arrivals, strict=True)
    mask, near = (np.concatenate([getattr(board, name) for board in boards])[:n] for name in ("mask", "near"))
    return Board(design.window, style, mask, near), *(joined(side).at(np.arange(n)) for side in sides)  # type: ignore[return-value]


def _seeds(draws: Draws, design: Design, board: Board) -> tuple[np.ndarray, list[Snakes]]:
    """Choose the first paddles of two snakes at random for each image of the board; they are not drawn yet.

    The first snake begins at least `2 * seed_distance` pixels away from the edges of the window.

    Returns:
        Indices of the images in which both paddles have room, and the two snakes in these images.
    """
    style, n = board.style, len(board)
    edge = 2 * design.seed_distance
    if design.window <= 2 * edge:
        raise UserError(
            f"pathfinder: no first paddle fits {edge} pixels (twice task.seed_distance) away from the edges of "
            f"a window of {design.window} pixels (task.window)"
        )
    turns = np.stack([draws.below(DEGREES, n), draws.below(DEGREES, n)], axis=1)
    first = edge + draws.below(design.window - 2 * edge, n, 2)
    second = np.rint(first + style.second[draws.below(DEGREES, n)]).astype(np.int64)
    positions = np.stack([first, second], axis=1)  # [n, 2, 2]
    pivots = positions + style.first[turns]
    good = (board.within(positions + style.head[turns]) & board.within(pivots)).all(axis=1)
    alone, rows = empty(design.window, design.padding, style, n), np.arange(n)
    alone.add(rows, positions[:, 0], turns[:, 0])
    good &= ~alone.touches(rows, positions[:, 1], turns[:, 1])  # the second snake does not begin on the first
    rows = np.flatnonzero(good)
    return rows, [Snakes(positions[rows, k, None], turns[rows, k, None], pivots[rows, k]) for k in range(2)]


def _extended(draws: Draws, board: Board, rows: np.ndarray, snake: Snakes) -> tuple[np.ndarray, Snakes]:
    """Return the indices of the snakes with room for another paddle, and these snakes with the paddle added.

    The new paddle is not yet drawn into the mask of the board, because the next paddle would touch it. This call draws
    the previous paddle instead.
    """
    style, rim = board.style, board.style.rim
    pivots = snake.pivot + style.ahead[snake.turns[:, -1]]
    points = pivots[:, None] + style.points  # [n, K, 2]: candidates for the start of the next paddle
    room = FULL - board.near[rows[:, None], points[..., 0] + rim, points[..., 1] + rim].astype(np.int64)  # [n, K]
    # Weights are whole numbers, so their sums are exact, and a draw below the last sum selects one of the K points.
    ends = np.cumsum(room * style.weights[snake.turns[:, -1]], axis=1)  # [n, K]
    chosen = np.full(len(rows), -1)
    open_ = np.flatnonzero(ends[:, -1] > DEAD_END)  # snakes for which no paddle is chosen yet
    for _ in range(TRIES):
        drawn = (ends[open_] <= draws.below(ends[open_, -1], len(open_))[:, None]).sum(axis=1)
        clear = ~board.touches(rows[open_], points[open_, drawn], DEGREES + drawn)
        chosen[open_[clear]], open_ = drawn[clear], open_[~clear]
    kept = np.flatnonzero(chosen >= 0)
    board.add(rows[kept], snake.positions[kept, -1], snake.turns[kept, -1])
    positions = np.concatenate([snake.positions[kept], points[kept, chosen[kept], None]], axis=1)  # [kept, S + 1, 2]
    turns = np.concatenate([snake.turns[kept], DEGREES + chosen[kept, None]], axis=1)  # [kept, S + 1]
    return kept, Snakes(positions, turns, pivots[kept])


def _distractors(draws: Draws, design: Design, board: Board) -> tuple[np.ndarray, Snakes]:
    """Add a distractor to each image with room for one; return the indices of these images, and the distractors."""
    missing, drawn = np.arange(len(board)), []
    for _ in range(DISTRACTOR_TRIES):
        turns = draws.below(DEGREES, len(missing))
        seeded, snake = _beginnings(draws, board, missing, turns)
        images = missing[seeded]
        # Grow distractors on copies of the images, so that an incomplete distractor leaves no trace.
        trial, rows = board.at(images), np.arange(len(images))
        for _ in range(design.distractor_length - 1):
            kept, snake = _extended(draws, trial, rows, snake)
            rows = rows[kept]
        trial.add(rows, snake.positions[:, -1], snake.turns[:, -1])  # the last paddles, as in `_pairs`
        board.mask[images[rows]], board.near[images[rows]] = trial.mask[rows], trial.near[rows]
        drawn.append((images[rows], snake))
        missing = np.setdiff1d(missing, images[rows])
    images, snakes = zip(*drawn, strict=True)
    return np.concatenate(images), joined(snakes)


def _beginnings(draws: Draws, board: Board, rows: np.ndarray, turns: np.ndarray) -> tuple[np.ndarray, Snakes]:
    """Choose a random free position for a first paddle with the direction `turns` [n] in each of the images `rows` [n].

    GUESSES random positions are tried first. All positions are checked only for paddles that fit at none of these.

    Returns:
        Indices of the paddles that fit, and snakes that consist of these paddles.
    """
    guesses = draws.below(board.window, len(rows), GUESSES, 2)  # [n, GUESSES, 2]
    free = _fits(board, np.repeat(rows, GUESSES), np.repeat(turns, GUESSES), guesses.reshape(-1, 2))
    free = free.reshape(len(rows), GUESSES)  # [n, GUESSES]
    # Guesses are independent, so the first free guess is uniformly distributed over the free positions.
    positions = guesses[np.arange(len(rows)), free.argmax(axis=1)]
    placed = free.any(axis=1)
    lost = np.flatnonzero(~placed)  # paddles that fit at none of the guesses
    grid = np.argwhere(np.ones((board.window, board.window), dtype=bool))  # [W * W, 2]: all positions
    owners, choices = np.divmod(np.arange(len(lost) * len(grid)), len(grid))  # each lost paddle with each position
    free = np.flatnonzero(_fits(board, rows[lost[owners]], turns[lost[owners]], grid[choices]))
    counts = np.bincount(owners[free], minlength=len(lost))  # [lost]: number of positions where each paddle fits
    some = np.flatnonzero(counts)
    picked = (np.cumsum(counts) - counts)[some] + draws.below(counts[some], len(some))
    positions[lost[some]], placed[lost[some]] = grid[choices[free[picked]]], True  # type: ignore[index]
    kept = np.flatnonzero(placed)
    pivots = positions[kept] + board.style.first[turns[kept]]
    return kept, Snakes(positions[kept, None], turns[kept, None], pivots)


def _fits(board: Board, rows: np.ndarray, turns: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """Return bool [n], True for first paddles that fit; the pixels of a paddle are checked until one is occupied."""
    style = board.style
    fits = board.within(positions + style.head[turns]) & board.within(positions + style.first[turns])
    left = np.flatnonzero(fits)  # indices of the paddles that may still fit
    for number in range(style.seen.shape[1]):
        free = board.free(rows[left], positions[left] + style.seen[turns[left], number])
        fits[left[~free]] = False
        left = left[free]
    return fits
