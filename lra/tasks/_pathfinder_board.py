"""Store the occupancy masks on which Pathfinder's snakes grow, and draw the snakes, for many images at once.

Pixel values of lines and markers are whole numbers in float32, and IEEE 754 defines the rounding of every operation, so
that a picture has the same bytes on every machine.

Legend: n images, S paddles of a snake, P side of a stamp in pixels, W side of the window in pixels. Positions are
(row, column); turns are indices of directions in the arrays of `Paddles`.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from lra.tasks._pathfinder_sprites import FULL, Paddles, dilated, markers

FREE = 76  # maximum value of a free pixel in a mask: 0.3 * 255
MARKER = 100  # contrast of a marker in percent


class Snakes(NamedTuple):
    """One snake in each of n images: positions [n, S, 2] and turns [n, S] of its paddles, pivot [n, 2] of the last.

    The position of a paddle is its start point: for a first paddle its rear end, for later paddles the front end. The
    pivot of a paddle lies behind its rear end, at the distance of the margin.
    """

    positions: np.ndarray
    turns: np.ndarray
    pivot: np.ndarray

    def at(self, rows: np.ndarray) -> "Snakes":
        """Return the snakes of the images `rows`."""
        return Snakes(*(part[rows] for part in self))


@dataclass(frozen=True)
class Board:
    """Occupancy masks of n images. The window has a rim, so that paddles at its edges are drawn like all others.

    Attributes:
        window: side of the window in pixels, without the rim.
        style: sprites of the paddles of the snakes.
        mask: occupancy [n, side, side] uint8, 0 to 255, with side = window + 2 * rim.
        near: [n, side, side] uint8, `mask` dilated by the margin of the paddles, and 255 in the rim.
    """

    window: int
    style: Paddles
    mask: np.ndarray
    near: np.ndarray

    def __len__(self) -> int:
        return len(self.mask)

    def at(self, rows: np.ndarray) -> "Board":
        """Return a board with copies of the images `rows`."""
        return Board(self.window, self.style, self.mask[rows], self.near[rows])

    def within(self, positions: np.ndarray) -> np.ndarray:
        """Return bool [...], True for those `positions` [..., 2] that are inside the window."""
        return ((positions >= 0) & (positions < self.window)).all(axis=-1)  # type: ignore[return-value]

    def free(self, rows: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """Return bool [...], True for those `positions` [..., 2] that are free in the images `rows` [...]."""
        return self.mask[rows, positions[..., 0] + self.style.rim, positions[..., 1] + self.style.rim] <= FREE

    def touches(self, rows: np.ndarray, positions: np.ndarray, turns: np.ndarray) -> np.ndarray:
        """Return bool [n], True for those paddles [n] that touch the occupancy masks of the images `rows` [n]."""
        patches, where = _around(self.mask, self.style.rim, self.style.mask, rows, positions)
        return (patches[where] > self.style.room[turns]).any(axis=(1, 2))

    def add(self, rows: np.ndarray, positions: np.ndarray, turns: np.ndarray) -> None:
        """Draw one paddle into the masks of each of the images `rows` [n], in place."""
        lay(self.mask, self.style.rim, self.style.mask[turns], rows, positions)
        lay(self.near, self.style.rim, self.style.near[turns], rows, positions)


def _around(
    pictures: np.ndarray, rim: int, stamps: np.ndarray, rows: np.ndarray, positions: np.ndarray
) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
    """Return a view of all patches of a stamp's size in `pictures`, and the index of the patches around `positions`.

    `view[index]` are the patches [n, P, P] around `positions` [n, 2] in the pictures `rows` [n].
    """
    size = stamps.shape[-1]
    corners = positions + (rim - size // 2)  # [n, 2]: first row and column of each patch
    patches = sliding_window_view(pictures, (size, size), axis=(1, 2), writeable=True)
    return patches, (rows, corners[:, 0], corners[:, 1])


def lay(pictures: np.ndarray, rim: int, stamps: np.ndarray, rows: np.ndarray, positions: np.ndarray) -> None:
    """Draw `stamps` [n, P, P] around `positions` [n, 2] into the pictures `rows` [n], in place.

    Each pixel becomes the maximum of the picture and the stamp.
    """
    patches, where = _around(pictures, rim, stamps, rows, positions)
    # `rows` must not repeat a picture: of two stamps in it, the indexed assignment would keep only the last.
    patches[where] = np.maximum(patches[where], stamps)


def empty(window: int, padding: int, style: Paddles, n: int) -> Board:
    """Return a board of n images without snakes, in which `padding` pixels at each edge of the window are occupied."""
    side = window + 2 * style.rim
    # [side, side]: the larger of the row and column distances of each pixel from the centre, in half pixels.
    far = np.maximum.outer(*[np.abs(2 * np.arange(side) - side + 1)] * 2)
    inner = window - 2 * padding
    frame = np.where((far < window) & (far > inner - 1), FULL, 0).astype(np.uint8)
    near = np.where(far < window, dilated(frame, style.margin), FULL).astype(np.uint8)[None]
    return Board(window, style, np.repeat(frame[None], n, axis=0), np.repeat(near, n, axis=0))


def joined(snakes: "tuple[Snakes, ...] | list[Snakes]") -> Snakes:
    """Return one `Snakes` that holds the snakes of several sets of images, in the order of the sets."""
    return Snakes(*(np.concatenate(parts) for parts in zip(*snakes, strict=True)))


def lit(sprites: np.ndarray, contrast: int) -> np.ndarray:
    """Return sprites multiplied by a contrast in percent, as whole numbers in float32."""
    return sprites.astype(np.float32) * np.float32(contrast)


def paint(canvas: np.ndarray, rim: int, lines: np.ndarray, snake: Snakes, rows: np.ndarray) -> None:
    """Draw one snake on each of the canvases `rows` [n], in place; `lines` are the sprites of a paddle by direction."""
    for position, turn in zip(snake.positions.swapaxes(0, 1), snake.turns.T, strict=True):
        lay(canvas, rim, lines[turn], rows, position)


def marked(canvas: np.ndarray, ends: np.ndarray, radius: float) -> np.ndarray:
    """Return images [n, W, W] uint8 of the canvases with a marker at both positions `ends` [n, 2, 2] of each image."""
    window = canvas.shape[-1]
    looks = lit(markers(radius, window), MARKER)
    side = looks.shape[-1]
    for position in ends.swapaxes(0, 1):
        # Near an edge the sprite is moved into the window; `markers` has a sprite for each offset of the marker.
        corner = np.clip(position - side // 2, 0, window - side)
        lay(canvas, 0, looks[tuple((position - corner).T)], np.arange(len(canvas)), corner + side // 2)
    # Scale each image so that its largest value is 255, and round halves up.
    values = canvas.astype(np.float64)
    return (FULL * values / values.max(axis=(1, 2), keepdims=True) + 0.5).astype(np.uint8)
