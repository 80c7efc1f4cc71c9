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

ARCHIVE, HUB = "aclImdb_v1.tar.gz", "stanfordnlp/imdb"
SIZE = "84 MB"
WANTS = f"{ARCHIVE}, or imdb/train.jsonl[.xz] and imdb/test.jsonl[.xz] with the fields label, text"
LICENCE = "none stated; a research data set, cite Maas et al. 2011"
MEMBER = re.compile(r"(?:\./)?aclImdb/(train|test)/(neg|pos)/[^/]+\.txt")
CLASSES = ("neg", "pos")
READ_SPLITS = ("train", "test")

Review = tuple[str, str, int, bytes]
"""Split, place in the source for messages, label, and text."""
Examples = list[tuple[bytes, int]]
"""Texts and labels of a split."""


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
        """Return the first of: the original archive, JSON-lines files, the hub."""
        if archive := first(place, ARCHIVE, f"imdb/{ARCHIVE}"):
            return Source(name=ARCHIVE, files=[archive], read=lambda: _complete(str(archive), _archive_rows(archive)))
        layouts = (tuple(f"imdb/{split}.jsonl{end}" for split in READ_SPLITS) for end in (".xz", ""))
        if paths := together(place, *layouts):
            name = " and ".join(path.name for path in paths)
            files = dict(zip(READ_SPLITS, paths, strict=True))
            return of_splits(place, name, files, lambda: _file_rows(files))
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
    for number, (split, where, label, text) in enumerate(reviews, start=1):
        if label not in (0, 1):
            raise UserError(f"{where}: label {label!s:.80}, expected 0 (negative) or 1 (positive)")
        if not text.strip():
            raise UserError(f"{where}: an empty text, expected words")
        splits[split].append((text, label))
        if number % 500 == 0:
            progress(number, max(number, 4 * ROWS_PER_CLASS))
    for examples in splits.values():
        examples.sort()
    return splits


def _complete(where: str, reviews: Iterable[Review]) -> Iterator[Review]:
    """Yield the reviews, and raise UserError unless there are as many as in the published data set."""
    counts: Counter[tuple[str, int]] = Counter()
    for review in reviews:
        split, _, label, _ = review
        counts[split, label] += 1
        yield review
    for split, label in product(READ_SPLITS, range(len(CLASSES))):
        if counts[split, label] != ROWS_PER_CLASS:
            raise UserError(
                f"{where}: {counts[split, label]:,} reviews of class {CLASSES[label]} in {split}, "
                f"expected {ROWS_PER_CLASS:,}; take the official {ARCHIVE} ({SIZE})"
            )


def _archive_rows(path: Path) -> Iterator[Review]:
    for name, text in readers.members(path, lambda name: bool(MEMBER.fullmatch(name))):
        split, label = MEMBER.fullmatch(name).groups()
        yield split, f"{path}: {name}", CLASSES.index(label), text


def _file_rows(files: dict[str, Path]) -> Iterator[Review]:
    for split, path in files.items():
        for where, row in readers.json_rows(path, label=int, text=str):
            yield split, where, row["label"], readers.checked_text(where, row["text"]).encode()


def _hub_rows(place: Place) -> Iterator[Review]:
    for split in READ_SPLITS:
        for number, row in enumerate(hub.rows(place, HUB, split=split, size=SIZE, wants=WANTS), start=1):
            yield split, f"{HUB}: {split}: row {number}", row["label"], row["text"].encode()
