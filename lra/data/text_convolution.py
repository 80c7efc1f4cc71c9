"""Convolutional text baseline that trains in seconds.

Embedded tokens, a convolution of one width, ReLU, the maximum over positions, a linear map; for pairs, both feature
vectors and their product. Legend: N texts, C channels.

Source:
    Kim 2014, Convolutional Neural Networks for Sentence Classification.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from lra.core import streams
from lra.data import Split

if TYPE_CHECKING:
    from torch import Tensor

SEED = 1
WIDTH, CHANNELS, WINDOW = 32, 64, 5
EXAMPLES, TOKENS = 4_000, 512  # at most: of train, evenly spaced; of a text, from its start
EPOCHS, BATCH, RATE = 4, 25, 0.01


def convolution(train: Split, test: Split, vocabulary: int, classes: int) -> float:
    """Return the test accuracy in percent after `EPOCHS` passes over `EXAMPLES` examples."""
    import torch
    from torch.nn.functional import cross_entropy

    weights = [torch.from_numpy(array).requires_grad_() for array in _first(vocabulary, classes, train.documents)]
    optimizer = torch.optim.Adam(weights, lr=RATE)
    rows = np.linspace(0, len(train) - 1, min(len(train), EXAMPLES)).astype(np.int64)
    with torch.enable_grad():
        for epoch in range(EPOCHS):
            order = streams.generator(SEED, "order", epoch).permutation(rows)
            for batch in _batches(order):
                loss = cross_entropy(_logits(train, batch, weights), torch.from_numpy(train.targets(batch)))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    with torch.no_grad():
        answers = [_logits(test, batch, weights).argmax(dim=1).numpy() for batch in _batches(np.arange(len(test)))]
    return float(100 * np.mean(np.concatenate(answers) == test.labels))


def _first(vocabulary: int, classes: int, documents: int) -> list[np.ndarray]:
    """Initial weights of embedding, convolution and linear map, and the latter's bias."""
    rng = streams.generator(SEED, "init")
    features = CHANNELS * (1 if documents == 1 else 3)
    shapes = (vocabulary, WIDTH), (CHANNELS, WIDTH, WINDOW), (classes, features)
    scales = 1.0, (2 / (WIDTH * WINDOW)) ** 0.5, features**-0.5
    drawn = [rng.normal(0, scale, shape).astype(np.float32) for shape, scale in zip(shapes, scales, strict=True)]
    return [*drawn, np.zeros(classes, np.float32)]


def _batches(rows: np.ndarray) -> list[np.ndarray]:
    return np.split(rows, range(BATCH, len(rows), BATCH))


def _logits(split: Split, rows: np.ndarray, weights: Sequence["Tensor"]) -> "Tensor":
    """Logits [len(rows), classes]."""
    import torch
    from torch.nn.functional import conv1d, embedding, linear

    table, kernel, last, bias = weights
    length = max(WINDOW, int(split.lengths(rows).max()))
    tokens = torch.from_numpy(split.pad(rows, length)[:, :TOKENS].astype(np.int64))  # [N, length]
    features = conv1d(embedding(tokens, table).mT, kernel).relu().amax(dim=2)  # [N, C]
    if split.documents == 2:
        first, other = features[::2], features[1::2]
        features = torch.cat([first, other, first * other], dim=1)
    return linear(features, last, bias)
