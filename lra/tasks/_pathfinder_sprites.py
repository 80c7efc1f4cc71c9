"""Compute the sprites of Pathfinder's paddles, one for each direction, and of its markers.

As in the public generator (Kim et al. 2020, github.com/drewlinsley/pathfinder; Linsley et al. 2018), which used SciPy's
former `imresize`, sprites are drawn by Pillow at twice the size and reduced by its Lanczos filter. Sines are rounded to
30 bits before displacements are computed and rounded to pixels, so that every machine computes the same pixels.

Legend: A = 360 + K directions (whole degrees for a first paddle, then K directions for later paddles), P side of a
sprite in pixels.
"""

from dataclasses import dataclass
from functools import cache
from math import ceil

import numpy as np
import PIL.Image
import PIL.ImageDraw

DEGREES = 360  # number of directions of a first paddle
SCALE = 2  # factor by which sprites are drawn larger, before they are reduced
ONE = 1 << 30  # the number 1 in fixed-point sines and cosines
# Indices of -120 and 120 degrees. In floating point their cosine is slightly above -1/2, so the public generator rounds
# the column displacement up by one more pixel.
ROUNDED_TWICE = [60, 300]
LANCZOS = 3  # number of lobes of the filter on either side
FULL = 255  # maximum value of a pixel
TOUCH = 459  # 1.8 * 255: two masks touch at pixels where their sum is at least this


def sines(radians: np.ndarray) -> np.ndarray:
    """Return sine and cosine [n, 2], in units of 1 / ONE, of n angles: the row and the column of a unit step."""
    return np.rint(np.stack([np.sin(radians), np.cos(radians)], axis=1) * ONE).astype(np.int64)


def rounded_up(distance: int, directions: np.ndarray) -> np.ndarray:
    """Return the displacements [n, 2], rounded up to whole pixels, of `distance` pixels in these directions."""
    return -((-distance * directions) // ONE)


def disc(radius: int) -> np.ndarray:
    """Return a mask [2 radius + 1, 2 radius + 1] of the pixels within `radius` of the centre."""
    axis = np.arange(-radius, radius + 1)
    return axis[:, None] ** 2 + axis**2 <= radius**2


def dilated(image: np.ndarray, radius: int) -> np.ndarray:
    """Return images [..., P, P] in which each pixel is the maximum of `image` within `radius` pixels of it."""
    side = image.shape[-1]
    wide = np.pad(image, [(0, 0)] * (image.ndim - 2) + [(radius, radius)] * 2)
    shifts = np.argwhere(disc(radius))
    return np.max([wide[..., y : y + side, x : x + side] for y, x in shifts], axis=0)


def line(side: int, end: np.ndarray, width: int) -> np.ndarray:
    """Return an image [side, side] uint8 of a line from the image's centre to the offset `end` in pixels."""
    middle, (row, column) = side // 2, end.tolist()
    image = PIL.Image.new("L", (side, side))
    PIL.ImageDraw.Draw(image).line([(middle, middle), (middle + column, middle + row)], fill=FULL, width=width)
    return np.asarray(image)


def shrunk(images: np.ndarray, side: int) -> np.ndarray:
    """Return the images [..., s, s] uint8, reduced to [..., side, side] by a Lanczos filter."""
    small = [
        PIL.Image.fromarray(image).resize((side, side), PIL.Image.Resampling.LANCZOS)
        for image in images.reshape(-1, *images.shape[-2:])
    ]
    return np.stack([np.asarray(image) for image in small]).reshape(*images.shape[:-2], side, side)


@dataclass(frozen=True)
class Paddles:
    """Sprites of paddles in A directions, all with one margin, and displacements from one paddle to the next.

    Legend: P side of a paddle's sprite in pixels, Q = P + 2 * margin.

    Attributes:
        margin: number of free pixels around a paddle.
        line, mask: sprites [A, P, P] uint8 without and with the margin, centred on the start point of the paddle.
        near: sprites [A, Q, Q] uint8: `mask` dilated by the margin.
        room: maximum value [A, P, P] uint8 of each pixel of a board's mask at which a paddle does not touch this mask.
        points: possible start points [K, 2] of a later paddle, relative to the pivot of this paddle.
        head, first: displacements [360, 2] from the start point of a first paddle to its other end, and to its pivot.
        ahead: displacements [A, 2] from the pivot of a paddle to the pivot of the next.
        second: displacements [360, 2], not rounded, from the start point of the first snake to that of the second.
        weights: relative probabilities [A, K] of the next direction; straight on has the weight WEIGHT.
        seen: displacements [360, S, 2] from the start point of a first paddle to the pixels that must be free; some are
            repeated, so that every direction has S displacements.
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
        """Maximum number of pixels by which the sprite of a paddle, drawn or only tried, exceeds the window."""
        return self.near.shape[-1] // 2 + 2


WEIGHT = 1 << 16  # weight of the direction straight on


@cache
def paddles(length: int, thickness: float, margin: int, continuity: float, seed_distance: int) -> Paddles:
    """Return the sprites and displacements of paddles; sizes are in pixels."""
    reach = length + ceil(thickness) + margin
    radius = length + margin
    # [K, 2]: distinct pixels of points on a circle around 0, one pixel of arc apart and rounded down.
    points = np.unique(radius * sines(np.arange(ceil(2 * np.pi * radius)) / radius) // ONE, axis=0)
    angles = np.concatenate([np.deg2rad(np.arange(DEGREES) - DEGREES // 2), np.arctan2(points[:, 0], points[:, 1])])
    directions = sines(angles)
    begun = directions[:DEGREES]
    drawn = np.concatenate([begun, -directions[DEGREES:]])  # a later paddle is drawn backwards, from its head
    ends = rounded_up(SCALE * length, drawn)
    ends[ROUNDED_TWICE, 1] += 1
    lines = np.stack([line(SCALE * 2 * reach + 1, end, round(thickness * SCALE)) for end in ends])
    masks = dilated(lines, SCALE * margin)
    mask = shrunk(masks, 2 * reach + 1)
    turns = np.abs(angles[:, None] - angles[DEGREES:])
    turns = np.minimum(continuity * np.minimum(turns, 2 * np.pi - turns), np.pi / 2)
    head = rounded_up(length, begun)
    # Pixels of value FULL of each first paddle, relative to its start point. As in the public generator, row and column
    # offsets are increased by 1, and pixels with an offset above `length + margin` are left out.
    full = [np.argwhere(sprite == FULL) - reach + 1 for sprite in mask[:DEGREES]]
    full = [offsets[(offsets <= length + margin).all(axis=1)] for offsets in full]
    longest = max(map(len, full))
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
        seen=np.stack([np.resize(offsets, (longest, 2)) for offsets in full]),
    )


@cache
def markers(radius: float, window: int) -> np.ndarray:
    """Return the sprites [C, C, C, C] uint8 of a marker at each position [C, C] in a square of side C.

    The sprite at the centre is used for all positions far from the edges of the window. The sprites near a side of the
    square are used near that edge of the window, where the filter sees no pixels beyond the window.
    """
    far = ceil(radius) + 2 * LANCZOS + 1
    side = min(2 * far + 1, window)
    fine, coarse = np.arange(side * SCALE), np.arange(side) * SCALE
    squares = (fine - coarse[:, None]) ** 2
    inside = squares[:, None, :, None] + squares[None, :, None, :] <= (radius * SCALE) ** 2
    return shrunk(np.uint8(FULL) * inside, side)
