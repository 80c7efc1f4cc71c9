"""A task has one name: what a builder says of the data at hand, before it reads them, is what the built task says."""

import io
import json
import random
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from support import built_under_one_name, composed, facts_of

from lra.config.settings import settings_of
from lra.core.errors import UserError
from lra.data import hub
from lra.runs.build import assemble
from lra.tasks import Place, TaskBuilder, image, text, titled
from lra.tasks.acl_matching import AclMatching
from lra.tasks.ag_news import AgNews
from lra.tasks.ag_news import files as ag_news_files
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


def place(cache: Path, data_dir: Path | None) -> Place:
    return Place(cache=cache, data_dir=data_dir, workers=1, progress=lambda done, total: None)


def words(seed: int) -> str:
    return " ".join(random.Random(seed).choices(["kite", "moon", "tree", "lamp", "sea"], k=11)) + f" {seed}"


def write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def labelled(folder: Path, train: int, test: int) -> None:
    for split, count in (("train", train), ("test", test)):
        rows = ({"label": row % 2, "text": words(row)} for row in range(count))
        write(folder / f"{split}.jsonl", "".join(json.dumps(row) + "\n" for row in rows).encode())


def parquet(folder: Path, train: int, test: int) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir(parents=True)
    for split, count in (("train", train), ("test", test)):
        table = pa.table({"text": [words(row) for row in range(count)], "label": [row % 2 for row in range(count)]})
        pq.write_table(table, folder / f"{split}-0.parquet")


def csv(count: int) -> bytes:
    return "".join(f'"{1 + row % 4}","title","{words(row)}"\n' for row in range(count)).encode()


def packed(path: Path, members: dict[str, bytes]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as archive:
        for name, data in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))


def news_with_pieces(folder: Path) -> None:
    labelled(folder / "ag_news", 41, 19)
    write(folder / "ag_news" / "vocab.txt", "\n".join(PIECES).encode())


def aan() -> dict[str, bytes]:
    row = "{}\t1\t2\t{}\t{}\n"
    return {
        f"new_aan_pairs.{part}.tsv": "".join(row.format(n % 2, words(n), words(n + 1)) for n in range(count)).encode()
        for part, count in SIZES.items()
    }


def aan_files(folder: Path) -> None:
    for name, data in aan().items():
        write(folder / "tsv_data" / name, data)


def acl(folder: Path) -> None:
    import lzma

    papers = "".join(json.dumps({"id": f"P{n}", "text": words(n)}) + "\n" for n in range(97))
    write(folder / "acl_pairs" / "docs.jsonl.xz", lzma.compress(papers.encode()))
    start = 0
    for part, count in SIZES.items():
        rows = "".join(f"{n % 2}\tP{n}\tP{n + 1}\n" for n in range(start, start + count))
        write(folder / "acl_pairs" / f"pairs.{part}.tsv.xz", lzma.compress(rows.encode()))
        start += count


def collection(folder: Path) -> None:
    rows = ({"path": f"{n}", "year": "1900", "group": "children", "text": words(n) * 9} for n in range(7))
    write(folder / "childrens_books" / "books.jsonl", "".join(json.dumps(row) + "\n" for row in rows).encode())


def gutenberg(folder: Path) -> None:
    for n in range(7):
        book = f"*** START OF X ***\n{words(n) * 9}\n*** END OF X ***\n"
        write(folder / "gutenberg" / f"{n}.txt", book.encode())


def copies(folder: Path) -> None:
    import lzma

    draw = random.Random(3)
    for split, count in (("train", 100), ("test", 20)):
        write(folder / f"cifar10_gray/{split}.images.u8.xz", lzma.compress(draw.randbytes(1024 * count)))
        write(folder / f"cifar10_gray/{split}.labels.u8", bytes(row % 10 for row in range(count)))


