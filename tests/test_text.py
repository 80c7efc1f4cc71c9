"""Text: every source gives the same bytes, plain readings of the raw files agree, and bad input is named by line."""

import functools
import json
import lzma
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support import built_under_one_name, data_config, examples_of, refuses

from lra.core.errors import UserError
from lra.datasets import hub
from lra.datasets.groups import held_out, limited
from lra.tasks import DataConfig, Task, text
from lra.tasks.text import Text

Reviews = dict[str, list[tuple[int, str]]]


@pytest.fixture
def reviews(monkeypatch: pytest.MonkeyPatch) -> Reviews:
    """13 of each class and split, in no order; some equal, one with both labels, some longer than 37 bytes.

    The official data have no more of them here.
    """
    monkeypatch.setattr(text, "ROWS", {"train": 26, "test": 26})
    words = {0: "awful <br /><br />", 1: "splendid, très"}
    splits: Reviews = {}
    for split in ("train", "test"):
        rows = [
            (label, f"{number % 9} {split}: {words[label]}" * (1 + number % 3))
            for number in range(12)
            for label in (1, 0)
        ]
        splits[split] = [(1, "as it is"), *rows, (0, "as it is")]
    return splits


def imdb(**changes: Any) -> Text:
    return Text(**{"max_length": 37, "validation": "test", "limit": None, **changes})


def as_json_lines(folder: Path, reviews: Reviews, end: str = "") -> None:
    (folder / "imdb").mkdir(parents=True, exist_ok=True)
    for split, rows in reviews.items():
        lines = [json.dumps({"label": label, "text": review}) + "\n" for label, review in rows]
        data = "".join(lines).encode()
        (folder / "imdb" / f"{split}.jsonl{end}").write_bytes(lzma.compress(data) if end else data)


def as_compressed_json_lines(folder: Path, reviews: Reviews) -> None:
    as_json_lines(folder, reviews, ".xz")


def expected(rows: list[tuple[int, str]], length: int) -> list[tuple[list[int], int]]:
    """Ids and labels by plain Python: sorted by bytes, then label; cut at the right; byte + 1."""
    pairs = sorted((review.encode(), label) for label, review in rows)
    return [([byte + 1 for byte in review[:length]], label) for review, label in pairs]


def built(folder: Path, reviews: Reviews, **changes: Any) -> Task:
    as_json_lines(folder / "data", reviews)
    return imdb(**changes).build(data_config(folder / "cache", folder / "data"))


def test_every_source_of_the_same_data_has_the_same_digest(
    tmp_path: Path, reviews: Reviews, monkeypatch: pytest.MonkeyPatch
) -> None:
    def from_hub(at: DataConfig, dataset: str, counts: dict[str, int], **_: str) -> dict[str, list[dict[str, Any]]]:
        return {split: [{"text": review, "label": label} for label, review in reviews[split]] for split in counts}

    tasks = []
    for write in (as_json_lines, as_compressed_json_lines):
        write(tmp_path / write.__name__, reviews)
        tasks.append(imdb().build(data_config(tmp_path / f"cache {write.__name__}", tmp_path / write.__name__)))
    monkeypatch.setattr(hub, "rows", from_hub)
    tasks.append(imdb().build(data_config(tmp_path / "cache")))
    assert len({task.digest for task in tasks}) == 1
    assert examples_of(tasks[0].train) == expected(reviews["train"], 37)
    assert examples_of(tasks[0].test) == expected(reviews["test"], 37)
    assert tasks[0].validates_on_test
    text, _ = sorted((review.encode(), label) for label, review in reviews["test"])[3]
    assert imdb().encode(text.decode(), Path("unused")).tolist() == tasks[0].test.document(3).tolist()
    assert tasks[-1].source["from"] == "the hub: stanfordnlp/imdb"


@pytest.mark.parametrize("data_dir", ["", "nowhere", "a\0b"])
def test_a_data_folder_that_is_none_is_refused(tmp_path: Path, data_dir: str) -> None:
    settings = SimpleNamespace(cache=str(tmp_path), data_dir=data_dir, workers=1)
    with pytest.raises(UserError, match="^data_dir=.*: no such folder"):
        DataConfig.of(settings, lambda done, total: None)


def test_the_record_has_the_number_of_reviews(tmp_path: Path, reviews: Reviews) -> None:
    few = {"train": reviews["train"][:23], "test": reviews["test"][:19]}
    assert built(tmp_path, few, limit=7).source["rows"] == {"train": 23, "test": 19}


