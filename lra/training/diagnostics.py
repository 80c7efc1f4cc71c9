"""Was anything learned? Accuracy group by group, and confidence beside accuracy.

Legend: n examples of a split, in its order. Counts and calibration do not depend on that order and are ready for JSON.
"""

import math
from typing import Any

import numpy as np

from lra.data.groups import Group


def packed(predicted: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Predicted classes and labels [2, n] in the smallest type that holds them: uint8 up to 256 classes."""
    both = np.stack([predicted, labels])
    return both.astype(np.min_scalar_type(both.max()))


def diagnose(
    groups: dict[str, Group], predicted: np.ndarray, labels: np.ndarray, guessed: np.ndarray | None
) -> dict[str, dict[str, dict[str, int]]]:
    """{group: {value: {examples, correct}}}, in the order of `groups`.

    Where a baseline `guessed` [n], its correct count stands beside as `baseline`.
    """
    right = {"correct": predicted == labels}
    if guessed is not None:
        right["baseline"] = guessed == labels

    def counts(examples: np.ndarray) -> dict[str, int]:
        return {"examples": len(examples), **{name: int(hits[examples].sum()) for name, hits in right.items()}}

    return {name: {value: counts(examples) for value, examples in group.items()} for name, group in groups.items()}


def calibration(confidence: np.ndarray, correct: np.ndarray, bins: int = 10) -> list[dict[str, Any]]:
    """Mean confidence (0 to 1), accuracy (percent) and examples of each bin that has any, ascending.

    `confidence` [n] is the probability of the predicted class; the bins are equal parts of 0 to 1, each with its upper
    end (Guo et al. 2017).
    """
    places = np.searchsorted(np.arange(1, bins) / bins, confidence)

    def line(here: np.ndarray) -> dict[str, Any]:
        count = int(here.sum())
        return {
            "confidence": math.fsum(confidence[here]) / count,
            "accuracy": 100 * int(correct[here].sum()) / count,
            "examples": count,
        }

    return [line(places == place) for place in np.unique(places)]


def calibration_error(table: list[dict[str, Any]]) -> float:
    """Expected calibration error in percent: the distance of accuracy and confidence, weighted by examples."""
    distances = [abs(line["accuracy"] - 100 * line["confidence"]) * line["examples"] for line in table]
    return math.fsum(distances) / sum(line["examples"] for line in table)
