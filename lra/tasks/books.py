"""Books: the next token of English children's books, as the Extractor paper trains on them (Chen 2023).

The splits are made of whole books: in a fixed order at random, nine tenths of the characters are trained on, half of
the rest validates, the other half tests. The books of a split follow each other as one stream.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import PositiveInt

from lra.errors import UserError, did_you_mean
from lra.files import write_json
from lra.tasks import Builder, Facts, Place, Task, fingerprints, sources, titled
from lra.tasks.baselines import bigram, unigram
from lra.tasks.sampling import shuffled
from lra.tasks.storage import NUL, SPLITS, Splits, Writer, prepared
from lra.tasks.tokenise import TOKENIZER, BpeVocabulary, encode, train_bpe

VERSION = 1
CONTEXT, VOCABULARY, BOOKS = 128, 5_000, 100  # of the paper
GROUPS = ("children", "young-adventure")
ENDS = (0.90, 0.95)  # of train and of validation, in characters
MOST_BYTES = 64 * 2**20  # of a book

COLLECTION = "childrens_books/books.jsonl"
FOLDERS = ("books", "gutenberg")
IN_FOLDER = ("*.txt",)
SIZE = "42 MB"
WANTS = f"{COLLECTION}[.xz] (path, year, group, text), or a folder books/ of Project Gutenberg's .txt files"
LICENCE = "public domain in the USA"
LEFT_OUT_YEAR = "1992"  # an old text whose edition may not be free
LISTING = "books.json"  # beside the cache: which book is in which split

# The title may go on in a second line.
START = re.compile(r"^\*\*\* ?START OF [^*]*\*\*\*", re.MULTILINE)
END = re.compile(r"^\*\*\* ?END OF [^*]*\*\*\*", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Book:
    """`path` names it and gives its place in the canonical order; a file of one's own has no year and no group."""

    path: str
    year: str | None
    group: str | None
    text: str


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where the books are: its name, its file or folder, and a way to read all of them."""

    name: str
    path: Path
    read: Callable[[], list[Book]]


class Books(Builder):
    """Windows of `context` tokens of a BPE of `vocabulary` tokens that is trained on the training split.

    `groups`: the groups of books that are read. `limit`: at most this many BOOKS in all, for quick checks.
    """

    def __init__(
        self, *, context: PositiveInt, vocabulary: BpeVocabulary, groups: list[str], limit: PositiveInt | None
    ) -> None:
        for group in groups:
            if group not in GROUPS:
                raise UserError(f"task.groups: {group!r} is none; {did_you_mean(group, GROUPS)}")
        self.context, self.vocabulary = context, vocabulary
        self.groups = sorted(set(groups))
        self.limit = limit

    @property
    def facts(self) -> Facts:
        return Facts(
            name=self._name([]),
            version=VERSION,
            vocab_size=self.vocabulary,
            max_len=self.context,
            classes=self.vocabulary,
            documents=1,
            objective="next_token",
        )

    def _name(self, notes: list[str]) -> str:
        """`books` for the paper's vocabulary and context over all books; other data say in what they differ."""
        own = list(notes)
        if self.groups != sorted(GROUPS):
            own += self.groups
        if self.context != CONTEXT:
            own.append(f"context {self.context}")
        if self.vocabulary != VOCABULARY:
            own.append(f"vocabulary {self.vocabulary}")
        if self.limit is not None:
            own.append(f"limit {self.limit}")
        return titled("books", own)

    def build(self, place: Place) -> Task:
        source = find(place)
        paths = [source.path] if source else []
        stamps = fingerprints.stamps(place, paths, inside=IN_FOLDER)
        identity = {
            "task": "books",
            "version": VERSION,
            "context": self.context,
            "vocabulary": self.vocabulary,
            "groups": self.groups,
            "limit": self.limit,
            "raw": stamps or None,
        }

        def make(writers: dict[str, Writer], staging: Path) -> dict[str, Any]:
            if source is None:
                raise sources.absent(
                    place, "books", size=SIZE, wants=WANTS, reason="no list of these books is published"
                )
            found = source.read()
            splits = _split(self._chosen(found))
            self._write(writers, splits, staging, place)
            write_json(staging / LISTING, {split: [book.path for book in books] for split, books in splits.items()})
            return {
                "from": source.name,
                "sha256": fingerprints.confirmed(place, paths, stamps, inside=IN_FOLDER)[source.path.name],
                "books": {"found": len(found), **{split: len(books) for split, books in splits.items()}},
                "tokenizer": {"kind": "BPE", "size": self.vocabulary, "sha256": sources.sha256(staging / TOKENIZER)},
                NUL: sum("\0" in book.text for book in found),
                "licence": LICENCE,
            }

        def baselines(splits: Splits) -> dict[str, float]:
            train, val, test = (splits[split] for split in SPLITS)
            return {
                "unigram": unigram(train, test, self.vocabulary),
                "bigram": bigram(train, val, test, self.vocabulary),
            }

        task = prepared(place, self.facts, identity, make, baselines)
        found = task.source["books"]["found"]
        if (task.source["from"], found) == (COLLECTION, BOOKS):
            return task
        return replace(task, name=self._name([f"{found} books from {task.source['from']}"]))

    def _chosen(self, found: list[Book]) -> list[Book]:
        """The books of the groups, without LEFT_OUT_YEAR, in the fixed order at random; at most `limit` of them."""
        if self.groups != sorted(GROUPS) and any(book.group is None for book in found):
            raise UserError(f"task.groups={self.groups}: .txt files belong to no group; leave out task.groups")
        books = [book for book in found if book.group in (*self.groups, None) and book.year != LEFT_OUT_YEAR]
        return [books[row] for row in shuffled(len(books))[: self.limit]]

    def _write(self, writers: dict[str, Writer], splits: dict[str, list[Book]], staging: Path, place: Place) -> None:
        """Train the tokenizer, then encode book by book."""
        sizes = {split: sum(len(book.text) for book in books) for split, books in splits.items()}
        done, total = 0, sizes["train"] + sum(sizes.values())

        def read(book: Book) -> str:
            nonlocal done
            done += len(book.text)
            place.progress(done, total)
            return book.text

        tokenizer = train_bpe(map(read, splits["train"]), self.vocabulary, staging / TOKENIZER)
        for split, books in splits.items():
            tokens = 0
            for book in books:
                [ids] = encode(tokenizer, [read(book)])
                writers[split].add(0, ids)
                tokens += len(ids)
            if tokens <= self.context:
                raise UserError(
                    f"books: {tokens} tokens in the {split} split, expected more than task.context={self.context}"
                )


