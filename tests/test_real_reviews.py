"""Text: the real reviews, where they are."""

import functools
import json
import lzma
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from imdb import imdb, place
from support import built_under_one_name, of_real_data

from lra.data.groups import limited
from lra.data.tokenise import text_of


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


@pytest.mark.slow
def test_real_holdout_divides_the_training_reviews(real_data: Path, tmp_path: Path) -> None:
    task = imdb(max_length=4000, validation="holdout").build(place(tmp_path, real_data))
    assert np.bincount(task.train.labels).tolist() == [11_250, 11_250]
    assert np.bincount(task.val.labels).tolist() == [1_250, 1_250]
    both = [
        (text_of(split.document(row)), int(split.labels[row]))
        for split in (task.train, task.val)
        for row in range(len(split))
    ]
    whole = [(review[:4000], label) for review, label in plain(real_data / "imdb" / "train.jsonl.xz")]
    assert Counter(both) == Counter(whole)


MEASURED = """
import sys, time
from pathlib import Path
from lra.tasks import Place
from lra.tasks.text import Text
place = Place(cache=Path(sys.argv[1]), data_dir=Path(sys.argv[2]), workers=2, progress=lambda done, total: None)
for _ in range(2):
    started = time.monotonic()
    Text(max_length=4000, validation="test", limit=None).build(place)
    print(time.monotonic() - started)
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


@pytest.mark.slow
def test_preparing_takes_less_than_a_gibibyte_and_is_done_once(real_data: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", MEASURED, str(tmp_path), str(real_data.resolve())]
    result = subprocess.run(command, check=True, capture_output=True, text=True)
    first, second, peak_kib = map(float, result.stdout.split())
    assert second < first / 5
    assert peak_kib < 2**20
