"""Tasks of document pairs: bytes as in the raw files, mistakes named by line, limits, thresholds of a baseline."""

import json
import lzma
import math
import random
import re
from pathlib import Path

import numpy as np
import pytest
from support import built_under_one_name, data_config, refuses

from lra.datasets.baselines import best_threshold
from lra.datasets.groups import sampled
from lra.datasets.tokenise import text_of
from lra.tasks import Split, Task
from lra.tasks.acl_matching import AclMatching
from lra.tasks.matching import Matching

ROWS = {"train": 31, "eval": 13, "test": 17}
NAMES = {"train": "train", "val": "eval", "test": "test"}


def text(rng: random.Random, words: int = 23) -> bytes:
    """A text as the official files have it, with quotes, escapes and bytes that are no UTF-8."""
    pieces = ["paper", "method", '"quoted', "it's", "\\n", "\\xe2", "we", "data", "of", "the", "\r", "''"]
    body = " ".join(rng.choice(pieces) for _ in range(rng.randint(1, words)))
    return b"b'" + body.encode() + rng.choice([b"'", b'"', b"\xff\xfe'", b"\x85\x0b'"])


def official(seed: int = 1, rows: dict[str, int] = ROWS) -> dict[str, bytes]:
    """The three files, with documents that stand in several rows."""
    rng = random.Random(seed)
    known = [text(rng) for _ in range(11)]

    def row(number: int) -> bytes:
        texts = [rng.choice(known) if rng.random() < 0.5 else text(rng) for _ in range(2)]
        return b"\t".join([rng.choice([b"0.0", b"1.0", b"0", b"1"]), b"A%d" % number, b'"B', *texts]) + b"\n"

    return {f"new_aan_pairs.{part}.tsv": b"".join(map(row, range(count))) for part, count in rows.items()}


def folder(tmp_path: Path, files: dict[str, bytes], name: str = "tsv_data") -> Path:
    (tmp_path / "data" / name).mkdir(parents=True, exist_ok=True)
    for file, content in files.items():
        (tmp_path / "data" / name / file).write_bytes(content)
    return tmp_path / "data"


def matching(tmp_path: Path, data: Path | None, max_length: int = 97, limit: int | None = None) -> Task:
    return Matching(max_length=max_length, limit=limit).build(data_config(tmp_path / "cache", data))


def assert_reads(split: Split, rows: list[tuple[bytes, bytes, bytes]], max_length: int) -> None:
    """Compare the first, the last and 200 random examples with labels and texts."""
    assert len(split) == len(rows)
    chosen = {0, len(rows) - 1, *random.Random(7).choices(range(len(rows)), k=200)}
    for example in chosen:
        label, *texts = rows[example]
        assert split.labels[example] == float(label)
        for number, content in enumerate(texts):
            assert split.document(example, number).tolist() == [byte + 1 for byte in content[:max_length]]


# ---------------------------------------------------------------- matching


def test_reads_the_bytes_of_the_files(tmp_path: Path, max_length: int = 29) -> None:
    files = official()
    task = matching(tmp_path, folder(tmp_path, files), max_length)
    for split, part in NAMES.items():
        lines = files[f"new_aan_pairs.{part}.tsv"].split(b"\n")[:-1]
        rows = [tuple(line.split(b"\t")[column] for column in (0, 3, 4)) for line in lines]
        data: Split = getattr(task, split)
        assert_reads(data, rows, max_length)
        encoded = Matching(max_length=max_length, limit=None).encode("a text", tmp_path)
        assert encoded.tolist() == [byte + 1 for byte in b"a text"]
        assert len(data.offsets) - 1 == len({text[:max_length] for row in rows for text in row[1:]})
    assert (task.vocab_size, task.documents, task.classes, task.max_len) == (257, 2, 2, max_length)


