"""Books: whole books in each split, nothing lost in their tokens, perplexities against plain counts."""

import json
import lzma
import math
import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from support import built_under_one_name, data_config, refuses

from lra.datasets.baselines import BIGRAM_WEIGHTS, bigram, unigram
from lra.datasets.splits import LMWindows
from lra.datasets.tokenise import load
from lra.tasks import Split, Task
from lra.tasks.books import Books

BOOKS = 23
CONTEXT, VOCABULARY = 11, 311
Rows = list[dict[str, str]]


def rows(count: int = BOOKS) -> Rows:
    """Made-up books of very different lengths; every seventh is an adventure."""
    rng = random.Random(5)
    words = ["".join(rng.choices("aeioustrn", k=rng.randint(1, 9))) for _ in range(90)]
    entries = []
    for number in range(count):
        body = " ".join(rng.choices(words, k=rng.randint(60, 400)))
        book = f"## Chapter {number}\n\n“{body}”\n\n  The [PAD] end…\n"
        group = "young-adventure" if number % 7 == 3 else "children"
        entries.append({"path": f"Writer {number % 5}/Book {number}.md", "year": "1900", "group": group, "text": book})
    return entries


def write(folder: Path, books: Rows) -> Path:
    path = folder / "childrens_books" / "books.jsonl.xz"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(lzma.compress("".join(json.dumps(book) + "\n" for book in books).encode()))
    return path


def books(**changes: object) -> Books:
    options = {"context": CONTEXT, "vocabulary": VOCABULARY, "groups": ["children", "young-adventure"], "limit": None}
    return Books(**{**options, **changes})


def built(folder: Path, given: Rows | None = None, **changes: object) -> Task:
    write(folder / "data", rows() if given is None else given)
    return books(**changes).build(data_config(folder / "cache", folder / "data"))


def listing(task: Task) -> dict[str, list[str]]:
    return json.loads((task.folder / "books.json").read_text())


def chosen(task: Task) -> list[str]:
    return sorted(name for names in listing(task).values() for name in names)


def texts(task: Task, split: str) -> list[str]:
    """The books of a split, from their tokens."""
    tokenizer, windows = load(task.folder / "tokenizer.json"), getattr(task, split)
    return [
        tokenizer.decode(windows.tokens[a:b].tolist())
        for a, b in zip(windows.offsets, windows.offsets[1:], strict=False)
    ]


# ---------------------------------------------------------------- splits and tokens


def test_every_book_is_whole_and_in_one_split(tmp_path: Path) -> None:
    task, known = built(tmp_path), {book["path"]: book["text"] for book in rows()}
    names = listing(task)
    assert chosen(task) == sorted(known)
    for split in ("train", "val", "test"):
        assert texts(task, split) == [known[name] for name in names[split]]
        assert getattr(task, split).tokens.min() > 0
        assert getattr(task, split).tokens.max() < VOCABULARY


def test_splits_are_cut_by_characters(tmp_path: Path) -> None:
    """Each cut is the place between two books that is nearest to 90 % or 95 % of the characters."""
    names = listing(built(tmp_path))
    known = {book["path"]: len(book["text"]) for book in rows()}
    order = [known[name] for split in ("train", "val", "test") for name in names[split]]
    shares = [sum(order[:count]) / sum(order) for count in range(len(order) + 1)]
    first, second = len(names["train"]), len(names["train"]) + len(names["val"])
    assert abs(shares[first] - 0.90) == min(abs(share - 0.90) for share in shares)
    assert abs(shares[second] - 0.95) == min(abs(share - 0.95) for share in shares)


def test_the_tokenizer_is_of_train_alone(tmp_path: Path) -> None:
    """Other letters in a book of the test split change its tokens, but not the tokenizer."""
    original = built(tmp_path / "one")
    name = listing(original)["test"][0]
    changed = [{**book, "text": "zq" * (len(book["text"]) // 2)} if book["path"] == name else book for book in rows()]
    changed = [
        {**new, "text": new["text"].ljust(len(old["text"]), "z")} for new, old in zip(changed, rows(), strict=True)
    ]
    altered = built(tmp_path / "two", changed)
    assert listing(original) == listing(altered)
    assert original.source["tokenizer"] == altered.source["tokenizer"]
    np.testing.assert_array_equal(original.train.tokens, altered.train.tokens)
    assert len(original.test.tokens) != len(altered.test.tokens)


def test_groups_are_chosen(tmp_path: Path) -> None:
    task = built(tmp_path, groups=["children"])
    assert chosen(task) == sorted(book["path"] for book in rows() if book["group"] == "children")
    assert "children" in task.name


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"text": " \n"}, "books.jsonl.xz:4: an empty text"),
        ({"text": "half \ud800"}, "books.jsonl.xz:4: text is not Unicode"),
        ({"year": 1900}, "books.jsonl.xz:4: field 'year' is 1900, expected str"),
    ],
)
def test_a_bad_book_is_refused_and_nothing_is_cached(tmp_path: Path, change: dict, message: str) -> None:
    given = rows()
    given[3] |= change
    write(tmp_path / "data", given)
    refuses(books(), data_config(tmp_path / "cache", tmp_path / "data"), message)


