"""The card and the JSON of a prepared task."""

import json
from pathlib import Path

import numpy as np
from support import Commands, facts, place

from lra.cli import prepare
from lra.cli.prepare import card
from lra.data.cache import Writer, prepared
from lra.tasks import Task


def pairs(cache: Path, name: str = "stub") -> Task:
    """Two train examples are equal, one test example stands in train, too."""

    def make(writers: dict[str, Writer], staging: Path) -> dict:
        a, b, c = np.array([1, 2, 3]), np.array([4] * 11), np.array([5])
        for label, first, second in ((0, a, b), (1, b, c), (1, a, b)):
            writers["train"].add(label, first, second)
        writers["val"].add(0, c, c)
        writers["test"].add(1, a, b)
        return {"from": "made up", "licence": "none", "rows": {"train": 3, "test": 1}}

    known = facts(documents=2, classes=2, name=name)
    return prepared(place(cache), known, {"task": "stub", "name": name}, make, lambda splits: {"coin": 50.0})


def test_the_card_by_hand(tmp_path: Path) -> None:
    text = card(pairs(tmp_path))
    assert "- source: made up\n- licence: none\n- rows: train 3, test 1\n- baseline, coin: 50.00" in text
    assert "| train | 3 | 40 | 1 / 7 / 7 / 11 | 50.0 % |" in text
    assert "| 0: 33.3 %, 1: 66.7 % |" in text
    assert "- test examples in train: 100.00 %" in text
    assert "- examples in more than one split: 1\n- examples with more than one label: 1\n" in text


def test_json_on_standard_output(cli: Commands) -> None:
    code, out, _ = cli(prepare.main, "experiment=smoke", "json=true")
    assert code == 0
    summary = json.loads(out)
    assert list(summary) == [
        "task",
        "task_version",
        "source",
        "rows",
        "digest",
        "cache",
        "seconds",
        "baselines",
        "test_in_train",
    ]
    assert summary["rows"] == {"train": 200, "val": 50, "test": 70}
    assert summary["source"] == {"from": "generated"}
