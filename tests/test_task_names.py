"""Names of tasks: the name before the data are read, that of the built task, and that of its cache are the same."""

import json
import lzma
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from support import built_under_one_name, data_config

from lra.core.errors import UserError
from lra.datasets import hub
from lra.tasks import TaskBuilder, ag_news, image, text
from lra.tasks.acl_matching import AclMatching
from lra.tasks.ag_news import AgNews
from lra.tasks.books import Books
from lra.tasks.image import Image
from lra.tasks.listops import ListOps, ListOpsFiles
from lra.tasks.matching import Matching
from lra.tasks.text import Text

SIZES = {"train": 31, "eval": 13, "test": 17}
PIECES = ["[PAD]", "[UNK]", "kite", "moon", "tree", "lamp"]

imdb = partial(Text, max_length=37, validation="test", limit=None)
news = partial(AgNews, vocab=None, vocabulary=263, head=5, tail=3, limit=None)
pairs = partial(Matching, max_length=43, limit=7)


def words(seed: int) -> str:
    return " ".join(random.Random(seed).choices(["kite", "moon", "tree", "lamp", "sea"], k=11)) + f" {seed}"


def write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def labelled(folder: Path, train: int, test: int) -> None:
    for split, count in (("train", train), ("test", test)):
        rows = ({"label": row % 2, "text": words(row)} for row in range(count))
        write(folder / f"{split}.jsonl", "".join(json.dumps(row) + "\n" for row in rows).encode())


def csv(count: int) -> bytes:
    return "".join(f'"{1 + row % 4}","title","{words(row)}"\n' for row in range(count)).encode() + b"\n"


def news_files(folder: Path, train: int) -> None:
    for split, count in (("train", train), ("test", 19)):
        write(folder / "ag_news_csv" / f"{split}.csv", csv(count))


def part_of_news(folder: Path) -> None:
    rows = ({"label": row % 4, "text": words(row)} for row in range(163))
    train = "".join(json.dumps(row) + "\n" for row in rows).encode()
    write(folder / "ag_news_partial" / "train.partial.jsonl.xz", lzma.compress(train))
    write(folder / "ag_news_partial" / "test.csv.xz", lzma.compress(csv(19)))


def news_with_pieces(folder: Path) -> None:
    news_files(folder, 41)
    write(folder / "ag_news" / "vocab.txt", "\n".join(PIECES).encode())


def aan_files(folder: Path) -> None:
    for name, data in aan().items():
        write(folder / "lra_release" / "tsv_data" / name, data)


def aan() -> dict[str, bytes]:
    row = "{}\t1\t2\t{}\t{}\n\n"
    return {
        f"new_aan_pairs.{part}.tsv": "".join(row.format(n % 2, words(n), words(n + 1)) for n in range(count)).encode()
        for part, count in SIZES.items()
    }


def acl(folder: Path) -> None:
    papers = "".join(json.dumps({"id": f"P{n}", "text": words(n)}) + "\n" for n in range(97))
    write(folder / "acl_pairs" / "docs.jsonl.xz", lzma.compress(papers.encode()))
    start = 0
    for part, count in SIZES.items():
        rows = "".join(f"{n % 2}\tP{n}\tP{n + 1}\n" for n in range(start, start + count)) + " \n"
        write(folder / "acl_pairs" / f"pairs.{part}.tsv.xz", lzma.compress(rows.encode()))
        start += count


def collection(folder: Path) -> None:
    rows = ({"path": f"{n}", "year": "1900", "group": "children", "text": words(n) * 9} for n in range(7))
    write(folder / "childrens_books" / "books.jsonl", "".join(json.dumps(row) + "\n" for row in rows).encode())


def copies(folder: Path) -> None:
    draw = random.Random(3)
    for split, count in (("train", 100), ("test", 20)):
        write(folder / f"cifar10_gray/{split}.images.u8.xz", lzma.compress(draw.randbytes(1024 * count)))
        write(folder / f"cifar10_gray/{split}.labels.u8", bytes(row % 10 for row in range(count)))


def listops_files(folder: Path) -> None:
    for split, count in (("train", 23), ("val", 5), ("test", 7)):
        rows = "".join(f"( ( ( [MAX {n % 10} ) 0 ) ] )\t{n % 10}\r\n" for n in range(count))
        write(folder / f"basic_{split}.tsv", f"Source\tTarget\r\n{rows}\r\n".encode())  # a blank line


