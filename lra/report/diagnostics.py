"""What the records say of whether anything was learned, all seeds of a cell together."""

import math
from collections.abc import Iterable

from lra.report.records import Record

BINS = 10


def accuracy_by(runs: Iterable[Record]) -> dict[str, dict[str, dict[str, float]]]:
    """Test accuracy in percent by what an example is: {"root operator": {"MIN": {"accuracy": 61.2}, ...}, ...}.

    Beside it, where the records have it, that of the trivial `baseline`.
    """
    counts: dict[str, dict[str, dict[str, int]]] = {}
    for run in runs:
        for group, values in run.get("diagnostics", {}).items():
            for value, group_counts in values.items():
                total = counts.setdefault(group, {}).setdefault(value, {})
                for name, count in group_counts.items():
                    total[name] = total.get(name, 0) + count
    names = {"correct": "accuracy", "baseline": "baseline"}
    return {
        group: {
            value: {names[name]: 100 * total[name] / total["examples"] for name in names if name in total}
            for value, total in values.items()
        }
        for group, values in counts.items()
    }


def reliability(runs: Iterable[Record]) -> list[dict[str, float]]:
    """Mean confidence and accuracy in percent, and examples, of the predictions in each tenth of confidence."""
    bins: dict[int, list[dict[str, float]]] = {}
    for run in runs:
        for group in run.get("calibration", []):
            bins.setdefault(math.ceil(group["confidence"] * BINS), []).append(group)
    points = []
    for _, members in sorted(bins.items()):
        examples = sum(member["examples"] for member in members)
        confidence = sum(100 * member["confidence"] * member["examples"] for member in members) / examples
        accuracy = sum(member["accuracy"] * member["examples"] for member in members) / examples
        points.append({"confidence": confidence, "accuracy": accuracy, "examples": examples})
    return points


def wilson(accuracy: float, examples: int) -> tuple[float, float]:
    """Wilson's (1927) 95 % interval of an accuracy in percent, over examples."""
    share, z = accuracy / 100, 1.959964
    middle = (share + z * z / (2 * examples)) / (1 + z * z / examples)
    half = z * math.sqrt(share * (1 - share) / examples + z * z / (4 * examples**2)) / (1 + z * z / examples)
    return 100 * (middle - half), 100 * (middle + half)


def calibration_error(points: list[dict[str, float]]) -> float:
    """The mean distance of confidence and accuracy in percent, by predictions (expected calibration error)."""
    total = sum(point["examples"] for point in points)
    return sum(abs(point["confidence"] - point["accuracy"]) * point["examples"] for point in points) / total
