"""Text: the sentiment of IMDb reviews read byte by byte; 0 is negative, 1 is positive.

Data: Maas et al. 2011, 25,000 reviews for training and 25,000 for test; as a task: Long Range Arena (Tay et al. 2021).
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import PositiveInt

from lra.errors import UserError
from lra.tasks import Builder, Facts, Place, Progress, Split, Task, fingerprints, sources, titled
from lra.tasks.baselines import bag_of_words, majority
from lra.tasks.sampling import held_out, limited
from lra.tasks.storage import NUL, Splits, Writer, prepared
from lra.tasks.tokenise import BYTE_VOCABULARY, byte_ids, text_of

VERSION = 1
PUBLISHED_LENGTH = 4_000
ROWS_PER_CLASS = 12_500  # in train and in test

ARCHIVE, FOLDER, HUB = "aclImdb_v1.tar.gz", "aclImdb", "stanfordnlp/imdb"
SIZE = "84 MB"
WANTS = f"{ARCHIVE}, the folder {FOLDER}, or train and test as .jsonl[.xz] or .parquet with the fields label, text"
LICENCE = "none stated; a research data set, cite Maas et al. 2011"
PLACES = ("imdb/", "")  # below the data folder
MEMBER = re.compile(r"(?:\./)?aclImdb/(train|test)/(neg|pos)/[^/]+\.txt")
CLASSES = ("neg", "pos")
READ_SPLITS = ("train", "test")
REVIEWS = tuple(f"{split}/{name}/*.txt" for split in READ_SPLITS for name in CLASSES)  # in the folder

Examples = list[tuple[bytes, int]]
"""Texts and labels of a split."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One review as a source gives it; `where` names it in errors."""

    split: str
    where: str
    label: int
    text: bytes | str

    def checked(self) -> tuple[bytes, int]:
        """Text and label, after a look at both."""
        if self.label not in (0, 1):
            raise UserError(f"{self.where}: label {self.label!s:.80}, expected 0 (negative) or 1 (positive)")
        if isinstance(self.text, str):
            return sources.checked_text(self.where, self.text).encode(), self.label
        if not self.text.strip():
            raise UserError(f"{self.where}: an empty text, expected words")
        return self.text, self.label


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where the reviews are: its name, its files or folder (none for the hub), and a way to read its rows."""

    name: str
    paths: list[Path]
    rows: Callable[[], Iterator[Row]]

    def read(self, progress: Progress) -> dict[str, Examples]:
        """All examples of train and test, sorted by text and label: the same for every source of the same data."""
        splits: dict[str, Examples] = {split: [] for split in READ_SPLITS}
        for number, row in enumerate(self.rows(), start=1):
            splits[row.split].append(row.checked())
            if number % 500 == 0:
                progress(number, max(number, 4 * ROWS_PER_CLASS))
        for examples in splits.values():
            examples.sort()
        return splits


class Text(Builder):
    """Reviews cut at the right to `max_length` bytes, id = byte + 1, sorted by their bytes.

    `validation`: `test` validates on the test split, as Long Range Arena and the papers do; `holdout` on a tenth of
    train, stratified and seeded. `limit`: at most this many examples of each split, for quick checks.
    """

    def __init__(
        self, *, max_length: PositiveInt, validation: Literal["test", "holdout"], limit: PositiveInt | None
    ) -> None:
        self.max_length = max_length
        self.validation = validation
        self.limit = limit

    @property
    def facts(self) -> Facts:
        return Facts(
            name=self._name(),
            version=VERSION,
            vocab_size=BYTE_VOCABULARY,
            max_len=self.max_length,
            classes=2,
            documents=1,
        )

    def _name(self, *notes: str) -> str:
        """`text` for the published data at the papers' length; other data say in what they differ."""
        own = list(notes)
        if self.max_length != PUBLISHED_LENGTH:
            own.append(f"length {self.max_length}")
        if self.limit is not None:
            own.append(f"limit {self.limit}")
        return titled("text", own)

    def build(self, place: Place) -> Task:
        source = find(place)
        stamps = fingerprints.stamps(place, source.paths, inside=REVIEWS)
        identity = {
            "task": "text",
            "version": VERSION,
            "max_length": self.max_length,
            "validation": self.validation,
            "limit": self.limit,
            "raw": stamps or None,
        }

        def make(writers: dict[str, Writer], _: Path) -> dict[str, Any]:
            read = source.read(place.progress)
            rows = {split: len(examples) for split, examples in read.items()}
            for split, examples in self._splits(read).items():
                for row in limited(len(examples), self.limit, split):
                    text, label = examples[row]
                    writers[split].add(label, byte_ids(text, self.max_length))
            return {
                "from": source.name,
                "sha256": fingerprints.confirmed(place, source.paths, stamps, inside=REVIEWS),
                "rows": rows,
                NUL: sum(b"\0" in text for examples in read.values() for text, _ in examples),
                "licence": LICENCE,
            }

        task = prepared(place, self.facts, identity, make, baselines, validates_on_test=self.validation == "test")
        counts = [task.source["rows"][split] for split in READ_SPLITS]
        if counts == [2 * ROWS_PER_CLASS] * 2:
            return task
        return replace(task, name=self._name(f"{counts[0]}/{counts[1]} examples"))

    def _splits(self, read: dict[str, Examples]) -> dict[str, Examples]:
        if self.validation == "test":
            return read
        chosen = held_out(np.array([label for _, label in read["train"]]))
        train = [example for example, held in zip(read["train"], chosen, strict=True) if not held]
        val = [example for example, held in zip(read["train"], chosen, strict=True) if held]
        return {"train": train, "val": val, "test": read["test"]}