def listops_files(folder: Path) -> None:
    for split, count in (("train", 23), ("val", 5), ("test", 7)):
        rows = "".join(f"( ( ( [MAX {n % 10} ) 0 ) ] )\t{n % 10}\r\n" for n in range(count))
        write(folder / f"basic_{split}.tsv", f"Source\tTarget\r\n{rows}".encode())


@dataclass(frozen=True, kw_only=True)
class Example:
    """Data that `write` puts into a folder, and the name of the task that `builder` makes of them."""

    name: str
    builder: Callable[[Path], TaskBuilder]
    write: Callable[[Path], None]


EXAMPLES = [
    Example(
        name="text (41/19 examples, length 37)",
        builder=lambda _: imdb(),
        write=lambda folder: labelled(folder / "imdb", 41, 19),
    ),
    Example(
        name="text (41/19 examples, limit 11)",
        builder=lambda _: imdb(max_length=4000, limit=11),
        write=lambda folder: parquet(folder / "imdb", 41, 19),
    ),
    Example(
        name="text (length 37)",
        builder=lambda _: imdb(),
        write=lambda folder: labelled(folder / "imdb", 26, 26),
    ),
    Example(
        name="ag_news (41 train, 19 test, BPE 263, length 5+3)",
        builder=lambda _: news(tokenizer="auto"),
        write=lambda folder: labelled(folder / "ag_news", 41, 19),
    ),
    Example(
        name="ag_news (1.2k train, 19 test, BPE 263, length 5+3)",
        builder=lambda _: news(tokenizer="bpe"),
        write=lambda folder: packed(
            folder / "ag_news_csv.tgz", {"a/test.csv": csv(19), "a/readme.txt": b"", "a/train.csv": csv(1_163)}
        ),
    ),
    Example(
        name="ag_news (41 train, 19 test, 6 word pieces, length 5+3)",
        builder=lambda _: news(tokenizer="auto"),
        write=news_with_pieces,
    ),
    Example(
        name="ag_news (41 train, 19 test, 6 word pieces, lower case, length 5+3)",
        builder=lambda folder: news(tokenizer="wordpiece_uncased", vocab=str(folder / "ag_news" / "vocab.txt")),
        write=news_with_pieces,
    ),
    Example(name="matching (31/13/17 examples, length 43, limit 7)", builder=lambda _: pairs(), write=aan_files),
    Example(
        name="matching (31/13/17 examples, length 43, limit 7)",
        builder=lambda _: pairs(),
        write=lambda folder: packed(
            folder / "lra_release.gz", {f"lra_release/{name}": data for name, data in aan().items()}
        ),
    ),
    Example(
        name="acl_matching (31/13/17 examples)",
        builder=lambda _: AclMatching(max_length=4000, limit=None),
        write=acl,
    ),
    Example(
        name="books (7 books from childrens_books/books.jsonl, context 3, vocabulary 263)",
        builder=lambda _: Books(context=3, vocabulary=263, groups=["young-adventure", "children"], limit=None),
        write=collection,
    ),
    Example(
        name="books (7 books from gutenberg/, context 3, vocabulary 263, limit 5)",
        builder=lambda _: Books(context=3, vocabulary=263, groups=["young-adventure", "children"], limit=5),
        write=gutenberg,
    ),
    Example(name="image (JPEG copies)", builder=lambda _: Image(limit=None), write=copies),
    Example(
        name="listops (files)",
        builder=lambda folder: ListOpsFiles(folder=str(folder), max_length=7),
        write=listops_files,
    ),
    Example(
        name="listops (length 3-19, depth 3, args 3, 23/5/7 examples)",
        builder=lambda _: ListOps(
            train_size=23, val_size=5, test_size=7, min_length=3, max_length=19, max_depth=3, max_args=3, seed=1
        ),
        write=lambda folder: None,
    ),
]


