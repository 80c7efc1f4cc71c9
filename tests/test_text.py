"""Text: every source gives the same bytes, plain readings of the raw files agree, and bad input is refused."""

import functools
import io
import json
import lzma
import os
import shutil
import subprocess
import sys
import tarfile
import tracemalloc
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support import Commands, composed

from lra.cli import prepare
from lra.core.errors import UserError
from lra.core.files import sha256
from lra.data import hub, readers
from lra.data.sampling import held_out, limited
from lra.data.tokenise import text_of
from lra.tasks import Place, Split, Task, text
from lra.tasks.text import Text

PER_CLASS = 13
Reviews = dict[str, list[tuple[int, str]]]


def place(cache: Path, data_dir: Path | None) -> Place:
    return Place(cache=cache, data_dir=data_dir, workers=1, progress=lambda done, total: None)


def imdb(**changes: Any) -> Text:
    return Text(**{"max_length": 37, "validation": "test", "limit": None, **changes})


@pytest.fixture(autouse=True)
def few_rows(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The official data have 13 reviews of each class here, unless real data are read."""
    if "real_data" not in request.fixturenames:
        monkeypatch.setattr(text, "ROWS_PER_CLASS", PER_CLASS)


@pytest.fixture
def reviews() -> Reviews:
    """13 of each class and split, in no order; some equal, one with both labels, some longer than 37 bytes."""
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


# ---------------------------------------------------------------- the sources


def by_file(reviews: Reviews) -> list[tuple[str, bytes]]:
    """Members of the archive, as the original names them."""
    seen: Counter[tuple[str, int]] = Counter()
    files = []
    for split, rows in reviews.items():
        for label, review in rows:
            files.append((f"aclImdb/{split}/{('neg', 'pos')[label]}/{seen[split, label]}_7.txt", review.encode()))
            seen[split, label] += 1
    return files


def write_archive(folder: Path, members: list[tuple[str, bytes]]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "aclImdb_v1.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for name, data in members:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path


def as_archive(folder: Path, reviews: Reviews) -> None:
    beside = [("aclImdb/README", b"a note"), ("aclImdb/train/unsup/0_0.txt", b"no label"), ("aclImdb/imdb.vocab", b"a")]
    write_archive(folder, [*beside, *by_file(reviews)])


def as_folder(folder: Path, reviews: Reviews) -> None:
    for name, data in [("aclImdb/train/unsup/0_0.txt", b"no label"), *by_file(reviews)]:
        path = folder / "imdb" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def as_json_lines(folder: Path, reviews: Reviews) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for split, rows in reviews.items():
        lines = [
            json.dumps({"id": number, "label": label, "text": review}) for number, (label, review) in enumerate(rows)
        ]
        (folder / f"{split}.jsonl").write_text("\n".join(lines) + "\n")


def as_compressed_json_lines(folder: Path, reviews: Reviews) -> None:
    as_json_lines(folder / "imdb", reviews)
    for split in reviews:
        path = folder / "imdb" / f"{split}.jsonl"
        (folder / "imdb" / f"{split}.jsonl.xz").write_bytes(lzma.compress(path.read_bytes()))
        path.unlink()


def as_parquet(folder: Path, reviews: Reviews) -> None:
    """As the hub has them, in two parts."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    (folder / "imdb" / "plain_text").mkdir(parents=True)
    for split, rows in reviews.items():
        for part, piece in enumerate((rows[:7], rows[7:])):
            table = pa.table({"text": [review for _, review in piece], "label": [label for label, _ in piece]})
            pq.write_table(table, folder / "imdb" / "plain_text" / f"{split}-0000{part}-of-00002.parquet")


def as_arrow(folder: Path, reviews: Reviews) -> None:
    import pyarrow as pa

    folder.mkdir()
    for split, rows in reviews.items():
        table = pa.table({"text": [review for _, review in rows], "label": [label for label, _ in rows]})
        with pa.OSFile(str(folder / f"imdb-{split}.arrow"), "wb") as file, pa.ipc.new_stream(file, table.schema) as out:
            out.write_table(table)


LAYOUTS = [as_archive, as_folder, as_json_lines, as_compressed_json_lines, as_parquet, as_arrow]


def of_hub(reviews: Reviews) -> Callable[..., list[dict[str, Any]]]:
    def hub(place: Place, dataset: str, *, split: str, size: str, wants: str) -> list[dict[str, Any]]:
        return [{"text": review, "label": label} for label, review in reviews[split]]

    return hub


def expected(rows: list[tuple[int, str]], length: int) -> list[tuple[list[int], int]]:
    """Ids and labels by plain Python: sorted by bytes, then label; cut at the right; byte + 1."""
    pairs = sorted((review.encode(), label) for label, review in rows)
    return [([byte + 1 for byte in review[:length]], label) for review, label in pairs]


def stored(split: Split) -> list[tuple[list[int], int]]:
    return [(split.document(row).tolist(), int(split.labels[row])) for row in range(len(split))]


def files_in(cache: Path) -> list[Path]:
    return [path for path in cache.rglob("*") if path.is_file() and path.suffix not in (".lock", ".stamp")]


@pytest.mark.parametrize("write", LAYOUTS)
def test_a_source_is_read_as_plain_python_reads_it(tmp_path: Path, reviews: Reviews, write: Callable) -> None:
    write(tmp_path / "data", reviews)
    task = imdb().build(place(tmp_path / "cache", tmp_path / "data"))
    assert stored(task.train) == expected(reviews["train"], 37)
    assert stored(task.test) == expected(reviews["test"], 37)
    assert task.validates_on_test
    assert task.name == "text (length 37)"
    assert task.source["rows"] == {"train": 26, "test": 26}


def test_every_source_of_the_same_data_has_the_same_digest(
    tmp_path: Path, reviews: Reviews, monkeypatch: pytest.MonkeyPatch
) -> None:
    for write in LAYOUTS:
        write(tmp_path / write.__name__, reviews)
    digests = {
        imdb().build(place(tmp_path / f"cache_{write.__name__}", tmp_path / write.__name__)).digest for write in LAYOUTS
    }
    monkeypatch.setattr(hub, "rows", of_hub(reviews))
    from_hub = imdb().build(place(tmp_path / "cache", None))
    assert digests == {from_hub.digest}
    assert from_hub.source["from"] == "the hub: stanfordnlp/imdb"


def test_the_archive_comes_before_files(tmp_path: Path, reviews: Reviews) -> None:
    as_json_lines(tmp_path, reviews)
    as_archive(tmp_path, reviews)
    source = imdb().build(place(tmp_path / "cache", tmp_path)).source
    assert source["from"] == "aclImdb_v1.tar.gz"
    assert source["sha256"] == {"aclImdb_v1.tar.gz": sha256(tmp_path / "aclImdb_v1.tar.gz")}


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


def flipped(reviews: Reviews) -> Reviews:
    """The same texts with the other labels."""
    return {split: [(1 - label, review) for label, review in rows] for split, rows in reviews.items()}


@pytest.mark.parametrize("write", [as_json_lines, as_compressed_json_lines, as_folder])
def test_data_of_the_same_names_and_sizes_are_told_apart(tmp_path: Path, reviews: Reviews, write: Callable) -> None:
    tasks = []
    for number, data in enumerate((reviews, flipped(reviews))):
        write(tmp_path / str(number), data)
        tasks.append(imdb().build(place(tmp_path / "cache", tmp_path / str(number))))
    assert tasks[0].folder != tasks[1].folder
    assert stored(tasks[1].train) == expected(flipped(reviews)["train"], 37)


def test_an_edit_of_the_same_size_is_read(tmp_path: Path, reviews: Reviews) -> None:
    as_json_lines(tmp_path, reviews)
    imdb().build(place(tmp_path / "cache", tmp_path))
    path = tmp_path / "test.jsonl"
    path.write_text(path.read_text().replace('"label": 1', '"label": 7', 1))
    with pytest.raises(UserError, match=r"test.jsonl:\d+: label 7, expected 0"):
        imdb().build(place(tmp_path / "cache", tmp_path))


def test_an_edited_review_of_the_folder_is_read(tmp_path: Path, reviews: Reviews) -> None:
    as_folder(tmp_path, reviews)
    first = imdb().build(place(tmp_path / "cache", tmp_path))
    path = next((tmp_path / "imdb" / "aclImdb" / "train" / "neg").glob("*.txt"))
    path.write_bytes(path.read_bytes()[::-1])
    assert imdb().build(place(tmp_path / "cache", tmp_path)).digest != first.digest
    assert first.source["sha256"].keys() == {"aclImdb"}


def test_an_empty_data_folder_is_named_whatever_is_cached(
    tmp_path: Path, reviews: Reviews, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    as_json_lines(tmp_path / "data", reviews)
    imdb().build(place(tmp_path / "cache", tmp_path / "data"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=rf"not in {tmp_path / 'empty'}, .* Put there: aclImdb_v1.tar.gz"):
        imdb().build(place(tmp_path / "cache", tmp_path / "empty"))


@pytest.mark.parametrize("data_dir", ["", "nowhere", "a\0b"])
def test_a_data_folder_that_is_none_is_refused(tmp_path: Path, data_dir: str) -> None:
    settings = SimpleNamespace(cache=str(tmp_path), data_dir=data_dir, workers=1)
    with pytest.raises(UserError, match="^data_dir=.*: no such folder"):
        Place.of(settings, lambda done, total: None)


def test_verify_reads_the_raw_data_again(cli: Commands, reviews: Reviews) -> None:
    """Also where size and times are what they were: those of the file here are kept as they are."""
    as_json_lines(Path("data"), reviews)
    options = ["task=text", "task.max_length=37", "data_dir=data", "cache=own", "json=true"]
    assert cli(prepare.main, *options)[0] == 0
    path = Path("data/test.jsonl")
    status = path.stat()
    path.write_text(path.read_text().replace('"label": 1', '"label": 7', 1))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    code, _, err = cli(prepare.main, *options, "verify=true")
    assert code == 2
    assert "label 7, expected 0" in err


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("name", ["aclImdb_v1.tar.gz", "aclImdb", "imdb/train.jsonl", "aclImdb/train/neg/5_7.txt"])
def test_a_pipe_is_no_data(tmp_path: Path, reviews: Reviews, name: str) -> None:
    as_json_lines(tmp_path / "data", reviews)
    if "/" in name:
        as_folder(tmp_path / "data" / "..", reviews)
        (tmp_path / "imdb" / "aclImdb").rename(tmp_path / "data" / "aclImdb")
    path = tmp_path / "data" / name
    path.unlink(missing_ok=True)
    path.parent.mkdir(exist_ok=True)
    os.mkfifo(path)
    if name == "imdb/train.jsonl":
        (tmp_path / "data" / "test.jsonl").rename(tmp_path / "data" / "imdb" / "test.jsonl")
        shutil.rmtree(tmp_path / "data" / "aclImdb")
    refused(tmp_path, f"{name}: expected a regular file, found a FIFO")


def test_length_costs_no_memory(tmp_path: Path, reviews: Reviews) -> None:
    as_json_lines(tmp_path, reviews)
    imdb(max_length=10**9).build(place(tmp_path / "cache", tmp_path))  # what it imports is not measured
    shutil.rmtree(tmp_path / "cache")
    tracemalloc.start()
    imdb(max_length=10**9).build(place(tmp_path / "cache", tmp_path))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10 * 2**20


# ---------------------------------------------------------------- names, splits, baselines


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


def test_limited_is_a_sample_in_order() -> None:
    rows = limited(101, 17, "train")
    assert len(set(rows.tolist())) == 17
    assert (np.diff(rows) > 0).all()
    assert rows[0] >= 0 and rows[-1] < 101
    assert rows.tolist() != list(range(17))
    assert rows.tolist() != limited(101, 17, "test").tolist()
    for limit in (None, 101, 103):
        assert limited(101, limit, "train").tolist() == list(range(101))


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


def test_too_little_for_a_baseline_is_said(tmp_path: Path, reviews: Reviews) -> None:
    as_json_lines(tmp_path, reviews)
    with pytest.raises(UserError, match="bag of words: .*give the task more or longer examples"):
        imdb(limit=1).build(place(tmp_path / "cache", tmp_path))
    assert not files_in(tmp_path / "cache")


# ---------------------------------------------------------------- bad input


def refused(tmp_path: Path, message: str) -> None:
    with pytest.raises(UserError, match=message) as error:
        imdb().build(place(tmp_path / "cache", tmp_path / "data"))
    assert "\n" not in str(error.value)
    assert not files_in(tmp_path / "cache")


@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 0.5, 0.8, 0.99])
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


def test_one_review_too_many_is_an_error(tmp_path: Path, reviews: Reviews) -> None:
    as_folder(tmp_path / "data", {**reviews, "train": [*reviews["train"], (1, "one more")]})
    refused(tmp_path, "14 reviews in aclImdb/train/pos, expected 13")


@pytest.mark.parametrize(
    "name", ["../aclImdb/train/neg/0_1.txt", "aclImdb/train/neg/../../../0_1.txt", "/aclImdb/train/neg/0_1.txt"]
)
def test_a_member_that_leaves_the_folder_is_refused(tmp_path: Path, reviews: Reviews, name: str) -> None:
    write_archive(tmp_path / "data", [(name, b"x"), *by_file(reviews)])
    refused(tmp_path, "member '.*0_1.txt' leaves the folder")


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE])
def test_a_link_or_a_device_in_the_archive_is_refused(tmp_path: Path, kind: bytes) -> None:
    (tmp_path / "data").mkdir()
    with tarfile.open(tmp_path / "data" / "aclImdb_v1.tar.gz", "w:gz") as archive:
        member = tarfile.TarInfo("aclImdb/train/neg/0_1.txt")
        member.type, member.linkname = kind, "secret"
        archive.addfile(member)
    refused(tmp_path, "member 'aclImdb/train/neg/0_1.txt' is a link or a device")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"label": 0, "text": "a', "not JSON"),
        ('["label", "text"]', "field 'label' is .*, expected int"),
        ('{"label": 0}', "field 'text' is None, expected str"),
        ('{"label": "0", "text": "a"}', "field 'label' is '0', expected int"),
        ('{"label": true, "text": "a"}', "field 'label' is True, expected int"),
        ('{"label": 2, "text": "a"}', r"label 2, expected 0 \(negative\) or 1 \(positive\)"),
        ('{"label": -1, "text": "a"}', "label -1, expected 0"),
        ('{"label": 1, "text": ""}', "an empty text, expected words"),
        ('{"label": 1, "text": "\\ud800"}', "text is not Unicode"),
        ('{"label": 1, "text": "' + "a" * 1000 + '"}', "a line of more than 1,000 bytes"),
        ("", "not JSON"),
        ('{"label": 1, "text": "a", "b": ' + 400 * "[" + 400 * "]" + "}", "not JSON: nested deeper than"),
        ('{"label": ' + "9" * 900 + ', "text": "a"}', "label 99999999"),
    ],
)
def test_a_bad_line_is_named(
    tmp_path: Path, reviews: Reviews, monkeypatch: pytest.MonkeyPatch, line: str, message: str
) -> None:
    monkeypatch.setattr(readers, "MAX_LINE_BYTES", 1000)
    as_json_lines(tmp_path / "data", reviews)
    path = tmp_path / "data" / "test.jsonl"
    rows = path.read_text().splitlines()
    path.write_text("\n".join([*rows[:4], line, *rows[4:]]) + "\n")
    refused(tmp_path, f"test.jsonl:5: {message}")