def _split(books: list[Book]) -> dict[str, list[Book]]:
    """Cut where a book ends nearest to each of ENDS, in characters; every split has a book."""
    if len(books) < len(SPLITS):
        raise UserError(f"books: found {len(books)}, expected at least {len(SPLITS)}: no book is in two splits")
    ends = np.cumsum([len(book.text) for book in books])
    first, second = (int(np.abs(ends - share * ends[-1]).argmin()) + 1 for share in ENDS)
    first = min(first, len(books) - 2)
    second = min(max(second, first + 1), len(books) - 1)
    return {"train": books[:first], "val": books[first:second], "test": books[second:]}


def find(place: Place) -> Source | None:
    """The first of: the collection of children's books, a folder of Project Gutenberg's files."""
    if collection := sources.find(place, f"{COLLECTION}.xz", COLLECTION):
        return Source(name=COLLECTION, path=collection, read=lambda: read_collection(collection))
    if first := sources.find(place, *(f"{folder}/*.txt" for folder in FOLDERS)):
        folder = first.parent
        files = sorted(file for pattern in IN_FOLDER for file in folder.glob(pattern))
        return Source(name=f"{folder.name}/", path=folder, read=lambda: [read_gutenberg(path) for path in files])
    return None


def read_collection(path: Path) -> list[Book]:
    """The books of a JSON-lines file in the order of their paths."""
    books: dict[str, Book] = {}
    for where, row in sources.json_rows(path, path=str, year=str, group=str, text=str):
        if row["group"] not in GROUPS:
            raise UserError(f"{where}: group {row['group']!r:.80}; {did_you_mean(row['group'], GROUPS)}")
        if row["path"] in books:
            raise UserError(f"{where}: path {row['path']!r:.80} stands in an earlier line already")
        text = sources.checked_text(where, row["text"])
        books[row["path"]] = Book(path=row["path"], year=row["year"], group=row["group"], text=text)
    return [books[name] for name in sorted(books)]


def read_gutenberg(path: Path) -> Book:
    """The text between the START and END markers of a Project Gutenberg file, line ends as \n."""
    with sources.opened(path) as file:
        data = sources.contents(str(path), file, MOST_BYTES)
    try:
        text = data.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise UserError(f"{path}:{line}: byte 0x{data[error.start]:02x}, expected UTF-8") from None
    start = START.search(text)
    end = END.search(text, start.end()) if start else None
    if not end:
        missing = "START" if not start else "END"
        raise UserError(
            f"{path}: no line '*** {missing} OF ...', expected a file of Project Gutenberg with its licence header"
        )
    book = text[start.end() : end.start()].strip("\n") + "\n"
    return Book(path=path.name, year=None, group=None, text=sources.checked_text(str(path), book))