def test_holdout_is_a_tenth_of_each_class_of_train(tmp_path: Path, reviews: Reviews) -> None:
    built(tmp_path, reviews)
    task = built(tmp_path, reviews, validation="holdout")
    assert (len(task.train), len(task.val), len(task.test)) == (24, 2, 26)
    assert task.val.labels.sum() == 1
    assert sorted(examples_of(task.train) + examples_of(task.val)) == sorted(expected(reviews["train"], 37))
    assert examples_of(task.test) == expected(reviews["test"], 37)


def test_held_out_is_a_function_of_the_labels() -> None:
    labels = np.array([0] * 113 + [1] * 71 + [2] * 9)
    chosen = held_out(labels)
    assert np.bincount(labels[chosen], minlength=3).tolist() == [11, 7, 0]
    np.testing.assert_array_equal(chosen, held_out(labels))
    assert chosen[:11].sum() < 11  # drawn, not the first ones


def test_a_limit_takes_a_sample_of_each_split_in_its_order(tmp_path: Path, reviews: Reviews) -> None:
    task = built(tmp_path, reviews, limit=17)
    assert task.name == "text (length 37, limit 17)"
    for split, rows in (("train", task.train), ("test", task.test)):
        whole = expected(reviews[split], 37)
        assert examples_of(rows) == [whole[row] for row in limited(26, 17, split)]


def test_baselines_of_texts_that_a_word_decides(tmp_path: Path, reviews: Reviews) -> None:
    rows = {split: [row for row in reviews[split] if row[1] != "as it is"][:23] for split in reviews}
    task = built(tmp_path, rows)
    assert task.baselines["bag of words"] == 100
    assert task.baselines["majority class"] == pytest.approx(100 * 12 / 23)  # 12 of the 23 rows are positive


# ---------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"label": 2, "text": "a"}', r"label 2, expected 0 \(negative\) or 1 \(positive\)"),
        ('{"label": 1, "text": ""}', "an empty text, expected words"),
        ('{"label": 1, "text": "\\ud800"}', "text is not Unicode"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, reviews: Reviews, line: str, message: str) -> None:
    as_json_lines(tmp_path / "data", reviews)
    path = tmp_path / "data" / "imdb" / "test.jsonl"
    rows = path.read_text().splitlines()
    path.write_text("\n".join([*rows[:4], line, *rows[4:]]) + "\n")
    refuses(imdb(), data_config(tmp_path / "cache", tmp_path / "data"), f"test.jsonl:5: {message}")


@pytest.mark.parametrize("offline", [True, False])
def test_missing_data_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, offline: bool) -> None:
    from huggingface_hub import constants

    (tmp_path / "data").mkdir()
    monkeypatch.setenv("HF_HUB_OFFLINE", str(int(offline)))
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")  # nobody answers there
    message = rf"stanfordnlp/imdb: not in {tmp_path / 'data'}, .* Put into the data folder: imdb/train.jsonl"
    refuses(imdb(), data_config(tmp_path / "cache", tmp_path / "data"), message)


# ---------------------------------------------------------------- the real reviews


@functools.cache
def plain(path: Path) -> list[tuple[bytes, int]]:
    with lzma.open(path, "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    return sorted((row["text"].encode(), row["label"]) for row in rows)


@pytest.mark.slow
@pytest.mark.parametrize("limit", [1_009, None])
def test_real_reviews_are_read_as_plain_python_reads_them(real_data: Path, tmp_path: Path, limit: int | None) -> None:
    task = built_under_one_name(imdb(max_length=4000, limit=limit), data_config(tmp_path, real_data))
    assert task.name == ("text" if limit is None else "text (limit 1009)")
    for split in ("train", "test"):
        rows = plain(real_data / "imdb" / f"{split}.jsonl.xz")
        assert len(rows) == 25_000
        rows = [rows[row] for row in limited(25_000, limit, split)]
        reviews = getattr(task, split)
        assert reviews.labels.tolist() == [label for _, label in rows]
        for row in [0, len(rows) - 1, *np.random.default_rng(3).choice(len(rows), size=200, replace=False).tolist()]:
            assert reviews.document(row).tolist() == [byte + 1 for byte in rows[row][0][:4000]]
    if limit is None:
        assert task.baselines["majority class"] == 50
        assert 88.5 < task.baselines["bag of words"] < 89.1
