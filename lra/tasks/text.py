"""Text: sentiment of IMDb reviews read byte by byte; 0 is negative, 1 is positive.

Source:
    Data: Maas et al. 2011, 25,000 reviews for training and 25,000 for test. Task: Long Range Arena (Tay et al. 2021).
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import compress, product
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import PositiveInt

from lra.core.errors import UserError
from lra.core.files import opened
from lra.data import hub, readers
from lra.data.baselines import bag_of_words, majority, texts_of
from lra.data.cache import NUL, Splits
from lra.data.from_source import Content, FromSource, Source, first, of_splits, together
from lra.data.groups import held_out, limited
from lra.data.tokenise import BYTE_VOCABULARY, byte_ids
from lra.data.writer import Writer
from lra.tasks import Place, Progress, TaskSpec, titled

VERSION = 1
PUBLISHED_LENGTH = 4_000
ROWS_PER_CLASS = 12_500  # in train and in test

ARCHIVE, FOLDER, HUB = "aclImdb_v1.tar.gz", "aclImdb", "stanfordnlp/imdb"
SIZE = "84 MB"
WANTS = f"{ARCHIVE}, the folder {FOLDER}, or train and test as .jsonl[.xz] or .parquet with the fields label, text"
LICENCE = "none stated; a research data set, cite Maas et al. 2011"
PLACES = ("imdb/", "")  # below the data folder
LAYOUTS = ("{}-*.parquet", "plain_text/{}-*.parquet", "{}.jsonl.xz", "{}.jsonl")  # of a split
MEMBER = re.compile(r"(?:\./)?aclImdb/(train|test)/(neg|pos)/[^/]+\.txt")
CLASSES = ("neg", "pos")
READ_SPLITS = ("train", "test")
REVIEWS = tuple(f"{split}/{name}/*.txt" for split in READ_SPLITS for name in CLASSES)  # in the folder

Examples = list[tuple[bytes, int]]
"""Texts and labels of a split."""


@dataclass(frozen=True, kw_only=True)
class Review:
    """One review of a source; `where` names it in errors."""

    split: str
    where: str
    label: int
    text: bytes | str

    def checked(self) -> tuple[bytes, int]:
        """Return text and label, or raise UserError."""
        if self.label not in (0, 1):
            raise UserError(f"{self.where}: label {self.label!s:.80}, expected 0 (negative) or 1 (positive)")
        if isinstance(self.text, str):
            return readers.checked_text(self.where, self.text).encode(), self.label
        if not self.text.strip():
            raise UserError(f"{self.where}: an empty text, expected words")
        return self.text, self.label


@dataclass(kw_only=True)
class Text(FromSource):
    """Reviews as bytes, id = byte + 1, sorted by their bytes.

    Args:
        max_length: bytes; longer reviews are cut at the right.
        validation: `test` validates on the test split, as Long Range Arena and the papers do; `holdout` on a seeded
            tenth of each class of train.
        limit: maximum number of examples of each split, or None.
    """

    name = "text"

    max_length: PositiveInt
    validation: Literal["test", "holdout"]
    limit: PositiveInt | None

    @property
    def validates_on_test(self) -> bool:
        return self.validation == "test"

    def facts_of(self, content: Content) -> TaskSpec:
        complete = dict.fromkeys(READ_SPLITS, len(CLASSES) * ROWS_PER_CLASS)
        rows = content.get("rows", complete)
        notes = {
            f"{rows['train']}/{rows['test']} examples": rows != complete,
            f"length {self.max_length}": self.max_length != PUBLISHED_LENGTH,
            f"limit {self.limit}": self.limit is not None,
        }
        return TaskSpec(
            name=titled(self.name, notes),
            version=VERSION,
            vocab_size=BYTE_VOCABULARY,
            max_len=self.max_length,
            classes=len(CLASSES),
        )

    def find(self, place: Place) -> Source:
        """Return the first of: the original archive, its unpacked folder, parquet or JSON-lines files, the hub."""
        if archive := first(place, *(f"{folder}{ARCHIVE}" for folder in PLACES)):
            return Source(name=ARCHIVE, paths=[archive], read=lambda: _complete(str(archive), _archive_rows(archive)))
        if folder := first(place, *(f"{folder}{FOLDER}" for folder in PLACES)):
            read = lambda: _complete(str(folder), _folder_rows(folder))  # noqa: E731
            return Source(name=FOLDER, paths=[folder], inside=REVIEWS, read=read)
        layouts = product(PLACES, LAYOUTS)
        if files := together(place, (tuple(a + b.format(split) for split in READ_SPLITS) for a, b in layouts)):
            name = " and ".join(path.name for paths in files for path in paths)
            return of_splits(place, name, dict(zip(READ_SPLITS, files, strict=True)), lambda: _file_rows(files))
        return Source(name=f"the hub: {HUB}", read=lambda: _complete(HUB, _hub_rows(place)))

    def fill(self, place: Place, source: Source, writers: dict[str, Writer], staging: Path) -> dict[str, Any]:
        examples_of = _sorted(source.read(), place.progress)
        for split, examples in self._splits(examples_of).items():
            for row in limited(len(examples), self.limit, split):
                text, label = examples[row]
                writers[split].add(label, byte_ids(text, self.max_length))
        return {
            "rows": {split: len(examples) for split, examples in examples_of.items()},
            NUL: sum(b"\0" in text for examples in examples_of.values() for text, _ in examples),
            "licence": LICENCE,
        }

    def baselines(self, splits: Splits) -> dict[str, float]:
        """Return test accuracies (percent) of the majority class and of a bag of words of the stored texts."""
        train, test = splits["train"], splits["test"]
        return {
            "majority class": majority(train, test),
            "bag of words": bag_of_words(
                texts_of(train, train.index), train.labels, texts_of(test, test.index), test.labels
            ),
        }

    def class_names(self) -> list[str]:
        return [*CLASSES]

    def encode(self, text: str, tokenizer: Path) -> np.ndarray:
        return byte_ids(text.encode(), self.max_length)

    def _splits(self, read: dict[str, Examples]) -> dict[str, Examples]:
        if self.validation == "test":
            return read
        chosen = held_out(np.array([label for _, label in read["train"]]))
        train, val = (list(compress(read["train"], part)) for part in (~chosen, chosen))
        return {"train": train, "val": val, "test": read["test"]}


def _sorted(reviews: Iterable[Review], progress: Progress) -> dict[str, Examples]:
    """Sort the examples of train and test by text and label, so that all sources give the same data."""
    splits: dict[str, Examples] = {split: [] for split in READ_SPLITS}
    for number, review in enumerate(reviews, start=1):
        splits[review.split].append(review.checked())
        if number % 500 == 0:
            progress(number, max(number, 4 * ROWS_PER_CLASS))
    for examples in splits.values():
        examples.sort()
    return splits


def _complete(where: str, reviews: Iterable[Review]) -> Iterator[Review]:
    """Yield the reviews, and raise UserError unless there are as many as in the published data set."""
    counts: Counter[tuple[str, int]] = Counter()
    for review in reviews:
        counts[review.split, review.label] += 1
        yield review
    for split, label in product(READ_SPLITS, range(len(CLASSES))):
        if counts[split, label] != ROWS_PER_CLASS:
            raise UserError(
                f"{where}: {counts[split, label]:,} reviews in {FOLDER}/{split}/{CLASSES[label]}, "
                f"expected {ROWS_PER_CLASS:,}; take the official {ARCHIVE} ({SIZE})"
            )


def _archive_rows(path: Path) -> Iterator[Review]:
    for name, stream in readers.members(path):
        if match := MEMBER.fullmatch(name):
            split, label = match.groups()
            where = f"{path}: {name}"
            yield Review(split=split, where=where, label=CLASSES.index(label), text=readers.contents(where, stream))


def _folder_rows(folder: Path) -> Iterator[Review]:
    for split in READ_SPLITS:
        for label, name in enumerate(CLASSES):
            for path in (folder / split / name).glob("*.txt"):
                with opened(path) as file:
                    text = readers.contents(str(path), file)
                yield Review(split=split, where=str(path), label=label, text=text)


def _file_rows(files: list[list[Path]]) -> Iterator[Review]:
    for split, paths in zip(READ_SPLITS, files, strict=True):
        for where, row in readers.rows(paths, label=int, text=str):
            yield Review(split=split, where=where, label=row["label"], text=row["text"])


def _hub_rows(place: Place) -> Iterator[Review]:
    for split in READ_SPLITS:
        data = hub.rows(place, HUB, split=split, size=SIZE, wants=WANTS)
        for number, row in enumerate(data, start=1):
            yield Review(split=split, where=f"{HUB}: {split}: row {number}", label=row["label"], text=row["text"])
