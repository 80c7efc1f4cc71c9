"""Occupancy masks on which Pathfinder's snakes grow, and their rendering, for many images at once.

Lines and markers are whole numbers in float32, and IEEE 754 defines the rounding of every operation, so that a picture
has the same bytes on every machine.

Legend: n images, S paddles of a snake, P pixels of a stamp's side, W of a window's; positions are (row, column), turns
index the directions of `Paddles`.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from lra.tasks._pathfinder_sprites import FULL, Paddles, dilated, markers

FREE = 76  # maximum mask value of a free pixel: 0.3 * 255
MARKER = 100  # contrast of a marker in percent


class Snakes(NamedTuple):
    """One snake in each of n images: start points of its paddles [n, S, 2], their turns [n, S], last pivot [n, 2]."""

    positions: np.ndarray
    turns: np.ndarray
    pivot: np.ndarray

    def at(self, rows: np.ndarray) -> "Snakes":
        return Snakes(*(part[rows] for part in self))

    def longer(self, rows: np.ndarray, positions: np.ndarray, turns: np.ndarray, pivot: np.ndarray) -> "Snakes":
        """Return the snakes `rows`, each with one more paddle."""
        return Snakes(
            np.concatenate([self.positions[rows], positions[:, None]], axis=1),
            np.concatenate([self.turns[rows], turns[:, None]], axis=1),
            pivot,
        )


@dataclass(frozen=True)
class Board:
    """Occupancy masks of n images; a rim around the window lets paddles at an edge be drawn like all others.

    Attributes:
        window: pixels of a side, without the rim.
        style: paddles of the snakes.
        mask: masks [n, side, side] uint8, with side = window + 2 rim.
        near: masks dilated by the margin of the paddles, in the same shape; their rim is full.
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

    def put(self, rows: np.ndarray, board: "Board") -> None:
        """Replace the masks of the images `rows` by those of another board."""
        self.mask[rows], self.near[rows] = board.mask, board.near

    def within(self, positions: np.ndarray) -> np.ndarray:
        """Return True for each of `positions` [..., 2] that is inside the window."""
        return ((positions >= 0) & (positions < self.window)).all(axis=-1)  # type: ignore[return-value]

    def free(self, rows: np.ndarray, positions: np.ndarray) -> np.ndarray:
        """Return True for each of `positions` [..., 2] that is free in its image of `rows` [...]."""
        return self.mask[rows, positions[..., 0] + self.style.rim, positions[..., 1] + self.style.rim] <= FREE

    def touches(self, rows: np.ndarray, positions: np.ndarray, turns: np.ndarray) -> np.ndarray:
        """Return True for each paddle [n] that touches the mask of its image of `rows` [n]."""
        patches, where = _around(self.mask, self.style.rim, self.style.mask, rows, positions)
        return (patches[where] > self.style.room[turns]).any(axis=(1, 2))

    def add(self, rows: np.ndarray, positions: np.ndarray, turns: np.ndarray) -> None:
        """Add paddles [n] to the masks, one to each image of `rows` [n]."""
        lay(self.mask, self.style.rim, self.style.mask[turns], rows, positions)
        lay(self.near, self.style.rim, self.style.near[turns], rows, positions)


def _around(
    pictures: np.ndarray, rim: int, stamps: np.ndarray, rows: np.ndarray, positions: np.ndarray
) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
    """Return a view of all patches of a stamp's size, and the indices in it of those around `positions` [n, 2]."""
    size = stamps.shape[-1]
    corners = positions + (rim - size // 2)  # [n, 2]: first row and column of each patch
    patches = sliding_window_view(pictures, (size, size), axis=(1, 2), writeable=True)
    return patches, (rows, corners[:, 0], corners[:, 1])


def lay(pictures: np.ndarray, rim: int, stamps: np.ndarray, rows: np.ndarray, positions: np.ndarray) -> None:
    """Draw a stamp [n, P, P] around each of `positions` [n, 2] into `pictures`, in place, by the maximum of both."""
    patches, where = _around(pictures, rim, stamps, rows, positions)
    patches[where] = np.maximum(patches[where], stamps)


def empty(window: int, padding: int, style: Paddles, n: int) -> Board:
    """Return a board of n images without snakes, whose outer `padding` pixels are occupied."""
    side = window + 2 * style.rim
    far = np.maximum.outer(*[np.abs(2 * np.arange(side) - side + 1)] * 2)  # distance from the centre, in half pixels
    inner = window - 2 * padding
    frame = np.where((far < window) & (far > inner - 1), FULL, 0).astype(np.uint8)
    near = np.where(far < window, dilated(frame, style.margin), FULL).astype(np.uint8)[None]
    return Board(window, style, np.repeat(frame[None], n, axis=0), np.repeat(near, n, axis=0))


def joined(snakes: "tuple[Snakes, ...] | list[Snakes]") -> Snakes:
    """Concatenate the snakes of several sets of images to one set."""
    return Snakes(*(np.concatenate(parts) for parts in zip(*snakes, strict=True)))


def lit(sprites: np.ndarray, contrast: int) -> np.ndarray:
    """Return uint8 sprites times a contrast in percent, as whole numbers in float32."""
    return sprites.astype(np.float32) * np.float32(contrast)


def paint(canvas: np.ndarray, rim: int, lines: np.ndarray, snake: Snakes, rows: np.ndarray) -> None:
    """Draw one snake on each of the canvases `rows` [n]; `lines` are a paddle's sprites by direction."""
    for position, turn in zip(snake.positions.swapaxes(0, 1), snake.turns.T, strict=True):
        lay(canvas, rim, lines[turn], rows, position)


def marked(canvas: np.ndarray, ends: np.ndarray, radius: float) -> np.ndarray:
    """Return images [n, W, W] uint8 with a marker at each of the two positions `ends` [n, 2, 2] of an image."""
    window = canvas.shape[-1]
    looks = lit(markers(radius, window), MARKER)
    side = looks.shape[-1]
    for position in ends.swapaxes(0, 1):
        corner = np.clip(position - side // 2, 0, window - side)
        lay(canvas, 0, looks[tuple((position - corner).T)], np.arange(len(canvas)), corner + side // 2)
    # Scale each image so that its largest value is 255, and round halves up.
    values = canvas.astype(np.float64)
    return (FULL * values / values.max(axis=(1, 2), keepdims=True) + 0.5).astype(np.uint8)
