"""Pictures of one size as examples, and some of them on one sheet."""

import io
import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from PIL import Image, ImageDraw

from lra.data import Split

SHORTEST = 96  # pixels of a picture's side on the sheet, at least
CAPTION = 14  # pixels
GAP = 4


@dataclass(frozen=True, kw_only=True)
class Pictures(Split):
    """Pictures of one size, stored as grey values [n * pixels] uint8; a token is a value + 1, so that none is padding.

    known [n * p] int32: p numbers that are known of each picture besides, where it was drawn here.
    """

    shift: ClassVar[int] = 1
    known: np.ndarray | None = None

    def document(self, example: int, place: int = 0) -> np.ndarray:
        return self.pad(np.array([example]), 0)[0]

    def pad(self, examples: np.ndarray, length: int) -> np.ndarray:
        """Tokens [len(examples), pixels] uint16; `length` must be the number of pixels."""
        return self.grey(examples).astype(np.uint16) + self.shift

    def grey(self, examples: np.ndarray) -> np.ndarray:
        """Grey values [len(examples), pixels] uint8."""
        return self.tokens.reshape(len(self.offsets) - 1, -1)[self._rows(examples)]


def sheet(grey: np.ndarray, labels: np.ndarray) -> bytes:
    """Grey values [n, pixels] of square pictures, with their labels [n], as a PNG, in a square as far as it goes."""
    number = len(grey)
    side = math.isqrt(grey.shape[1])
    scale = math.ceil(SHORTEST / side)
    columns = math.ceil(math.sqrt(number))
    width, height = side * scale + GAP, side * scale + CAPTION + GAP
    canvas = Image.new("L", (columns * width + GAP, math.ceil(number / columns) * height + GAP), 255)
    for place, (picture, label) in enumerate(zip(grey.reshape(number, side, side), labels, strict=True)):
        x, y = GAP + place % columns * width, GAP + place // columns * height
        ImageDraw.Draw(canvas).text((x, y), f"label {label}", fill=0)
        large = Image.fromarray(picture).resize((side * scale, side * scale), Image.Resampling.NEAREST)
        canvas.paste(large, (x, y + CAPTION))
    png = io.BytesIO()
    canvas.save(png, "PNG", optimize=True)
    return png.getvalue()