@pytest.mark.parametrize(
    ("count", "context", "message"),
    [
        (2, CONTEXT, "books: found 2, expected at least 3"),
        (BOOKS, 9_999, r"tokens in the (val|test) split, expected more than task.context=9999"),
    ],
)
def test_too_little_text_is_refused(tmp_path: Path, count: int, context: int, message: str) -> None:
    write(tmp_path / "data", rows(count))
    refuses(books(context=context), data_config(tmp_path / "cache", tmp_path / "data"), message)


# ---------------------------------------------------------------- baselines


def stream(tokens: list[int], stride: int = 1) -> LMWindows:
    count = len(tokens)
    return LMWindows(
        tokens=np.array(tokens, dtype=np.uint16),
        offsets=np.array([0, count]),
        index=np.array([0]),
        labels=np.zeros(1),
        context=3,
        stride=stride,
    )


def chain(count: int, seed: int) -> list[int]:
    """A stream over 1 to 6 in which a token depends on the one before."""
    rng = random.Random(seed)
    tokens = [1]
    while len(tokens) < count:
        tokens.append(rng.choices(range(1, 7), weights=[(tokens[-1] * k) % 7 + 1 for k in range(1, 7)])[0])
    return tokens


def counted(train: list[int], test: list[int], weight: float, vocabulary: int) -> float:
    """Perplexity with dictionaries, over the windows of 3 that are wholly there: the reference."""
    alone, pairs, before = Counter(train), Counter(zip(train, train[1:], strict=False)), Counter(train[:-1])
    used = (len(test) - 1) // 3 * 3
    surprise = 0.0
    for a, b in list(zip(test, test[1:], strict=False))[:used]:
        single = (alone[b] + 1) / (len(train) + vocabulary)
        after = pairs[a, b] / before[a] if before[a] else single
        surprise -= math.log(weight * after + (1 - weight) * single)
    return math.exp(surprise / used)


def test_perplexities_agree_with_dictionaries() -> None:
    train, val, test = chain(101, 1), [*chain(47, 2), 7, 1], [*chain(48, 3), 7, 2, 8, 8, 1]
    assert unigram(stream(train), stream(test, 3), 9) == pytest.approx(counted(train, test, 0.0, 9), rel=1e-12)
    best = min(BIGRAM_WEIGHTS, key=lambda weight: counted(train, val, weight, 9))
    perplexity = bigram(stream(train), stream(val, 3), stream(test, 3), 9)
    assert perplexity == pytest.approx(counted(train, test, best, 9), rel=1e-12)
    assert perplexity < unigram(stream(train), stream(test, 3), 9)


# ---------------------------------------------------------------- real data


def check_real(task: Task, real_data: Path) -> None:
    """Three books of each split, read with nothing but json, are the decoded tokens."""
    with lzma.open(real_data / "childrens_books" / "books.jsonl.xz", "rt", encoding="utf-8") as file:
        known = {row["path"]: row["text"] for row in map(json.loads, file)}
    tokenizer, names = load(task.folder / "tokenizer.json"), listing(task)
    for split in ("train", "val", "test"):
        windows: Split = getattr(task, split)
        for number, name in enumerate(names[split][:3]):
            assert (
                tokenizer.decode(windows.tokens[slice(*windows.offsets[number : number + 2])].tolist()) == known[name]
            )


def test_real_books_are_read_back(real_data: Path, tmp_path: Path) -> None:
    task = built_under_one_name(books(vocabulary=263, context=32, limit=3), data_config(tmp_path / "cache", real_data))
    assert task.name == "books (context 32, vocabulary 263, limit 3)"
    check_real(task, real_data)
    assert task.baselines["bigram"] < task.baselines["unigram"] < 263


@pytest.mark.slow
def test_all_real_books_are_read_back(real_data: Path, tmp_path: Path) -> None:
    task = books(vocabulary=5_000, context=128).build(data_config(tmp_path / "cache", real_data))
    assert task.name == "books"
    assert sum(map(len, listing(task).values())) == 99
    check_real(task, real_data)
    sizes = np.array([len(task.train.tokens), len(task.val.tokens), len(task.test.tokens)])
    np.testing.assert_allclose(sizes / sizes.sum(), [0.90, 0.05, 0.05], atol=0.02)
