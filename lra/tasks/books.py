"""Books: next-token prediction on English children's books.

Splits hold whole books in a fixed random order: 90 % of the characters for training, 5 % each for validation and test.
The books of a split are concatenated into one stream of tokens.

Source:
    Chen 2023, the Extractor.
"""

from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from pydantic import PositiveInt

from lra.core.errors import UserError
from lra.core.files import sha256, write_json
from lra.datasets import hub, readers
from lra.datasets.baselines import bigram, unigram
from lra.datasets.builder import FromSource, Source
from lra.datasets.cache import SPLITS, Splits, Writer
from lra.datasets.groups import shuffled
from lra.datasets.tokenise import TOKENIZER, BpeVocabulary, encode, train_bpe
from lra.tasks import TaskSpec, titled

VERSION = 1
CONTEXT, VOCABULARY = 128, 5_000  # values in the paper; the task's name shows any other value
Group = Literal["children", "young-adventure"]
GROUPS = get_args(Group)
ENDS = (0.90, 0.95)  # ends of train and of validation, as fractions of all characters

COLLECTION = "childrens_books/books.jsonl"
WANTS = f"{COLLECTION}[.xz], one book per line with the fields path, year, group ({' or '.join(GROUPS)}), text"
LICENCE = "public domain in the USA"
LEFT_OUT_YEAR = "1992"  # books of this year are left out: editions of old texts that may still be under copyright
LISTING = "books.json"  # name of the prepared task's file that lists the paths of the books of each split


Book = dict[str, str]
"""Path, year, group and text of a book; books are identified and sorted by path."""


class Books(FromSource):
    """Builder of the task; an example is a window of BPE tokens, and the BPE is trained on the training split.

    Args:
        context: number of tokens in a window.
        vocabulary: number of tokens of the BPE.
        groups: groups of books to use.
        limit: maximum number of books of all splits together, or None.
    """

    name = "books"

    def __init__(
        self, *, context: PositiveInt, vocabulary: BpeVocabulary, groups: list[Group], limit: PositiveInt | None
    ) -> None:
        self.context, self.vocabulary = context, vocabulary
        self.book_groups = sorted(set(groups))
        self.limit = limit

    @property
    def options(self) -> dict[str, Any]:
        return {"context": self.context, "vocabulary": self.vocabulary, "groups": self.book_groups, "limit": self.limit}

    @property
    def spec(self) -> TaskSpec:
        notes = {
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

    def find(self) -> Source:
        if collection := self.first(f"{COLLECTION}.xz", COLLECTION):
            return Source(name=COLLECTION, files=[collection], read=lambda: _read(collection))
        reason = "no list of these books is published"
        raise hub.missing_data_error(self.config, "books", wants=WANTS, reason=reason)

    def fill(self, source: Source, writers: dict[str, Writer], folder: Path) -> dict[str, Any]:
        every_book = source.read()
        books = [book for book in every_book if book["group"] in self.book_groups and book["year"] != LEFT_OUT_YEAR]
        splits = _split([books[row] for row in shuffled(len(books))[: self.limit]])
        tokenizer = train_bpe((book["text"] for book in splits["train"]), self.vocabulary, folder / TOKENIZER)
        for split, books in splits.items():
            tokens = 0
            for book in books:
                [ids] = encode(tokenizer, [book["text"]])  # one book at a time, which limits memory
                writers[split].add(0, ids)  # next-token prediction does not use the label
                tokens += len(ids)
            if tokens <= self.context:
                raise UserError(
                    f"books: {tokens} tokens in the {split} split, expected more than task.context={self.context}"
                )
        write_json(folder / LISTING, {split: [book["path"] for book in books] for split, books in splits.items()})
        return {
            "books": {"found": len(every_book), **{split: len(books) for split, books in splits.items()}},
            "tokenizer": {"kind": "BPE", "size": self.vocabulary, "sha256": sha256(folder / TOKENIZER)},
            "licence": LICENCE,
        }

    def baselines(self, splits: Splits) -> dict[str, float]:
        """Return test perplexities of a unigram and a bigram model."""
        train, val, test = (splits[split] for split in SPLITS)
        return {
            "unigram": unigram(train, test, self.vocabulary),
            "bigram": bigram(train, val, test, self.vocabulary),
        }


def _split(books: list[Book]) -> dict[str, list[Book]]:
    """Split the list at the book ends nearest to ENDS and return the books of each split, at least one per split."""
    if len(books) < len(SPLITS):
        raise UserError(f"books: found {len(books)}, expected at least {len(SPLITS)}, one for each split")
    ends = np.cumsum([len(book["text"]) for book in books])
    # Ends are counted in characters, since books differ much in length.
    first, second = (int(np.abs(ends - fraction * ends[-1]).argmin()) + 1 for fraction in ENDS)
    first = min(first, len(books) - 2)  # leave one book each for validation and test
    second = min(max(second, first + 1), len(books) - 1)
    return {"train": books[:first], "val": books[first:second], "test": books[second:]}


def _read(path: Path) -> list[Book]:
    """Return the books of a JSON-lines file, sorted by path."""
    rows = list(readers.json_rows(path, path=str, year=str, group=str, text=str))
    for where, row in rows:
        readers.checked_text(where, row["text"])
    return sorted((row for _, row in rows), key=lambda row: row["path"])