def test_a_quote_does_not_merge_rows(tmp_path: Path) -> None:
    content = b'1.0\ta\tb\t"opens\tand "goes on\n0.0\ta\tb\there"\tends"\n'
    task = matching(tmp_path, folder(tmp_path, dict.fromkeys(official(), content)))
    assert len(task.train) == 2
    assert text_of(task.train.document(0, 0)) == b'"opens'
    assert text_of(task.train.document(1, 1)) == b'ends"'


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (b"1.0\ta\tb\ttext", "4 tab-separated fields, expected 5"),
        (b"2.0\ta\tb\tone\ttwo", "label '2.0', expected 0 or 1"),
        (b"\xff\ta\tb\tone\ttwo", r"label '\\xff', expected 0 or 1"),
        (b"1.0\ta\tb\tone\t", "an empty text, expected a document"),
    ],
)
def test_bad_rows_are_named_and_nothing_is_cached(tmp_path: Path, row: bytes, message: str) -> None:
    files = official()
    files["new_aan_pairs.eval.tsv"] += row + b"\n"
    task = Matching(max_length=97, limit=3)  # rows that are not drawn are checked, too
    at = data_config(tmp_path / "cache", folder(tmp_path, files))
    refuses(task, at, re.escape(f"new_aan_pairs.eval.tsv:14: {message}"))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    files = official()
    del files["new_aan_pairs.eval.tsv"]
    at = data_config(tmp_path / "cache", folder(tmp_path, files))
    refuses(Matching(max_length=97, limit=None), at, "new_aan_pairs.eval.tsv: no such file; expected all of")


def test_without_data_the_error_names_the_files_and_the_other_task(tmp_path: Path) -> None:
    for data in (None, tmp_path):
        message = r"Put into the data folder: .*lra_release.gz \(7.7 GB\).*task=acl_matching"
        refuses(Matching(max_length=97, limit=None), data_config(tmp_path / "cache", data), message)
    message = "Put into the data folder: the folder acl_pairs with docs.jsonl.xz"
    refuses(AclMatching(max_length=97, limit=None), data_config(tmp_path / "cache"), message)


def test_a_limit_draws_rows_in_their_order(tmp_path: Path) -> None:
    rows = b"".join(b"%d\ta\tb\tone %03d\ttwo\n" % (number % 2, number) for number in range(101))
    data = folder(tmp_path, dict.fromkeys(official(), rows))
    drawn = matching(tmp_path, data, limit=19)

    def numbers(split: Split) -> list[int]:
        row_numbers = [int(text_of(split.document(row)).split()[1]) for row in range(len(split))]
        assert split.labels.tolist() == [number % 2 for number in row_numbers]
        return row_numbers

    train, test = numbers(drawn.train), numbers(drawn.test)
    assert len(train) == len(test) == len(drawn.val) == 19
    assert train == sorted(set(train)) and test == sorted(set(test))
    assert train != test and train != list(range(19))
    assert numbers(matching(tmp_path / "again", data, limit=19).train) == train
    assert numbers(matching(tmp_path, data, limit=101).train) == list(range(101))


# ---------------------------------------------------------------- acl_matching


def write_acl(tmp_path: Path, docs: list[dict] | None = None, pairs: dict[str, list[str]] | None = None) -> Path:
    """Five papers and a few pairs; arguments replace the lines of the files."""
    known = [{"id": f"P{number}", "title": "none", "text": f"Paper {number} é"} for number in range(5)]
    rows = {
        "train": ["1\tP0\tP1", "0\tP1\tP2", "1\tP3\tP4"],
        "eval": ["1\tP0\tP2", "0\tP0\tP3"],
        "test": ["0\tP1\tP3", "1\tP2\tP4"],
    }
    (tmp_path / "data" / "acl_pairs").mkdir(parents=True)
    with lzma.open(tmp_path / "data" / "acl_pairs" / "docs.jsonl.xz", "wt", encoding="utf-8") as file:
        file.write("".join(json.dumps(row) + "\n" for row in docs or known))
    for part, lines in (rows | (pairs or {})).items():
        with lzma.open(tmp_path / "data" / "acl_pairs" / f"pairs.{part}.tsv.xz", "wb") as file:
            file.write("".join(line + "\n" for line in lines).encode())
    return tmp_path / "data"


