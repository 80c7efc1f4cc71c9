"""How the values of a head are numbered, and which values have given numbers.

The number of a value stands for its coordinates. It is its place in its head, where only the first axis grows as the
batch is padded further; where other axes do, the caller says how values are numbered.
"""

from collections.abc import Sequence
from math import prod
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor


class ColumnRun(NamedTuple):
    """`width` columns of weights [n, m] that have `most` numbers in every row, whatever the width: `first` [n] for the
    first of them, and so on. Columns that these lead out of 0 .. most - 1 have no number: they count for nothing."""

    most: int
    width: int
    first: Tensor


Numbers = Literal["order", "pairs", "channels"] | int | list[ColumnRun]
"""How the values of one head, or of x [B, ...] with fewer than four axes, are numbered:

`order`: as they lie, where only the first axis grows with padding, as in [L, F] or in weights [L, m] of m fixed keys;
`pairs`: weights [n, m] of the first n positions for the first m >= n, in the order in which positions come to be read:
shell i is row i up to the diagonal (where i < n), then column i above it;
`channels`: vectors [L, D] by their column alone, so that all positions meet the same noise;
a number: weights [n, m], column by column, so many numbers for each, n at least;
runs: weights [..., m], row by row, the numbers of the runs one after another.
"""


def numbers_of(inner: Sequence[int], numbers: Numbers, device: torch.device) -> Tensor:
    """The numbers [values] of the values of a head; any where a value counts for nothing."""
    if numbers == "order":
        return torch.arange(prod(inner), device=device)
    i, j = torch.arange(prod(inner[:-1]), device=device)[:, None], torch.arange(inner[-1], device=device)
    if numbers == "channels":
        return j.expand(len(i), -1).flatten()
    if numbers == "pairs":
        rows = inner[0]
        return torch.where(j <= i, i * i + j, torch.where(j < rows, j * j + j + 1 + i, j * rows + i)).flatten()
    if isinstance(numbers, int):
        return (j * numbers + i).flatten()
    columns, before = [], 0
    for run in numbers:
        columns.append(before + run.first[:, None] + torch.arange(run.width, device=device))
        before += run.most
    return (torch.cat(columns, dim=1) + i * before).flatten()


def count_of(inner: Sequence[int], numbers: Numbers) -> int:
    """How many numbers there may be in a head."""
    if numbers == "channels":
        return inner[-1]
    if isinstance(numbers, int):
        return inner[-1] * numbers
    if isinstance(numbers, list):
        return prod(inner[:-1]) * sum(run.most for run in numbers)
    return prod(inner)


def places_of(dropped: np.ndarray, inner: Sequence[int], numbers: Numbers) -> np.ndarray:
    """The flat places in a head of the values whose numbers are `dropped`, ascending: the inverse of `numbers_of`."""
    if numbers == "pairs" and inner[0] > 1:
        return _places_of_pairs(dropped, *inner)
    if numbers == "channels":
        return (np.arange(prod(inner[:-1]))[:, None] * inner[-1] + dropped).ravel()
    if isinstance(numbers, int):
        column, row = _lines(dropped, inner[-1], numbers)
        return (row * inner[-1] + column)[row < inner[0]]
    if isinstance(numbers, list):
        return _places_of_runs(dropped, inner, numbers)
    return dropped


def _lines(dropped: np.ndarray, lines: int, most: int) -> tuple[np.ndarray, np.ndarray]:
    """Ascending numbers, `most` for each line -> the line of each, and its number there."""
    bounds = np.searchsorted(dropped, np.arange(lines + 1) * most)
    line = np.repeat(np.arange(lines), np.diff(bounds))
    return line, dropped - line * most


def _places_of_runs(dropped: np.ndarray, inner: Sequence[int], runs: list[ColumnRun]) -> np.ndarray:
    row, rest = _lines(dropped, prod(inner[:-1]), sum(run.most for run in runs))
    places, column = [], 0
    for run in runs:
        of_run = (rest >= 0) & (rest < run.most)
        rows = row[of_run]
        inside = rest[of_run] - run.first.numpy()[rows]
        places.append((rows * inner[-1] + column + inside)[(inside >= 0) & (inside < run.width)])
        rest, column = rest - run.most, column + run.width
    return np.concatenate(places)


def _places_of_pairs(dropped: np.ndarray, rows: int, columns: int) -> np.ndarray:
    later = int(np.searchsorted(dropped, rows * rows))
    square, beyond = dropped[:later], dropped[later:]
    shell = np.sqrt(square).astype(np.int64)  # exact: numbers are far below 2**52
    inside = square - shell * shell
    in_row = inside <= shell
    places = np.where(in_row, shell * columns + inside, (inside - shell - 1) * columns + shell)
    return np.concatenate([places, beyond % rows * columns + beyond // rows]) if len(beyond) else places
