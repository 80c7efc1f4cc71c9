"""Duplicate and contradictory examples in prepared data.

Examples are compared by all their documents as they are stored, that is, after they were cut.
"""

import hashlib
from itertools import combinations

import numpy as np

from lra.data import Split


def contradictions(splits: dict[str, Split]) -> dict[str, int]:
    """Count different examples in two splits or with two labels, and pairs of a document with itself."""
    examples = {name: _examples(split) for name, split in splits.items()}
    labels: dict[bytes, set[int]] = {}
    for name, split in splits.items():
        for example, label in zip(examples[name], split.verdicts(), strict=True):
            labels.setdefault(example, set()).add(label)
    kinds = [set(members) for members in examples.values()]
    shared = set().union(*(first & other for first, other in combinations(kinds, 2)))
    counts = {
        "different examples stand in more than one split": len(shared),
        "different examples have more than one label": sum(len(members) > 1 for members in labels.values()),
    }
    places = {name: split.documents for name, split in splits.items()}
    if max(places.values()) > 1:
        same = [np.ptp(split.index.reshape(-1, places[name]), axis=1) == 0 for name, split in splits.items()]
        counts["examples are of a document and itself"] = int(np.concatenate(same).sum())
    return counts


def repeats(splits: dict[str, Split]) -> list[str]:
    """Describe how many examples of each split equal an earlier one, and how many two splits share."""
    names = {name: _examples(split) for name, split in splits.items()}
    lines = [
        f"{name}: {len(examples) - len(set(examples)):,} examples equal an earlier one"
        for name, examples in names.items()
    ]
    lines += [
        f"{first} and {other} share {len(set(names[first]) & set(names[other])):,} different examples"
        for first, other in combinations(names, 2)
    ]
    return lines


def seen(train: Split, test: Split) -> float:
    """Return the percentage of test examples that are also in train, whatever their labels."""
    of_train, of_test = set(_examples(train)), _examples(test)
    return 100 * sum(example in of_train for example in of_test) / len(of_test)


def _examples(split: Split) -> list[bytes]:
    """Digest of each example."""
    documents = split.stored(range(len(split.offsets) - 1))
    stored = [hashlib.blake2b(document.tobytes(), digest_size=16).digest() for document in documents]
    rows = split.index.reshape(-1, split.documents).tolist()
    return [b"".join(stored[row] for row in line) for line in rows]