def test_acl_pairs_are_read_and_counted(tmp_path: Path) -> None:
    task = AclMatching(max_length=97, limit=None).build(data_config(tmp_path / "cache", write_acl(tmp_path)))
    assert task.source["rows"] == {"train": 3, "val": 2, "test": 2}
    assert task.train.labels.tolist() == [1, 0, 1]
    assert text_of(task.train.document(2, 1)) == "Paper 4 é".encode()
    assert set(task.source["sha256"]) == {"docs.jsonl.xz", *(f"pairs.{part}.tsv.xz" for part in ROWS)}


PAPER = {"id": "P0", "text": "Paper 0"}


@pytest.mark.parametrize(
    ("docs", "pairs", "message"),
    [
        (None, {"eval": ["1\tP0\tP9"]}, "pairs.eval.tsv.xz:1: paper 'P9' is not in docs.jsonl.xz"),
        (None, {"eval": ["1\tP0\tP2", "1\tP0"]}, "pairs.eval.tsv.xz:2: 2 tab-separated fields, expected 3"),
        (None, {"test": []}, "acl_matching: the test split is empty"),
        ([PAPER, {"id": "P1", "text": ""}], None, "docs.jsonl.xz:2: an empty text"),
        ([PAPER, {"id": "P1", "text": "\ud800"}], None, "docs.jsonl.xz:2: text is not Unicode"),
        (None, {"eval": ["1\tP0\tP\0"]}, r"pairs.eval.tsv.xz:1: paper 'P\x00' is not in docs.jsonl.xz"),
    ],
)
def test_bad_acl_files_are_named_and_nothing_is_cached(
    tmp_path: Path, docs: list[dict] | None, pairs: dict | None, message: str
) -> None:
    at = data_config(tmp_path / "cache", write_acl(tmp_path, docs, pairs))
    refuses(AclMatching(max_length=97, limit=None), at, re.escape(message))


@pytest.mark.slow
@pytest.mark.parametrize("limit", [1_009, None])
def test_the_real_acl_pairs(tmp_path: Path, real_data: Path, limit: int | None) -> None:
    task = built_under_one_name(AclMatching(max_length=4000, limit=limit), data_config(tmp_path / "cache", real_data))
    assert task.name == ("acl_matching" if limit is None else "acl_matching (limit 1009)")
    raw = real_data / "acl_pairs"
    with lzma.open(raw / "docs.jsonl.xz", "rt", encoding="utf-8") as file:
        papers = {row["id"]: row["text"].encode() for row in map(json.loads, file)}
    for split, part in NAMES.items():
        with lzma.open(raw / f"pairs.{part}.tsv.xz", "rt") as file:
            rows = [line.rstrip("\n").split("\t") for line in file]
        drawn = [(label, papers[first], papers[second]) for label, first, second in sampled(rows, limit, split)]
        assert_reads(getattr(task, split), drawn, 4000)
    if limit is None:
        assert task.digest == "703959cbaf8b3fe170713fee5f0a9c0e8160d735d2ccf042b1fc64f865f3c1a8"
        assert task.baselines["majority class"] == pytest.approx(100 * 3082 / 6120)
        assert 78 < task.baselines["cosine of bag of words"] < 81


# ---------------------------------------------------------------- baselines


@pytest.mark.parametrize(
    ("scores", "labels", "threshold"),
    [
        ([0.1, 0.2, 0.8, 0.9], [0, 0, 1, 1], 0.8),
        ([0.1, 0.2, 0.8, 0.9], [1, 1, 1, 1], 0.1),
        ([0.1, 0.2, 0.8, 0.9], [0, 0, 0, 0], math.inf),
        ([0.5, 0.5, 0.5], [0, 1, 1], 0.5),
        ([0.5, 0.5, 0.5], [0, 0, 1], math.inf),
        ([0.3, 0.1, 0.7], [0, 1, 1], 0.1),
    ],
)
def test_threshold_by_hand(scores: list[float], labels: list[int], threshold: float) -> None:
    assert best_threshold(np.array(scores), np.array(labels)) == threshold