def test_a_review_of_gigabytes_is_refused(tmp_path: Path, reviews: Reviews, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "MAX_LINE_BYTES", 1000)
    for write in (as_archive, as_folder):
        write(tmp_path / write.__name__ / "data", {**reviews, "train": [*reviews["train"][:-1], (0, "a" * 1001)]})
        refused(tmp_path / write.__name__, "train/neg/12_7.txt: more than 1,000 bytes")


@pytest.mark.parametrize("write", [as_archive, as_folder, as_parquet])
@pytest.mark.parametrize("empty", ["", " \n"])
def test_an_empty_review_is_named(tmp_path: Path, reviews: Reviews, write: Callable, empty: str) -> None:
    write(tmp_path / "data", {**reviews, "train": [(0, empty), *reviews["train"][1:]]})
    refused(tmp_path, "(train/neg/0_7.txt|train-00000-of-00002.parquet: row 1): an empty text")


def test_a_damaged_compressed_file_is_refused(tmp_path: Path, reviews: Reviews) -> None:
    as_compressed_json_lines(tmp_path / "data", reviews)
    path = tmp_path / "data" / "imdb" / "train.jsonl.xz"
    path.write_bytes(path.read_bytes()[:-20])
    refused(tmp_path, "train.jsonl.xz: damaged")


