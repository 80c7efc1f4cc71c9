"""Text: the real reviews, where they are."""

import functools
import json
import lzma
from pathlib import Path

import numpy as np
from imdb import imdb, place
from support import built_under_one_name, of_real_data

from lra.data.groups import limited


@functools.cache
def plain(path: Path) -> list[tuple[bytes, int]]:
    with lzma.open(path, "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    return sorted((row["text"].encode(), row["label"]) for row in rows)


@of_real_data
def test_real_reviews_are_read_as_plain_python_reads_them(real_data: Path, tmp_path: Path, limit: int | None) -> None:
    task = built_under_one_name(imdb(max_length=4000, limit=limit), place(tmp_path, real_data))
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