Example = tuple[str, Callable[[Path], TaskBuilder], Callable[[Path], None]]
"""The name of a task, its builder given the data folder, and a function that writes the data there."""

EXAMPLES: list[Example] = [
    ("text (length 37)", lambda _: imdb(), lambda folder: labelled(folder / "imdb", 41, 19)),
    ("text (limit 11)", lambda _: imdb(max_length=4000, limit=11), lambda folder: labelled(folder / "imdb", 41, 19)),
    ("ag_news (BPE 263, length 5+3)", lambda _: news(tokenizer="bpe"), lambda folder: news_files(folder, 163)),
    ("ag_news (18.6k train, BPE 263, length 5+3)", lambda _: news(tokenizer="bpe"), part_of_news),
    ("ag_news (6 word pieces, length 5+3)", lambda _: news(tokenizer="auto"), news_with_pieces),
    (
        "ag_news (6 word pieces, lower case, length 5+3)",
        lambda folder: news(tokenizer="wordpiece_uncased", vocab=str(folder / "ag_news" / "vocab.txt")),
        news_with_pieces,
    ),
    ("matching (length 43, limit 7)", lambda _: pairs(), aan_files),
    ("acl_matching", lambda _: AclMatching(max_length=4000, limit=None), acl),
    (
        "books (context 3, vocabulary 263)",
        lambda _: Books(context=3, vocabulary=263, groups=["young-adventure", "children"], limit=None),
        collection,
    ),
    ("image (JPEG copies)", lambda _: Image(limit=None), copies),
    ("listops (length 7)", lambda folder: ListOpsFiles(folder=str(folder), max_length=7), listops_files),
    (
        "listops (length 3-19, depth 3, args 3, 23/5/7 examples)",
        lambda _: ListOps(
            train_size=23, val_size=5, test_size=7, min_length=3, max_length=19, max_depth=3, max_args=3, seed=1
        ),
        lambda folder: None,
    ),
]


@pytest.fixture(autouse=True)
def small_publications(monkeypatch: pytest.MonkeyPatch) -> None:
    """26 reviews are all of IMDb in each split, and 120 images all of CIFAR-10."""
    monkeypatch.setattr(text, "ROWS", {"train": 26, "test": 26})
    monkeypatch.setattr(image, "ROWS", {"train": 100, "test": 20})


@pytest.mark.parametrize(("name", "make", "write"), EXAMPLES, ids=[name for name, *_ in EXAMPLES])
def test_a_task_has_one_name(tmp_path: Path, name: str, make: Callable, write: Callable) -> None:
    """Before its data are read, and after they are prepared."""
    (tmp_path / "data").mkdir()
    write(tmp_path / "data")
    builder = make(tmp_path / "data")
    task = built_under_one_name(builder, data_config(tmp_path / "cache", tmp_path / "data"))
    assert task.name == name


def test_the_hub_has_the_published_data_or_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"label": row % 2, "text": words(row)} for row in range(26)]
    monkeypatch.setattr(hub, "from_hub", lambda what, load: rows)
    for split in ag_news.ROWS:
        monkeypatch.setitem(ag_news.ROWS, split, 26)
    for builder in (imdb(), news(tokenizer="bpe")):
        assert "examples" not in built_under_one_name(builder, data_config(tmp_path / type(builder).__name__)).name
    monkeypatch.setitem(ag_news.ROWS, "test", 29)
    with pytest.raises(UserError, match="fancyzhx/ag_news: 26 rows in test, expected 29"):
        news(tokenizer="bpe").build(data_config(tmp_path / "other"))
    monkeypatch.setattr(text, "ROWS", {"train": 29, "test": 26})
    with pytest.raises(UserError, match="stanfordnlp/imdb: 26 rows in train, expected 29"):
        imdb().build(data_config(tmp_path / "other"))


def test_absent_data_have_the_published_name(tmp_path: Path) -> None:
    at = data_config(tmp_path / "cache", tmp_path)
    assert Matching(max_length=4000, limit=None).at(at).spec.name == "matching"
    assert Image(limit=5).at(at).spec.name == "image (limit 5)"
