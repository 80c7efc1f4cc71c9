"""Books: next-token prediction on English children's books.

Splits hold whole books in a fixed random order: nine tenths of the characters for training, a twentieth each for
validation and test. The books of a split are one stream.

Source:
    Chen 2023, the Extractor.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import PositiveInt

from lra.core.errors import UserError, did_you_mean
from lra.core.files import sha256, write_json
from lra.data import readers
from lra.data.baselines import bigram, unigram
from lra.data.cache import NUL, SPLITS, Splits
from lra.data.from_source import Content, FromSource, Source, counted, first, missing_source
from lra.data.groups import shuffled
from lra.data.tokenise import TOKENIZER, BpeVocabulary, encode, train_bpe
from lra.data.writer import Writer
from lra.tasks import Place, TaskSpec, titled

VERSION = 1
CONTEXT, VOCABULARY, BOOKS = 128, 5_000, 100  # of the paper
GROUPS = ("children", "young-adventure")
ENDS = (0.90, 0.95)  # of train and of validation, in characters

COLLECTION = "childrens_books/books.jsonl"
FOLDERS = ("books", "gutenberg")
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
    """A book; `path` names it and sorts it. A book of the user has no year and no group."""

    path: str
    year: str | None
    group: str | None
    text: str


class Books(FromSource):
    """Windows of tokens of a BPE that is trained on the training split.

    Args:
        context: tokens of a window.
        vocabulary: tokens of the BPE.
        groups: groups of books that are read.
        limit: maximum number of books of all splits together, or None.
    """

    name = "books"

    def __init__(
        self, *, context: PositiveInt, vocabulary: BpeVocabulary, groups: list[str], limit: PositiveInt | None
    ) -> None:
        for group in groups:
            if group not in GROUPS:
                raise UserError(f"task.groups: no group {group!r}; {did_you_mean(group, GROUPS)}")
        self.context, self.vocabulary = context, vocabulary
        self.book_groups = sorted(set(groups))
        self.limit = limit

    @property
    def options(self) -> dict[str, Any]:
        return {"context": self.context, "vocabulary": self.vocabulary, "groups": self.book_groups, "limit": self.limit}

    def facts_of(self, content: Content) -> TaskSpec:
        origin, count = content.get("from", COLLECTION), content.get("books", {"found": BOOKS})["found"]
        notes = {
            f"{count} books from {origin}": (origin, count) != (COLLECTION, BOOKS),
            ", ".join(self.book_groups): self.book_groups != sorted(GROUPS),
            f"context {self.context}": self.context != CONTEXT,
            f"vocabulary {self.vocabulary}": self.vocabulary != VOCABULARY,
            f"limit {self.limit}": self.limit is not None,
        }
        return TaskSpec(
            name=titled(self.name, notes),
            version=VERSION,
            vocab_size=self.vocabulary,
            max_len=self.context,
            classes=self.vocabulary,
            objective="next_token",
            causal=True,
        )

    def find(self, place: Place) -> Source:
        """Return the first of: the collection of children's books, a folder of Project Gutenberg's files."""
        if collection := first(place, f"{COLLECTION}.xz", COLLECTION):
            return Source(
                name=COLLECTION,
                files=[collection],
                read=lambda: read_collection(collection),
                content=lambda: _content(COLLECTION, counted(place, collection, readers.count)),
            )
        if folder := first(place, *FOLDERS):
            files = sorted(folder.glob("*.txt"))
            return Source(
                name=f"{folder.name}/",
                files=files,
                read=lambda: list(map(read_gutenberg, files)),
                content=lambda: _content(f"{folder.name}/", len(files)),
            )
        return missing_source(place, "books", size=SIZE, wants=WANTS, reason="no list of these books is published")

    def fill(self, place: Place, source: Source, writers: dict[str, Writer], staging: Path) -> dict[str, Any]:
        every_book = source.read()
        splits = _split(self._chosen(every_book))
        self._write(writers, splits, staging, place)
        write_json(staging / LISTING, {split: [book.path for book in books] for split, books in splits.items()})
        return {
            "books": {"found": len(every_book), **{split: len(books) for split, books in splits.items()}},
            "tokenizer": {"kind": "BPE", "size": self.vocabulary, "sha256": sha256(staging / TOKENIZER)},
            NUL: sum("\0" in book.text for book in every_book),
            "licence": LICENCE,
        }

    def baselines(self, splits: Splits) -> dict[str, float]:
        """Return test perplexities of a unigram and a bigram model."""
        train, val, test = (splits[split] for split in SPLITS)
        return {
            "unigram": unigram(train, test, self.vocabulary),
            "bigram": bigram(train, val, test, self.vocabulary),
        }

    def _chosen(self, every_book: list[Book]) -> list[Book]:
        """At most `limit` books of the groups, without LEFT_OUT_YEAR, in the fixed random order."""
        if self.book_groups != sorted(GROUPS) and any(book.group is None for book in every_book):
            raise UserError(f"task.groups={self.book_groups}: .txt files belong to no group; leave out task.groups")
        books = [book for book in every_book if book.group in (*self.book_groups, None) and book.year != LEFT_OUT_YEAR]
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


def _content(origin: str, books: int) -> Content:
    return {"from": origin, "books": {"found": books}}


def _split(books: list[Book]) -> dict[str, list[Book]]:
    """Cut at the end of the book nearest to each of ENDS, in characters; every split has a book."""
    if len(books) < len(SPLITS):
        raise UserError(f"books: found {len(books)}, expected at least {len(SPLITS)}: no book is in two splits")
    ends = np.cumsum([len(book.text) for book in books])
    first, second = (int(np.abs(ends - share * ends[-1]).argmin()) + 1 for share in ENDS)
    first = min(first, len(books) - 2)
    second = min(max(second, first + 1), len(books) - 1)
    return {"train": books[:first], "val": books[first:second], "test": books[second:]}


def read_collection(path: Path) -> list[Book]:
    """Return the books of a JSON-lines file, sorted by path."""
    books: dict[str, Book] = {}
    for where, row in readers.json_rows(path, path=str, year=str, group=str, text=str):
        if row["group"] not in GROUPS:
            raise UserError(f"{where}: group {row['group']!r:.80}; {did_you_mean(row['group'], GROUPS)}")
        if row["path"] in books:
            raise UserError(f"{where}: path {row['path']!r:.80} occurs in an earlier line")
        text = readers.checked_text(where, row["text"])
        books[row["path"]] = Book(path=row["path"], year=row["year"], group=row["group"], text=text)
    return [books[name] for name in sorted(books)]


def read_gutenberg(path: Path) -> Book:
    """Return the text between the START and END markers of a Project Gutenberg file, with line ends as \\n."""
    text = readers.decoded(str(path), readers.contents(path)).removeprefix("\ufeff").replace("\r\n", "\n")
    start = START.search(text)
    end = END.search(text, start.end()) if start else None
    if not end:
        missing = "START" if not start else "END"
        raise UserError(
            f"{path}: no line '*** {missing} OF ...', expected a file of Project Gutenberg with its licence header"
        )
    book = text[start.end() : end.start()].strip("\n") + "\n"
    return Book(path=path.name, year=None, group=None, text=readers.checked_text(str(path), book))
