"""Contact sheets and baselines of picture tasks; test accuracies in percent of baselines fitted on train.

Legend: n pictures, W pixels of a side.
"""

import io
import math
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, ImageDraw

from lra.core import streams
from lra.data import Split

if TYPE_CHECKING:
    from torch import Tensor, nn

SHORTEST = 96  # minimum pixels of a picture's side on the sheet
CAPTION = 14  # pixels
GAP = 4
SAMPLE, SAMPLE_PIXELS = 20_000, 1 << 25  # pictures of train that the convolution sees at most, and their pixels
EPOCHS, BATCH, RATE = 3, 50, 3e-3
AT_ONCE = 1_000


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


def picture_baselines(train: Split, test: Split) -> dict[str, float]:
    """Return test accuracies in percent by the name of the baseline."""
    return {
        "nearest centroid": nearest_centroid(train, test),
        f"small convolution, {sample_size(train):,} pictures": small_convolution(train, test),
    }


def nearest_centroid(train: Split, test: Split) -> float:
    """Return the accuracy of the class with the nearest mean picture."""
    classes = np.unique(train.labels)
    sums, counts = 0, np.bincount(train.labels)[classes, None]
    for rows in _parts(len(train)):
        of_class = train.labels[rows] == classes[:, None]
        sums = sums + of_class.astype(np.float64) @ _grey(train, rows)
    means = sums / counts
    right = 0
    for rows in _parts(len(test)):
        far = (means**2).sum(axis=1) - _grey(test, rows) @ (2 * means.T)
        right += int((classes[far.argmin(axis=1)] == test.labels[rows]).sum())
    return 100 * right / len(test)


def _grey(split: Split, rows: np.ndarray) -> np.ndarray:
    """Grey values [len(rows), pixels] uint8 of pictures, whose tokens are these values + 1."""
    return (split.pad(rows, int(split.lengths(rows[:1])[0, 0])) - 1).astype(np.uint8)


def _parts(n: int) -> list[np.ndarray]:
    return [np.arange(start, min(start + AT_ONCE, n)) for start in range(0, n, AT_ONCE)]


def sample_size(train: Split) -> int:
    """Number of pictures that the convolution is trained on."""
    return min(len(train), SAMPLE, SAMPLE_PIXELS // _grey(train, np.array([0])).shape[1])


def small_convolution(train: Split, test: Split) -> float:
    """Return the accuracy of three small convolutions with a global maximum, trained on the first pictures of train.

    One thread is used, so that the numbers do not depend on the number of cores; two threads are several times slower.
    """
    import torch

    net, threads = _net(int(train.labels.max()) + 1), torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        _fit(net, train)
        with torch.inference_mode():
            right = sum(
                int((net(_input(test, rows)).argmax(dim=1).numpy() == test.labels[rows]).sum())
                for rows in _parts(len(test))
            )
    finally:
        torch.set_num_threads(threads)
    return 100 * right / len(test)


def _fit(net: "nn.Module", train: Split) -> None:
    import torch
    from torch.nn.functional import cross_entropy

    size = sample_size(train)
    optimizer = torch.optim.AdamW(net.parameters(), lr=RATE)
    for epoch in range(EPOCHS):
        order = streams.generator(0, "order", epoch).permutation(size)
        for rows in np.array_split(order, math.ceil(size / BATCH)):
            loss = cross_entropy(net(_input(train, rows)), torch.from_numpy(train.targets(rows)))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def _net(classes: int) -> "nn.Module":
    import torch
    from torch import nn

    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int(streams.key(0, "init")[0] >> np.uint64(1)))
        return nn.Sequential(
            nn.Conv2d(1, 16, 5, stride=2, padding=2),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(32, 32, 3, padding=1),
            nn.ReLU(),
            nn.AdaptiveMaxPool2d(1),
            nn.Flatten(),
            nn.Linear(32, classes),
        )


def _input(split: Split, rows: np.ndarray) -> "Tensor":
    """Grey values from 0 to 1 [len(rows), 1, W, W]."""
    import torch

    grey = _grey(split, rows)
    side = math.isqrt(grey.shape[1])
    return torch.from_numpy(grey).reshape(len(rows), 1, side, side).float() / 255
