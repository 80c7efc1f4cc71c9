"""Whether two samples of Pathfinder's pictures may have one distribution."""

from typing import NamedTuple

import numpy as np
from scipy.stats import ks_2samp


class Pictures(NamedTuple):
    """pixels [n, W, W] uint8; known [n, 3]: distance of the markers, distractors placed, length of the path."""

    pixels: np.ndarray
    known: np.ndarray


STATISTICS = {
    "pixel mean": lambda pictures: pictures.pixels.mean(axis=(1, 2)),
    "lit share": lambda pictures: (pictures.pixels > 127).mean(axis=(1, 2)),
    "marker distance": lambda pictures: pictures.known[:, 0],
    "distractors placed": lambda pictures: pictures.known[:, 1],
    "path length": lambda pictures: pictures.known[:, 2],
}


def compared(theirs: Pictures, ours: Pictures) -> float:
    """The least p of Kolmogorov and Smirnov's two-sample tests, adjusted by Holm; prints a table of all."""
    values = {name: (of(theirs), of(ours)) for name, of in STATISTICS.items()}
    chances = [ks_2samp(*pair, method="asymp").pvalue for pair in values.values()]
    print(f"\n| {len(theirs.pixels)} / {len(ours.pixels)} pictures | theirs | ours | p | p after Holm |")
    for (name, (their, our)), chance, adjusted in zip(values.items(), chances, holm(chances), strict=True):
        print(f"| {name} | {their.mean():.4f} | {our.mean():.4f} | {chance:.3f} | {adjusted:.3f} |")
    return min(holm(chances))


def holm(values: list[float]) -> list[float]:
    order = np.argsort(values)
    adjusted = np.maximum.accumulate(np.array(values)[order] * np.arange(len(values), 0, -1)).clip(max=1)
    return adjusted[np.argsort(order)].tolist()