def baselines(splits: Splits) -> dict[str, float]:
    """Test accuracy (percent) of the larger class, and of the words of the texts as they are stored."""
    train, test = splits["train"], splits["test"]
    return {
        "majority class": majority(train, test),
        "bag of words": bag_of_words(_words(train), train.labels, _words(test), test.labels),
    }


def _words(split: Split) -> list[str]:
    return [text_of(split.document(row)).decode("utf-8", errors="replace") for row in range(len(split))]


def find(place: Place) -> Source:
    """The first of: the original archive, its unpacked folder, columnar or JSON-lines files, the hub."""
    if archive := sources.find(place, *(f"{folder}{ARCHIVE}" for folder in PLACES)):
        return Source(name=ARCHIVE, paths=[archive], rows=lambda: _complete(archive, _archive_rows(archive)))
    if folder := sources.find(place, *(f"{folder}{FOLDER}" for folder in PLACES)):
        return Source(name=FOLDER, paths=[folder], rows=lambda: _complete(folder, _folder_rows(folder)))
    if files := _files(place):
        paths = [path for split in READ_SPLITS for path in files[split]]
        return Source(name=" and ".join(path.name for path in paths), paths=paths, rows=lambda: _file_rows(files))
    return Source(name=f"the hub: {HUB}", paths=[], rows=lambda: _hub_rows(place))


def _files(place: Place) -> dict[str, list[Path]] | None:
    """The files of both splits in one of the layouts of the hub's data set; None where there is neither split."""
    if place.data_dir is None:
        return None
    for folder in PLACES:
        for layout in ("{}-*.parquet", "plain_text/{}-*.parquet", "imdb-{}*.arrow", "{}.jsonl.xz", "{}.jsonl"):
            found = {split: sorted(place.data_dir.glob(folder + layout.format(split))) for split in READ_SPLITS}
            if all(found.values()):
                return found
            if any(found.values()):
                missing = next(split for split, paths in found.items() if not paths)
                wanted = place.data_dir / folder / layout.format(missing)
                raise UserError(f"{wanted}: no such file; the {missing} split belongs beside the other one")
    return None


def _complete(path: Path, rows: Iterator[Row]) -> Iterator[Row]:
    """The rows of a source of the original layout, which has all reviews or is damaged."""
    found: Counter[tuple[str, str]] = Counter()
    for row in rows:
        found[row.split, CLASSES[row.label]] += 1
        yield row
    for split, name in product(READ_SPLITS, CLASSES):
        if found[split, name] != ROWS_PER_CLASS:
            raise UserError(
                f"{path}: {found[split, name]:,} reviews in {FOLDER}/{split}/{name}, expected {ROWS_PER_CLASS:,}; "
                f"take the official {ARCHIVE} ({SIZE})"
            )


def _archive_rows(path: Path) -> Iterator[Row]:
    """Every member is looked at, so that one that no official archive has is refused."""
    for name, stream in sources.members(path, lambda name: True):
        if found := MEMBER.fullmatch(name):
            split, label = found.groups()
            where = f"{path}: {name}"
            text = sources.contents(where, stream, sources.MAX_LINE_BYTES)
            yield Row(split=split, where=where, label=CLASSES.index(label), text=text)


def _folder_rows(folder: Path) -> Iterator[Row]:
    for split in READ_SPLITS:
        for label, name in enumerate(CLASSES):
            for path in (folder / split / name).glob("*.txt"):
                with sources.opened(path) as file:
                    text = sources.contents(str(path), file, sources.MAX_LINE_BYTES)
                yield Row(split=split, where=str(path), label=label, text=text)


def _file_rows(files: dict[str, list[Path]]) -> Iterator[Row]:
    fields = {"label": int, "text": str}
    for split, paths in files.items():
        if paths[0].suffix in (".parquet", ".arrow"):
            rows = sources.columnar_rows(paths, **fields)
        else:
            [path] = paths
            rows = sources.json_rows(path, **fields)
        for where, row in rows:
            yield Row(split=split, where=where, label=row["label"], text=row["text"])


def _hub_rows(place: Place) -> Iterator[Row]:
    for split in READ_SPLITS:
        data = sources.hub(place, HUB, split=split, size=SIZE, wants=WANTS)
        for number, row in enumerate(data, start=1):
            yield Row(split=split, where=f"{HUB}: {split}: row {number}", label=row["label"], text=row["text"])
