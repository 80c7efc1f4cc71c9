"""Sprites of Pathfinder's paddles and markers for every direction, computed once.

As in the public generator (Kim et al. 2020, github.com/drewlinsley/pathfinder; Linsley et al. 2018), which used SciPy's
former `imresize`, sprites are drawn by Pillow at twice the size and reduced by its Lanczos filter. Sines are rounded to
30 bits before they are compared with a whole number, so that every machine computes the same pixels.

Legend: A directions (360 whole degrees for a first paddle, then K for later ones), P pixels of a side.
"""

from dataclasses import dataclass
from functools import cache
from math import ceil

import numpy as np
import PIL.Image
import PIL.ImageDraw

DEGREES = 360  # directions of a first paddle
SCALE = 2  # factor by which sprites are drawn larger
ONE = 1 << 30  # fixed-point 1 of sines and cosines
# Indices of -120 and 120 degrees: in floating point their cosine is slightly above -1/2, so the public generator rounds
# it up once more.
ROUNDED_TWICE = [60, 300]
LANCZOS = 3  # lobes of the filter on either side
FULL = 255
TOUCH = 459  # 1.8 * 255: two masks touch where their sum is at least this


def sines(radians: np.ndarray) -> np.ndarray:
    """Return sine and cosine [n, 2] in units of 1 / ONE: the displacements in rows and columns."""
    return np.rint(np.stack([np.sin(radians), np.cos(radians)], axis=1) * ONE).astype(np.int64)