def test_columns_of_other_data_are_refused(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    (tmp_path / "data").mkdir()
    for split in ("train", "test"):
        pq.write_table(pa.table({"review": ["a"], "label": [1]}), tmp_path / "data" / f"{split}-0.parquet")
    refused(tmp_path, r"train-0.parquet: columns \['review', 'label'\], expected \['label', 'text'\]")


def test_a_split_without_the_other_is_named(tmp_path: Path, reviews: Reviews) -> None:
    as_json_lines(tmp_path / "data", {"train": reviews["train"]})
    refused(tmp_path, "test.jsonl: no such file; it belongs beside train.jsonl")


def test_what_cannot_be_read_is_named(tmp_path: Path, reviews: Reviews) -> None:
    as_folder(tmp_path / "data", reviews)
    review = tmp_path / "data" / "imdb" / "aclImdb" / "train" / "neg" / "0_7.txt"
    review.unlink()
    review.symlink_to("nowhere")
    refused(tmp_path, "train/neg/0_7.txt: No such file")
    review.unlink()
    review.mkdir()
    refused(tmp_path, "train/neg/0_7.txt: expected a regular file, found a folder")


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


# ---------------------------------------------------------------- configuration


@pytest.mark.parametrize(
    ("protocol", "max_length", "validation", "eval_every"),
    [("paper", 4000, "test", 200), ("lra", 1000, "test", 100), ("strict", 4000, "holdout", 200)],
)
def test_what_a_protocol_changes(protocol: str, max_length: int, validation: str, eval_every: int) -> None:
    cfg = composed("task=text", f"protocol={protocol}")
    assert (cfg.task.max_length, cfg.task.validation, cfg.train.eval_every) == (max_length, validation, eval_every)
    assert (cfg.train.steps, cfg.train.lr, cfg.train.warmup, cfg.train.schedule) == (20_000, 0.05, 8_000, "rsqrt")


# ---------------------------------------------------------------- the real reviews


@pytest.fixture(scope="module")
def real_task(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path, str], Task]:
    cache = tmp_path_factory.mktemp("text")

    def build(data_dir: Path, validation: str) -> Task:
        return imdb(max_length=4000, validation=validation).build(place(cache, data_dir))

    return build


@functools.cache
def plain(path: Path) -> list[tuple[bytes, int]]:
    with lzma.open(path, "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    return sorted((row["text"].encode(), row["label"]) for row in rows)


def test_real_reviews_are_read_as_plain_python_reads_them(real_data: Path, real_task: Callable) -> None:
    task = real_task(real_data, "test")
    assert task.name == "text"
    for split in ("train", "test"):
        found, rows = getattr(task, split), plain(real_data / "imdb" / f"{split}.jsonl.xz")
        assert len(found) == len(rows) == 25_000
        assert found.labels.tolist() == [label for _, label in rows]
        for row in [0, 24_999, *np.random.default_rng(3).choice(25_000, size=200, replace=False).tolist()]:
            assert found.document(row).tolist() == [byte + 1 for byte in rows[row][0][:4000]]
    assert task.baselines["majority class"] == 50
    assert 88.5 < task.baselines["bag of words"] < 89.1


def test_real_holdout_divides_the_training_reviews(
    real_data: Path, real_task: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text, "bag_of_words", lambda *_: 0.0)  # the test before this one has it
    task = real_task(real_data, "holdout")
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
