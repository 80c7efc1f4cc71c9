"""Rendering of Pathfinder's snakes: lines and markers on canvases, the larger value over the smaller one.

The public generator keeps lines and markers in float32, in which many halves are slightly less and are rounded down.
`exact` uses whole numbers, where halves are rounded up. IEEE 754 defines the rounding of every operation, so that a
picture has the same bytes on every machine.

Legend: n images, S paddles of a snake, W pixels of a side; places are (row, column).
"""

import numpy as np

from lra.tasks.pathfinder.board import Snakes, lay
from lra.tasks.pathfinder.sprites import FULL, markers

MARKER = 100  # its contrast in percent


def lit(sprites: np.ndarray, contrast: int, *, exact: bool) -> np.ndarray:
    """Scale sprites uint8 by a contrast in percent, float32: whole numbers if exact, else fractions of full white."""
    values = sprites.astype(np.float32)
    return values * np.float32(contrast) if exact else values / np.float32(FULL) * np.float32(contrast / 100)


def paint(canvas: np.ndarray, rim: int, lines: np.ndarray, snake: Snakes, rows: np.ndarray) -> None:
    """Draw snakes on the canvases `rows` [n], which have a rim, with the lines of all directions."""
    for place, turn in zip(snake.places.swapaxes(0, 1), snake.turns.T, strict=True):
        lay(canvas, rim, lines[turn], rows, place)


def marked(canvas: np.ndarray, ends: np.ndarray, radius: float, *, exact: bool) -> np.ndarray:
    """Return images [n, W, W] uint8 from 0 to 255 with markers at two places each [n, 2, 2]."""
    window = canvas.shape[-1]
    looks = lit(markers(radius, window), MARKER, exact=exact)
    side = looks.shape[-1]
    for place in ends.swapaxes(0, 1):
        corner = np.clip(place - side // 2, 0, window - side)
        lay(canvas, 0, looks[tuple((place - corner).T)], np.arange(len(canvas)), corner + side // 2)
    return _greys(canvas, exact=exact)


def _greys(canvas: np.ndarray, *, exact: bool) -> np.ndarray:
    """Scale each image to its largest value, and round."""
    values = canvas.astype(np.float64)
    most = values.max(axis=(1, 2), keepdims=True)
    scaled = FULL * values / most if exact else values * (FULL / most)
    return (scaled + 0.5).astype(np.uint8)