def rounded_up(distance: int, directions: np.ndarray) -> np.ndarray:
    """Return the displacements [n, 2] of walks of `distance` pixels in these directions, rounded up."""
    return -((-distance * directions) // ONE)


def circle_points(radius: int) -> np.ndarray:
    """Return the distinct pixels [K, 2], rounded down, of points on a circle that are one pixel of arc apart."""
    around = sines(np.arange(ceil(2 * np.pi * radius)) / radius)
    return np.unique(radius * around // ONE, axis=0)


def disc(radius: int) -> np.ndarray:
    """Return a mask [2 radius + 1, 2 radius + 1] of the pixels within `radius` of the centre."""
    axis = np.arange(-radius, radius + 1)
    return axis[:, None] ** 2 + axis**2 <= radius**2


def dilated(image: np.ndarray, radius: int) -> np.ndarray:
    """Return the maximum of the image within `radius` of each pixel [..., P, P]."""
    side = image.shape[-1]
    wide = np.pad(image, [(0, 0)] * (image.ndim - 2) + [(radius, radius)] * 2)
    shifts = np.argwhere(disc(radius))
    return np.max([wide[..., y : y + side, x : x + side] for y, x in shifts], axis=0)


def line(side: int, end: np.ndarray, width: int) -> np.ndarray:
    """Draw a line from the centre of a square [side, side] uint8 to `end`, relative to it; `width` is in pixels."""
    middle, (row, column) = side // 2, end.tolist()
    image = PIL.Image.new("L", (side, side))
    PIL.ImageDraw.Draw(image).line([(middle, middle), (middle + column, middle + row)], fill=FULL, width=width)
    return np.asarray(image)


def shrunk(images: np.ndarray, side: int) -> np.ndarray:
    """Reduce images [..., s, s] uint8 to [..., side, side] by a Lanczos filter."""
    small = [
        PIL.Image.fromarray(image).resize((side, side), PIL.Image.Resampling.LANCZOS)
        for image in images.reshape(-1, *images.shape[-2:])
    ]
    return np.stack([np.asarray(image) for image in small]).reshape(*images.shape[:-2], side, side)


@dataclass(frozen=True)
class Paddles:
    """Sprites of the paddles with one margin for A directions, and the steps from one paddle to the next.

    Legend: P pixels of a side of a paddle's sprite, Q with the margin.

    Attributes:
        line, mask: sprites without and with the margin, centred on the start point of the paddle [A, P, P] uint8.
        near: the mask dilated by the margin [A, Q, Q].
        room: maximum occupancy under each pixel at which the paddle does not touch it [A, P, P].
        points: possible start points of the next paddle, relative to its pivot [K, 2].
        head, first: displacements from the start point of a first paddle to its other end, and to its pivot [360, 2].
        ahead: displacements from a pivot to the next one [A, 2].
        second: displacements from the start point of the first snake to that of the second [360, 2], not rounded.
        weights: relative likelihoods of the next direction, WEIGHT for straight on [A, K].
        seen: pixels around the start point of a first paddle that must be free, some repeated [360, S, 2].
    """

    margin: int
    line: np.ndarray
    mask: np.ndarray
    near: np.ndarray
    room: np.ndarray
    points: np.ndarray
    head: np.ndarray
    first: np.ndarray
    ahead: np.ndarray
    second: np.ndarray
    weights: np.ndarray
    seen: np.ndarray

    @property
    def rim(self) -> int:
        """Maximum number of pixels by which a paddle, or a candidate for one, exceeds the window."""
        return self.near.shape[-1] // 2 + 2


WEIGHT = 1 << 16


@cache
def paddles(length: int, thickness: float, margin: int, continuity: float, seed_distance: int) -> Paddles:
    """Return the sprites and steps of paddles with these sizes in pixels."""
    reach = length + ceil(thickness) + margin
    points = circle_points(length + margin)
    angles = np.concatenate([np.deg2rad(np.arange(DEGREES) - DEGREES // 2), np.arctan2(points[:, 0], points[:, 1])])
    directions = sines(angles)
    begun = directions[:DEGREES]
    drawn = np.concatenate([begun, -directions[DEGREES:]])  # a further one begins at its head
    ends = rounded_up(SCALE * length, drawn)
    ends[ROUNDED_TWICE, 1] += 1
    lines = np.stack([line(SCALE * 2 * reach + 1, end, round(thickness * SCALE)) for end in ends])
    masks = dilated(lines, SCALE * margin)
    mask = shrunk(masks, 2 * reach + 1)
    turns = np.abs(angles[:, None] - angles[DEGREES:])
    turns = np.minimum(continuity * np.minimum(turns, 2 * np.pi - turns), np.pi / 2)
    head = rounded_up(length, begun)
    return Paddles(
        margin=margin,
        line=shrunk(lines, 2 * reach + 1),
        mask=mask,
        near=dilated(np.pad(mask, [(0, 0), (margin, margin), (margin, margin)]), margin),
        room=np.minimum(FULL, TOUCH - 1 - mask.astype(np.int64)).astype(np.uint8),
        points=points,
        head=head,
        first=head + rounded_up(length + margin, -begun),
        ahead=rounded_up(length + 2 * margin, directions),
        second=seed_distance * begun / ONE,
        weights=np.rint(WEIGHT * np.cos(turns) ** 2).astype(np.int64),
        seen=_seen(mask[:DEGREES], length + margin),
    )


def _seen(masks: np.ndarray, reach: int) -> np.ndarray:
    """Return the full pixels of each mask as the public generator checks them: shifted by 1, and at most `reach`."""
    lists = [np.argwhere(mask == FULL) - len(mask) // 2 + 1 for mask in masks]
    lists = [offsets[(offsets <= reach).all(axis=1)] for offsets in lists]
    longest = max(map(len, lists))
    return np.stack([np.resize(offsets, (longest, 2)) for offsets in lists])


@cache
def markers(radius: float, window: int) -> np.ndarray:
    """Return sprites [C, C, C, C] uint8 of a marker at each position of a square of C pixels a side.

    The centre stands for all positions far from the edges of the window. Positions near a side of the square are for
    markers near that edge, where the filter sees no pixels beyond the window.
    """
    far = ceil(radius) + 2 * LANCZOS + 1
    side = min(2 * far + 1, window)
    fine, coarse = np.arange(side * SCALE), np.arange(side) * SCALE
    squares = (fine - coarse[:, None]) ** 2
    inside = squares[:, None, :, None] + squares[None, :, None, :] <= (radius * SCALE) ** 2
    return shrunk(np.uint8(FULL) * inside, side)
