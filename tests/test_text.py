"""Text: every source gives the same bytes, and plain readings of the raw files agree."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from imdb import (
    LAYOUTS,
    Reviews,
    as_json_lines,
    by_file,
    expected,
    imdb,
    place,
    stored,
    write_archive,
)
from support import composed

from lra.core.errors import UserError
from lra.data import hub, readers
from lra.data.groups import held_out, limited
from lra.tasks import Place


def of_hub(reviews: Reviews) -> Callable[..., list[dict[str, Any]]]:
    def hub(place: Place, dataset: str, *, split: str, size: str, wants: str) -> list[dict[str, Any]]:
        return [{"text": review, "label": label} for label, review in reviews[split]]

    return hub


def test_every_source_of_the_same_data_has_the_same_digest(
    tmp_path: Path, reviews: Reviews, monkeypatch: pytest.MonkeyPatch
) -> None:
    for write in LAYOUTS:
        write(tmp_path / write.__name__, reviews)
    tasks = [imdb().build(place(tmp_path / f"cache_{write.__name__}", tmp_path / write.__name__)) for write in LAYOUTS]
    digests = {task.digest for task in tasks}
    assert stored(tasks[0].train) == expected(reviews["train"], 37)
    assert stored(tasks[0].test) == expected(reviews["test"], 37)
    assert tasks[0].validates_on_test
    monkeypatch.setattr(hub, "rows", of_hub(reviews))
    from_hub = imdb().build(place(tmp_path / "cache", None))
    assert digests == {from_hub.digest}
    assert from_hub.source["from"] == "the hub: stanfordnlp/imdb"


def test_bytes_that_are_no_text_are_kept(tmp_path: Path, reviews: Reviews) -> None:
    members = by_file(reviews)
    members[0] = members[0][0], b"\x00\xff\xfe\x80 cut"
    write_archive(tmp_path, members)
    task = imdb(max_length=5).build(place(tmp_path / "cache", tmp_path))
    assert [1, 256, 255, 129, 33] in [ids for ids, _ in stored(task.train)]
    assert task.source["texts with a NUL byte"] == 1


def test_a_prepared_task_needs_neither_raw_data_nor_time(
    tmp_path: Path, reviews: Reviews, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_json_lines(tmp_path / "data", reviews)
    first = imdb().build(place(tmp_path / "cache", tmp_path / "data"))

    def unexpected(*_: object, **__: object) -> None:
        raise AssertionError("the raw data were read again")

    monkeypatch.setattr(hub, "rows", unexpected)
    monkeypatch.setattr(readers, "json_rows", unexpected)
    for data_dir in (None, tmp_path / "data"):
        assert imdb().build(place(tmp_path / "cache", data_dir)).digest == first.digest


@pytest.mark.parametrize(
    ("change", "sizes"),
    [({"max_length": 31}, (26, 26, 26)), ({"validation": "holdout"}, (24, 2, 26)), ({"limit": 17}, (17, 17, 17))],
)
def test_every_option_has_a_cache_of_its_own(
    tmp_path: Path, reviews: Reviews, change: dict[str, Any], sizes: tuple[int, ...]
) -> None:
    as_json_lines(tmp_path / "data", reviews)
    imdb().build(place(tmp_path / "cache", tmp_path / "data"))
    task = imdb(**change).build(place(tmp_path / "cache", tmp_path / "data"))
    assert (len(task.train), len(task.val), len(task.test)) == sizes
    assert np.diff(task.train.offsets).max() == task.max_len


@pytest.mark.parametrize("data_dir", ["", "nowhere", "a\0b"])
def test_a_data_folder_that_is_none_is_refused(tmp_path: Path, data_dir: str) -> None:
    settings = SimpleNamespace(cache=str(tmp_path), data_dir=data_dir, workers=1)
    with pytest.raises(UserError, match="^data_dir=.*: no such folder"):
        Place.of(settings, lambda done, total: None)


def test_only_the_published_data_are_called_text(tmp_path: Path, reviews: Reviews) -> None:
    assert imdb(max_length=4000).facts.name == "text"
    assert imdb(max_length=4000, validation="holdout").facts.name == "text"
    assert imdb(max_length=1000).facts.name == "text (length 1000)"
    assert imdb(max_length=1000, limit=300).facts.name == "text (length 1000, limit 300)"
    as_json_lines(tmp_path, {"train": reviews["train"][:23], "test": reviews["test"][:19]})
    task = imdb(max_length=4000).build(place(tmp_path / "cache", tmp_path))
    assert task.name == "text (23/19 examples)"


def test_holdout_is_a_tenth_of_each_class_of_train(tmp_path: Path, reviews: Reviews) -> None:
    as_json_lines(tmp_path, reviews)
    task = imdb(validation="holdout").build(place(tmp_path / "cache", tmp_path))
    assert (len(task.train), len(task.val), len(task.test)) == (24, 2, 26)
    assert task.val.labels.sum() == 1
    assert Counter(map(str, stored(task.train) + stored(task.val))) == Counter(map(str, expected(reviews["train"], 37)))
    assert stored(task.test) == expected(reviews["test"], 37)


def test_held_out_is_a_function_of_the_labels() -> None:
    labels = np.array([0] * 113 + [1] * 71 + [2] * 9)
    chosen = held_out(labels)
    assert np.bincount(labels[chosen], minlength=3).tolist() == [11, 7, 0]
    np.testing.assert_array_equal(chosen, held_out(labels))
    assert chosen[:11].sum() < 11  # drawn, not the first ones


def test_a_limit_takes_a_sample_of_each_split_in_its_order(tmp_path: Path, reviews: Reviews) -> None:
    as_json_lines(tmp_path, reviews)
    task = imdb(limit=17).build(place(tmp_path / "cache", tmp_path))
    assert task.name == "text (length 37, limit 17)"
    for split, rows in (("train", task.train), ("test", task.test)):
        whole = expected(reviews[split], 37)
        assert stored(rows) == [whole[row] for row in limited(26, 17, split)]


def test_baselines_of_texts_that_a_word_decides(tmp_path: Path, reviews: Reviews) -> None:
    rows = {split: [row for row in reviews[split] if row[1] != "as it is"][:23] for split in reviews}
    as_json_lines(tmp_path, rows)
    task = imdb().build(place(tmp_path / "cache", tmp_path))
    assert task.baselines["bag of words"] == 100
    assert task.baselines["majority class"] == pytest.approx(100 * 12 / 23)  # 12 of the 23 rows are positive


@pytest.mark.parametrize(
    ("protocol", "max_length", "validation", "eval_every"),
    [("paper", 4000, "test", 200), ("lra", 1000, "test", 100), ("strict", 4000, "holdout", 200)],
)
def test_what_a_protocol_changes(protocol: str, max_length: int, validation: str, eval_every: int) -> None:
    cfg = composed("task=text", f"protocol={protocol}")
    assert (cfg.task.max_length, cfg.task.validation, cfg.train.eval_every) == (max_length, validation, eval_every)
    assert (cfg.train.steps, cfg.train.lr, cfg.train.warmup, cfg.train.schedule) == (20_000, 0.05, 8_000, "rsqrt")
