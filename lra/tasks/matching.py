"""Matching: does one paper cite the other? Two documents, read byte by byte; 0 is no, 1 is yes.

`Matching` reads the pairs of Long Range Arena (Tay et al. 2021): papers of the ACL Anthology Network
(Radev et al. 2013). `Pairs` is what all tasks of this kind share.
"""

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from pydantic import PositiveInt

from lra.errors import UserError
from lra.tasks import Builder, Facts, Place, Split, Task, fingerprints, sources, titled
from lra.tasks.baselines import Overlap, majority, pair_cosine
from lra.tasks.groups import Group, by_size
from lra.tasks.sampling import sampled
from lra.tasks.storage import NUL, SPLITS, Splits, Writer, prepared
from lra.tasks.tokenise import BYTE_VOCABULARY, byte_ids

VERSION = 1
PUBLISHED_LENGTH = 4_000
LABELS = {b"0": 0, b"1": 1, b"0.0": 0, b"1.0": 1}
FILE_SPLITS = ("train", "eval", "test")  # SPLITS in the names of files

Pair = tuple[int, bytes, bytes]
"""A label and two texts."""


class Pairs(Builder):
    """Pairs of documents, each cut at the right to `max_length` bytes, id = byte + 1, in the order of their files.

    `limit`: at most this many examples of each split, for quick checks.
    """

    name: ClassVar[str]
    rows: ClassVar[tuple[int, int, int]]  # of train, val and test, where the data are complete

    def __init__(self, *, max_length: PositiveInt, limit: PositiveInt | None) -> None:
        self.max_length = max_length
        self.limit = limit

    @abstractmethod
    def find(self, place: Place) -> list[Path]:
        """The raw files; none where there are no data."""

    @abstractmethod
    def read(self, files: list[Path]) -> Iterator[tuple[str, Iterable[Pair]]]:
        """Each split and its pairs; a split is read before the next is asked for."""

    @abstractmethod
    def origin(self, files: list[Path]) -> dict[str, Any]:
        """What is to be said of the data besides names, digests and rows of the files."""

    @abstractmethod
    def absent(self, place: Place) -> UserError:
        """The message where there are no data."""

    @property
    def facts(self) -> Facts:
        return Facts(
            name=self._name(),
            version=VERSION,
            vocab_size=BYTE_VOCABULARY,
            max_len=self.max_length,
            classes=2,
            documents=2,
        )

    def _name(self, *notes: str) -> str:
        """The plain name for complete data at the papers' length; other data say in what they differ."""
        own = list(notes)
        if self.max_length != PUBLISHED_LENGTH:
            own.append(f"length {self.max_length}")
        if self.limit is not None:
            own.append(f"limit {self.limit}")
        return titled(self.name, own)

    def build(self, place: Place) -> Task:
        files = self.find(place)
        stamps = fingerprints.stamps(place, files)
        identity = {
            "task": self.name,
            "version": VERSION,
            "max_length": self.max_length,
            "limit": self.limit,
            "raw": stamps or None,
        }

        def make(writers: dict[str, Writer], _: Path) -> dict[str, Any]:
            if not files:
                raise self.absent(place)
            rows = dict.fromkeys(SPLITS, 0)
            nul = 0

            def encoded(split: str, pairs: Iterable[Pair]) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
                nonlocal nul
                for label, one, two in pairs:
                    rows[split] += 1
                    nul += (b"\0" in one) + (b"\0" in two)
                    done = sum(rows.values())
                    if done % 1000 == 0:
                        place.progress(done, max(done, sum(self.rows)))
                    yield label, byte_ids(one, self.max_length), byte_ids(two, self.max_length)

            for split, pairs in self.read(files):
                for example in sampled(encoded(split, pairs), self.limit, split):
                    writers[split].add(*example)
            origin = self.origin(files)
            digests = fingerprints.confirmed(place, files, stamps)
            return {"from": files[0].name, "sha256": digests, "rows": rows, NUL: nul, **origin}

        task = prepared(place, self.facts, identity, make, baselines)
        found = tuple(task.source["rows"][split] for split in SPLITS)
        return task if found == self.rows else replace(task, name=self._name(f"{'/'.join(map(str, found))} examples"))

    def groups(self, split: Split) -> dict[str, Group]:
        """Also by the overlap of the two documents, in percent."""
        overlap = Overlap(split)(split, np.arange(len(split)))
        return {"overlap (%)": by_size(np.rint(100 * overlap).astype(np.int64)), **super().groups(split)}


