"""Tests of the hypothesis that two samples of Pathfinder pictures have one distribution."""

from typing import NamedTuple

import numpy as np
from scipy.stats import ks_2samp


class Pictures(NamedTuple):
    """pixels [n, W, W] uint8; attributes [n, 3]: distance of the markers, distractors placed, length of the path."""

    pixels: np.ndarray
    attributes: np.ndarray


STATISTICS = {
    "pixel mean": lambda pictures: pictures.pixels.mean(axis=(1, 2)),
    "lit share": lambda pictures: (pictures.pixels > 127).mean(axis=(1, 2)),
    "marker distance": lambda pictures: pictures.attributes[:, 0],
    "distractors placed": lambda pictures: pictures.attributes[:, 1],
    "path length": lambda pictures: pictures.attributes[:, 2],
}


LIT_PER_GREY = 100  # one in so many lit pixels, so that a grey is counted by itself


def greys(*samples: Pictures) -> list[int]:
    """Grey levels that are frequent in at least one sample."""
    frequent: set[int] = set()
    for pictures in samples:
        counts = np.bincount(pictures.pixels[pictures.pixels > 0], minlength=256)
        frequent |= set(np.flatnonzero(LIT_PER_GREY * counts > counts.sum()).tolist())
    return sorted(frequent)


def compared(theirs: Pictures, ours: Pictures) -> float:
    """The least p of Kolmogorov and Smirnov's two-sample tests, adjusted by Holm; prints a table of all."""
    values = {name: (of(theirs), of(ours)) for name, of in STATISTICS.items()}
    for grey in greys(theirs, ours):
        values[f"pixels of grey {grey}"] = tuple((sample.pixels == grey).sum(axis=(1, 2)) for sample in (theirs, ours))
    chances = [ks_2samp(*pair, method="asymp").pvalue for pair in values.values()]
    print(f"\n| {len(theirs.pixels)} / {len(ours.pixels)} pictures | theirs | ours | p | p after Holm |")
    for (name, (their, our)), chance, adjusted in zip(values.items(), chances, holm(chances), strict=True):
        print(f"| {name} | {their.mean():.4f} | {our.mean():.4f} | {chance:.3f} | {adjusted:.3f} |")
    return min(holm(chances))


def holm(values: list[float]) -> list[float]:
    order = np.argsort(values)
    adjusted = np.maximum.accumulate(np.array(values)[order] * np.arange(len(values), 0, -1)).clip(max=1)
    return adjusted[np.argsort(order)].tolist()
