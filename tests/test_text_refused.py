"""Text: bad input is refused, and the file and the line are named."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from imdb import (
    Reviews,
    as_archive,
    as_folder,
    as_json_lines,
    by_file,
    files_in,
    imdb,
    place,
    write_archive,
)

from lra.core.errors import UserError


def refused(tmp_path: Path, message: str) -> None:
    with pytest.raises(UserError, match=message) as error:
        imdb().build(place(tmp_path / "cache", tmp_path / "data"))
    assert "\n" not in str(error.value)
    assert not files_in(tmp_path / "cache")


@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
def test_a_truncated_archive_is_refused(tmp_path: Path, reviews: Reviews, share: float) -> None:
    noise = np.random.default_rng(1)
    members = [(name, data + noise.bytes(300)) for name, data in by_file(reviews)]
    path = write_archive(tmp_path / "data", members)
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])
    refused(tmp_path, r"aclImdb_v1.tar.gz: (.*damaged|\d+ reviews in .*, expected 13)")


@pytest.mark.parametrize("write", [as_archive, as_folder])
def test_a_split_without_reviews_is_named(tmp_path: Path, reviews: Reviews, write: Callable) -> None:
    write(tmp_path / "data", {"train": reviews["train"], "test": [row for row in reviews["test"] if row[0]]})
    refused(tmp_path, r"aclImdb.*: 0 reviews in aclImdb/test/neg, expected 13; take the official")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"label": 0}', "field 'text' is None, expected str"),
        ('{"label": "0", "text": "a"}', "field 'label' is '0', expected int"),
        ('{"label": true, "text": "a"}', "field 'label' is True, expected int"),
        ('{"label": 2, "text": "a"}', r"label 2, expected 0 \(negative\) or 1 \(positive\)"),
        ('{"label": 1, "text": ""}', "an empty text, expected words"),
        ('{"label": 1, "text": "\\ud800"}', "text is not Unicode"),
        ('{"label": ' + "9" * 900 + ', "text": "a"}', "label 99999999"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, reviews: Reviews, line: str, message: str) -> None:
    as_json_lines(tmp_path / "data", reviews)
    path = tmp_path / "data" / "test.jsonl"
    rows = path.read_text().splitlines()
    path.write_text("\n".join([*rows[:4], line, *rows[4:]]) + "\n")
    refused(tmp_path, f"test.jsonl:5: {message}")


def test_columns_of_other_data_are_refused(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    (tmp_path / "data").mkdir()
    for split in ("train", "test"):
        pq.write_table(pa.table({"review": ["a"], "label": [1]}), tmp_path / "data" / f"{split}-0.parquet")
    refused(tmp_path, r"train-0.parquet: columns \['review', 'label'\], expected \['label', 'text'\]")


def test_what_cannot_be_read_is_named(tmp_path: Path, reviews: Reviews) -> None:
    as_folder(tmp_path / "data", reviews)
    review = tmp_path / "data" / "imdb" / "aclImdb" / "train" / "neg" / "0_7.txt"
    review.unlink()
    review.symlink_to("nowhere")
    refused(tmp_path, "train/neg/0_7.txt: No such file")


@pytest.mark.parametrize("offline", [True, False])
def test_without_data_and_network_it_is_said_what_to_put_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, offline: bool
) -> None:
    from huggingface_hub import constants

    (tmp_path / "data").mkdir()
    if offline:
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    else:
        monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
        monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")  # nobody answers there
    refused(tmp_path, rf"stanfordnlp/imdb .*\(84 MB\): not in {tmp_path / 'data'}, .* Put there: aclImdb_v1.tar.gz")
