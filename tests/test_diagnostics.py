"""Diagnostics: counts against other libraries and by hand, groups against the texts themselves."""

import ast
import json
import re
from pathlib import Path

import numpy as np
import pytest
from sklearn.feature_extraction.text import TfidfVectorizer
from support import builder_of, data_config, stub_task

from lra.datasets.baselines import Overlap
from lra.datasets.groups import by_size, by_value
from lra.datasets.tokenise import text_of
from lra.tasks import Split, Task, TaskBuilder
from lra.tasks._listops_trees import WORDS
from lra.tasks.acl_matching import AclMatching
from lra.tasks.listops import ListOps
from lra.training.evaluate import diagnose


def expressions(tmp_path: Path) -> tuple[ListOps, Task]:
    sizes = {"train_size": 1_009, "val_size": 53, "test_size": 307}
    builder = ListOps(**sizes, min_length=7, max_length=43, max_depth=4, max_args=5, seed=5)
    return builder, builder.build(data_config(tmp_path))


# ---------------------------------------------------------------- groups


@pytest.mark.parametrize("name", ["acl_matching", "ag_news", "image", "listops", "matching", "text"])
def test_every_example_has_one_value_in_each_group(tmp_path: Path, name: str) -> None:
    builder = builder_of(name)
    split = stub_task(211, documents=builder.spec.documents, classes=builder.spec.classes).test
    if name == "listops":
        split = expressions(tmp_path)[1].test
    groups = builder.groups(split)
    assert {"length", "class"} <= groups.keys()
    for group in groups.values():
        assert sorted(np.concatenate(list(group.values()))) == list(range(len(split)))
        assert all(isinstance(value, str) and len(examples) > 0 for value, examples in group.items())
    for value, examples in groups["class"].items():
        assert set(split.labels[examples]) == {int(value)}
    for value, examples in groups["length"].items():
        lengths = [sum(len(split.document(each, place)) for place in range(split.documents)) for each in examples]
        assert value == (f"{min(lengths)}-{max(lengths)}" if len(set(lengths)) > 1 else f"{lengths[0]}")


@pytest.mark.parametrize(
    ("sizes", "groups"),
    [
        ([9, 1, 8, 0, 7, 2, 6, 3, 5, 4], {"0-1": 2, "2-3": 2, "4-5": 2, "6-7": 2, "8-9": 2}),
        ([7] * 9, {"7": 9}),
        ([3, 8, 8, 8, 8, 8, 8, 2, 8, 8, 8, 8], {"2-3": 2, "8": 10}),
        ([100, 9, 10], {"9": 1, "10": 1, "100": 1}),
        ([5], {"5": 1}),
    ],
)
def test_ranges_are_fifths_and_equal_sizes_stay_together(sizes: list[int], groups: dict[str, int]) -> None:
    ranges = by_size(np.array(sizes))
    assert list(ranges) == list(groups)  # ascending as numbers
    assert {value: len(examples) for value, examples in ranges.items()} == groups


def tree(expression: str) -> list | int:
    """An expression as nested Python lists: [operator, argument, ...]."""
    text = re.sub(r"\[([A-Z]+)", r"['\1',", re.sub(r"(\d|\])", r"\1,", expression))
    [parsed] = ast.literal_eval(f"[{text}]")
    return parsed


def levels(node: list | int) -> int:
    return 1 + max(map(levels, node[1:])) if isinstance(node, list) else 1


def assert_groups_are_those_of_the_texts(builder: TaskBuilder, split: Split, texts: list[str]) -> None:
    trees = [tree(text) for text in texts]
    groups = builder.groups(split)
    assert list(groups) == ["root operator", "depth", "length", "class"]
    for value, examples in groups["root operator"].items():
        assert list(examples) == [row for row, node in enumerate(trees) if node[0] == value]
    for value, examples in groups["depth"].items():
        assert list(examples) == [row for row, node in enumerate(trees) if levels(node) == int(value)]
    for value, examples in groups["length"].items():
        low, high = map(int, value.split("-"))
        assert list(examples) == [row for row, text in enumerate(texts) if low <= len(text.split()) <= high]
    assert list(groups["root operator"]) == ["MIN", "MAX", "MED", "SM"]
    assert list(groups["depth"]) == sorted(groups["depth"], key=int)