@pytest.fixture(autouse=True)
def small_publications(monkeypatch: pytest.MonkeyPatch) -> None:
    """13 reviews of each class are all of IMDb, and 120 images all of CIFAR-10."""
    monkeypatch.setattr(text, "ROWS_PER_CLASS", 13)
    monkeypatch.setattr(image, "BATCH_ROWS", 20)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_the_name_is_final_before_the_data_are_read(tmp_path: Path, example: Example) -> None:
    example.write(tmp_path / "data")
    (tmp_path / "data").mkdir(exist_ok=True)
    builder = example.builder(tmp_path / "data")
    assert built_under_one_name(builder, place(tmp_path / "cache", tmp_path / "data")).name == example.name


@pytest.mark.parametrize("example", EXAMPLES[:-2], ids=lambda example: example.name)
def test_a_cache_without_its_raw_data_keeps_the_name(tmp_path: Path, example: Example) -> None:
    """But for word pieces that are only known by a file in the data folder, which a cache cannot name."""
    example.write(tmp_path / "data")
    builder = example.builder(tmp_path / "data")
    built = builder.build(place(tmp_path / "cache", tmp_path / "data"))
    alone = place(tmp_path / "cache", None)
    if "6 word pieces, length" in built.name:
        assert builder.at(alone).facts.name == "ag_news (BPE 263, length 5+3)"
        return
    assert facts_of(builder.at(alone).facts) == facts_of(built)
    assert builder.build(alone).name == built.name


def test_counting_happens_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second process of a sweep reads what the first remembered."""
    labelled(tmp_path / "data" / "imdb", 41, 19)
    at = place(tmp_path / "cache", tmp_path / "data")
    name = imdb().at(at).facts.name
    monkeypatch.setattr("lra.data.readers.lines", None)
    assert imdb().at(at).facts.name == name == "text (41/19 examples, length 37)"
    labelled(tmp_path / "data" / "imdb", 43, 19)
    with pytest.raises(TypeError):
        imdb().at(at).facts  # noqa: B018


def test_the_hub_has_the_published_data_or_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def rows(at: Place, dataset: str, *, split: str, **_: str) -> list[dict]:
        return [{"label": row % 2, "text": words(row)} for row in range(26)]

    monkeypatch.setattr(hub, "rows", rows)
    for split in ag_news_files.ROWS:
        monkeypatch.setitem(ag_news_files.ROWS, split, 26)
    for builder in (imdb(), news(tokenizer="bpe")):
        assert "examples" not in built_under_one_name(builder, place(tmp_path / type(builder).__name__, None)).name
    monkeypatch.setitem(ag_news_files.ROWS, "test", 29)
    with pytest.raises(UserError, match="fancyzhx/ag_news: 26 items in test, expected 29"):
        news(tokenizer="bpe").build(place(tmp_path / "other", None))
    monkeypatch.setattr(text, "ROWS_PER_CLASS", 17)
    with pytest.raises(UserError, match="stanfordnlp/imdb: 13 reviews in aclImdb/train/neg, expected 17"):
        imdb().build(place(tmp_path / "other", None))


def test_absent_data_have_the_published_name(tmp_path: Path) -> None:
    at = place(tmp_path / "cache", tmp_path)
    assert Matching(max_length=4000, limit=None).at(at).facts.name == "matching"
    assert Image(limit=5).at(at).facts.name == "image (limit 5)"


def test_an_assembled_system_has_the_name_that_a_sweep_declares(tmp_path: Path) -> None:
    labelled(tmp_path / "data" / "imdb", 41, 19)
    options = [f"data_dir={tmp_path / 'data'}", f"cache={tmp_path / 'cache'}"]
    settings = settings_of(composed("task=text", "task.max_length=37", "task.limit=11", *options))
    assert assemble(settings).builder.facts.name == "text (41/19 examples, length 37, limit 11)"


def test_notes_that_hold_follow_the_name() -> None:
    assert titled("a", {"b": False}) == "a"
    assert titled("a", {"b": True, "c": False, "d": True}) == "a (b, d)"
