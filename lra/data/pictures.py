"""Splits of pictures of one size, and contact sheets."""

import io
import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from PIL import Image, ImageDraw

from lra.data import Split

SHORTEST = 96  # minimum pixels of a picture's side on the sheet
CAPTION = 14  # pixels
GAP = 4


@dataclass(frozen=True, kw_only=True)
class Pictures(Split):
    """Pictures stored as grey values [n * pixels] uint8; a token is a value + 1, so that no pixel is padding.

    Args:
        known: p attributes of each picture that was generated [n * p] int32, or None.
    """

    shift: ClassVar[int] = 1
    known: np.ndarray | None = None

    def document(self, example: int, place: int = 0) -> np.ndarray:
        return self.pad(np.array([example]), 0)[0]

    def pad(self, examples: np.ndarray, length: int) -> np.ndarray:
        """Return tokens [len(examples), pixels] uint16; `length` must be the number of pixels."""
        return self.grey(examples).astype(np.uint16) + self.shift

    def grey(self, examples: np.ndarray) -> np.ndarray:
        """Return grey values [len(examples), pixels] uint8."""
        return self.tokens.reshape(len(self.offsets) - 1, -1)[self._rows(examples)]


def sheet(grey: np.ndarray, labels: np.ndarray) -> bytes:
    """Draw square pictures with their labels on one sheet, as a PNG.

    Args:
        grey: grey values [n, pixels].
        labels: [n].
    """
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