def test_groups_of_generated_expressions(tmp_path: Path) -> None:
    builder, task = expressions(tmp_path)
    texts = [" ".join(WORDS[token - 1] for token in task.test.document(row)) for row in range(len(task.test))]
    assert_groups_are_those_of_the_texts(builder, task.test, texts)
    assert list(builder.groups(task.test)["depth"]) == ["3", "4"]


def tf_idf_cosines(split: Split) -> np.ndarray:
    """Return cosines of scikit-learn's TF-IDF, which has the same formula but no hashing."""
    texts = [
        text_of(split.tokens[start:stop]).decode(errors="replace")
        for start, stop in zip(split.offsets, split.offsets[1:], strict=False)
    ]
    vectors = TfidfVectorizer(sublinear_tf=True, min_df=2, max_df=0.2).fit_transform(texts)
    pairs = split.index.reshape(-1, 2)
    return np.asarray(vectors[pairs[:, 0]].multiply(vectors[pairs[:, 1]]).sum(axis=1)).ravel()


def test_overlap_of_pairs_of_few_words() -> None:
    rng = np.random.default_rng(7)
    draws = [rng.geometric(0.04, rng.integers(3, 17)) for _ in range(149)]  # the first words stand in many texts
    texts = [" ".join(f"word{number}" for number in draw) for draw in draws]
    texts += ["?", texts[0]]
    split = Split(
        tokens=np.frombuffer("".join(texts).encode(), dtype=np.uint8).astype(np.uint16) + 1,
        offsets=np.cumsum([0, *map(len, texts)]),
        index=np.concatenate([np.arange(150), [0, 150, 3, 3]]),
        labels=np.zeros(77, dtype=np.uint8),
    )
    overlaps = Overlap(split)(split, np.arange(77))
    np.testing.assert_allclose(overlaps, tf_idf_cosines(split), atol=1e-6)
    assert overlaps[-3] == 0  # the last of the 149 and one without words
    assert overlaps[-2:] == pytest.approx([1, 1])
    again = AclMatching(max_length=999, limit=None).groups(split)["overlap (%)"]
    assert {value: list(rows) for value, rows in again.items()} == {
        value: list(rows) for value, rows in by_size(np.rint(100 * overlaps).astype(int)).items()
    }


# ---------------------------------------------------------------- counts


def test_counts_by_hand() -> None:
    groups = {
        "operator": by_value(np.array([3, 1, 1, 3, 3])),
        "class": by_value(np.array([0, 0, 1, 1, 10]), "c{}".format),
    }
    predicted, labels, guessed = np.array([0, 1, 1, 1, 2]), np.array([0, 0, 1, 1, 10]), np.array([1, 1, 1, 1, 1])
    diagnosis = diagnose(groups, predicted, labels, guessed)
    assert json.dumps(diagnosis) == json.dumps(
        {
            "operator": {
                "1": {"examples": 2, "correct": 1, "baseline": 1},
                "3": {"examples": 3, "correct": 2, "baseline": 1},
            },
            "class": {
                "c0": {"examples": 2, "correct": 1, "baseline": 0},
                "c1": {"examples": 2, "correct": 2, "baseline": 2},
                "c10": {"examples": 1, "correct": 0, "baseline": 0},
            },
        }
    )
    assert diagnose(groups, predicted, labels, None)["operator"]["3"] == {"examples": 3, "correct": 2}


def test_counts_of_each_group_add_up_in_any_order_of_the_examples(tmp_path: Path) -> None:
    builder, task = expressions(tmp_path)
    split, rng = task.test, np.random.default_rng(2)
    predicted = np.where(rng.random(len(split)) < 0.4, split.labels, rng.integers(0, 10, len(split)))
    guessed = builder.baseline_predictions(task)
    diagnosis = diagnose(builder.groups(split), predicted, split.labels, guessed)
    for group in diagnosis.values():
        assert sum(counts["examples"] for counts in group.values()) == len(split)
        assert sum(counts["correct"] for counts in group.values()) == np.sum(predicted == split.labels)
        baseline = sum(counts["baseline"] for counts in group.values())
        assert 100 * baseline / len(split) == pytest.approx(task.baselines["root operator"], abs=1e-12)
    order = rng.permutation(len(split))
    moved = Split(tokens=split.tokens, offsets=split.offsets, index=split.index[order], labels=split.labels[order])
    again = diagnose(builder.groups(moved), predicted[order], moved.labels, guessed[order])
    assert json.dumps(again) == json.dumps(diagnosis)