class Matching(Pairs):
    """The pairs of Long Range Arena, new_aan_pairs.{train,eval,test}.tsv, from its archive or an unpacked folder.

    A line is label, id1, id2, text1, text2, without a header; quotes are bytes like any other. A text is used as it
    stands there: Python's notation of a byte string, b'...', with its escapes.
    """

    name = "matching"
    rows = (147_086, 18_090, 17_437)

    ARCHIVE = "lra_release.gz"
    FOLDERS = (
        "tsv_data",
        "lra_release/tsv_data",
        "lra_release/lra_release/tsv_data",
        "aan",
        "aan/tsv_data",
        "matching",
        "matching/tsv_data",
    )
    FILES: ClassVar[dict[str, str]] = {
        f"new_aan_pairs.{part}.tsv": split for part, split in zip(FILE_SPLITS, SPLITS, strict=True)
    }

    def find(self, place: Place) -> list[Path]:
        if archive := sources.find(place, self.ARCHIVE):
            return [archive]
        first, *others = self.FILES
        train = sources.find(place, *(f"{folder}/{first}" for folder in self.FOLDERS))
        return with_siblings(train, others)

    def read(self, files: list[Path]) -> Iterator[tuple[str, Iterable[Pair]]]:
        if files[0].name == self.ARCHIVE:
            yield from self._from_archive(files[0])
        else:
            for path in files:
                yield self.FILES[path.name], _rows(sources.lines(path))

    def _from_archive(self, archive: Path) -> Iterator[tuple[str, Iterable[Pair]]]:
        """The first member of each name, wherever its folder stands; what follows the last of them is not read."""
        missing = dict(self.FILES)
        for name, stream in sources.members(archive, lambda name: Path(name).name in missing):
            yield missing.pop(Path(name).name), _rows(sources.stream_lines(f"{archive}: {name}", stream))
            if not missing:
                return
        raise UserError(f"{archive}: no member {next(iter(missing))}, expected {', '.join(self.FILES)}")

    def origin(self, files: list[Path]) -> dict[str, Any]:
        return {"licence": "none stated in the archive; papers of the ACL Anthology Network, cite Radev et al. 2013"}

    def absent(self, place: Place) -> UserError:
        return sources.absent(
            place,
            "the AAN pairs of Long Range Arena",
            size="an archive of 7.7 GB",
            wants=f"{self.ARCHIVE} or its folder tsv_data; or use task=acl_matching, a smaller task with other papers",
            reason="it is not on the Hugging Face hub",
        )


def baselines(splits: Splits) -> dict[str, float]:
    """Test accuracy (percent) of the larger class, and of how alike the words of the two documents are."""
    train, test = splits["train"], splits["test"]
    return {"majority class": majority(train, test), "cosine of bag of words": pair_cosine(train, test)}


def with_siblings(first: Path | None, others: Iterable[str]) -> list[Path]:
    """`first` and the files beside it, all of which must be there; nothing where there is no `first`."""
    if first is None:
        return []
    files = [first, *(first.with_name(name) for name in others)]
    for path in files:
        if not path.is_file():
            raise UserError(f"{path}: no such file; it belongs beside {first.name}")
    return files


def _rows(lines: Iterable[tuple[str, bytes]]) -> Iterator[Pair]:
    for where, line in lines:
        label, _, _, *texts = fields_of(where, line, 5)
        for number, text in enumerate(texts, start=1):
            if not text:
                raise UserError(f"{where}: text{number} is empty, expected a document")
        yield label_of(where, label), texts[0], texts[1]


def fields_of(where: str, line: bytes, count: int) -> list[bytes]:
    """The fields of a line of a tab-separated file."""
    fields = line.split(b"\t")
    if len(fields) != count:
        raise UserError(f"{where}: {len(fields)} tab-separated fields, expected {count}")
    return fields


def label_of(where: str, label: bytes) -> int:
    """0 or 1, also where it is written as 0.0 or 1.0."""
    if label not in LABELS:
        found = label[:40].decode("utf-8", errors="backslashreplace")
        raise UserError(f"{where}: label {found!r}, expected 0 or 1")
    return LABELS[label]
