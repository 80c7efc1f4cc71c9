"""Files: the class of a text, or of a pair of texts, from files that a person brings."""

from dataclasses import dataclass, replace
from functools import partial
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import Field, PositiveInt

from lra.core.console import say
from lra.core.errors import UserError
from lra.core.files import sha256
from lra.data import fingerprints
from lra.data.baselines import bag_of_words, majority, pair_cosine
from lra.data.cache import NUL, SPLITS, Identity, Splits
from lra.data.fingerprints import Stamp
from lra.data.from_source import Content, FromSource, Source
from lra.data.groups import Group, by_value
from lra.data.sampling import held_out, limited
from lra.data.tables import KINDS, PACKED, Example, documents, examples, scan
from lra.data.text_convolution import convolution
from lra.data.tokenise import BYTE_VOCABULARY, TOKENIZER, BpeVocabulary, byte_ids, encode, train_bpe
from lra.data.writer import Writer
from lra.tasks import Place, Split, TaskSpec, titled

if TYPE_CHECKING:
    from tokenizers import Tokenizer

VERSION = 2  # 1 took a mark at the beginning of a file for a part of its first cell
STEMS = {"train": ("train",), "val": ("val", "valid", "validation", "dev", "eval"), "test": ("test",)}
BATCH = 1_000  # texts that are encoded at once

Share = Annotated[float, Field(gt=0, lt=0.5)]
Data = str | dict[Literal["train", "val", "test"], str]


@dataclass(kw_only=True)
class Files(FromSource):
    """`data`: a folder with train, val and test as .csv, .tsv, .jsonl or .parquet; one file; or a file for each split.

    A split without a file is a part of train, of each class alike: `val` or `test` of it, as a share. `columns`: names
    of the columns, where CSV or TSV files have no header. `documents`: a file of `id` and `text`, where the columns
    `text` and `text2` hold ids. `tokens`: bytes, or a BPE of `vocabulary` tokens that is trained on train. A text is
    cut at the right to `max_length` tokens. `limit`: at most so many examples of each split. `name`: in tables.
    """

    data: Data
    val: Share
    test: Share
    columns: list[str] | None
    documents: str | None
    tokens: Literal["bytes", "bpe"]
    vocabulary: BpeVocabulary
    max_length: PositiveInt
    limit: PositiveInt | None
    name: str | None

    def __post_init__(self) -> None:
        self.shares = {"val": self.val, "test": self.test}
        self.name = self.name or _stem(self.data)
        self._words: dict[str, list[str]] = {}  # of each split, for the baselines

    def find(self, place: Place) -> Source:
        files = _files(self.data, place)
        return Source(
            name=", ".join(path.name for path in files.values()),
            paths=[*files.values(), *self._documents(place)],
            read=partial(self._read, files, place),
            content=lambda: self._scanned(files["train"], place),
        )

    def facts_of(self, content: Content) -> TaskSpec:
        unit = "bytes" if self.tokens == "bytes" else f"tokens of a BPE of {self.vocabulary}"
        notes = {f"{self.max_length} {unit}": True, f"limit {self.limit}": self.limit is not None}
        return TaskSpec(
            name=titled(self.name, notes),
            version=VERSION,
            vocab_size=BYTE_VOCABULARY if self.tokens == "bytes" else self.vocabulary,
            max_len=self.max_length,
            classes=len(content.get("labels", ("no", "yes"))),
            documents=content.get("texts", 1),
        )

    def identity(self, place: Place, stamps: list[Stamp]) -> Identity:
        return {
            "task": "files",
            "version": VERSION,
            "shares": {split: share for split, share in self.shares.items() if split not in _files(self.data, place)},
            "columns": self.columns,
            "documents": self.documents is not None,
            "tokens": self.tokens if self.tokens == "bytes" else {"bpe": self.vocabulary},
            "max_length": self.max_length,
            "limit": self.limit,
            "raw": stamps,
        }

    def fill(self, place: Place, source: Source, writers: dict[str, Writer], staging: Path) -> dict[str, Any]:
        every: dict[str, list[Example]] = source.read()
        labels = self._labels()
        classes = {label: number for number, label in enumerate(labels)}
        _refuse_unknown(every, classes)
        self._say_absent(every, labels)
        splits = {split: [rows[row] for row in limited(len(rows), self.limit, split)] for split, rows in every.items()}
        self._words = {split: [self._as_read(row) for row in rows] for split, rows in splits.items()}
        tokenizer = None
        if self.tokens == "bpe":
            texts = [text for row in splits["train"] for text in row.texts]
            tokenizer = train_bpe(texts, self.vocabulary, staging / TOKENIZER)
        for split, rows in splits.items():
            for start in range(0, len(rows), BATCH):
                part = rows[start : start + BATCH]
                for row, ids in zip(part, self._encoded(part, tokenizer), strict=True):
                    writers[split].add(classes[row.label], *ids)
        return {
            "rows": {split: len(rows) for split, rows in every.items()},
            "parts of train": self.identity(place, [])["shares"],
            "labels": labels,
            "texts": len(splits["train"][0].texts),
            NUL: sum("\0" in text for rows in every.values() for row in rows for text in row.texts),
            **({"tokenizer": {"kind": "BPE", "sha256": sha256(staging / TOKENIZER)}} if tokenizer else {}),
        }

    def baselines(self, splits: Splits) -> dict[str, float]:
        """Test accuracy (percent) of the largest class, of its words, of a convolution, and of how alike the texts of
        a pair are, where the question is whether they belong together."""
        train, test = splits["train"], splits["test"]
        scores = {"majority class": majority(train, test)}
        try:
            words = self._words["train"], train.labels, self._words["test"], test.labels
            scores["bag of words"] = bag_of_words(*words)
        except UserError as error:
            say(f"{self.name}: no baseline: {error}")
        vocabulary = BYTE_VOCABULARY if self.tokens == "bytes" else self.vocabulary
        scores["convolution"] = convolution(train, test, vocabulary, len(self._labels()))
        if train.documents == 2 and self.tokens == "bytes" and self._labels() == ["0", "1"]:
            scores["cosine of bag of words"] = pair_cosine(train, test)
        return scores

    def groups(self, split: Split) -> dict[str, Group]:
        """Classes by the names of their labels."""
        labels = self._labels()
        return {**super().groups(split), "class": by_value(split.labels, lambda number: labels[number])}

    def _labels(self) -> list[str]:
        if self.place is None:
            return list(map(str, range(2**16)))
        return self._scanned(_files(self.data, self.place)["train"], self.place)["labels"]

    def _scanned(self, train: Path, place: Place) -> dict[str, Any]:
        """What is in the training file, remembered in the cache folder."""
        return fingerprints.counted(place, train, partial(scan, columns=self.columns), f"{VERSION} {self.columns}")

    def _documents(self, place: Place) -> list[Path]:
        return [] if self.documents is None else [_located(self.documents, place, "documents")]

    def _read(self, files: dict[str, Path], place: Place) -> dict[str, list[Example]]:
        """The examples of all splits; ids are replaced by the texts that they name."""
        rows = {split: list(examples(path, self.columns)) for split, path in files.items()}
        for path in self._documents(place):
            texts = documents(path)
            rows = {split: _looked_up(pairs, texts, path) for split, pairs in rows.items()}
        for split in ("test", "val"):
            if split not in rows:
                labels = np.unique([row.label for row in rows["train"]], return_inverse=True)[1]
                chosen = held_out(labels, self.shares[split], split)
                rows[split] = list(compress(rows["train"], chosen))
                rows["train"] = list(compress(rows["train"], ~chosen))
                if not rows[split]:
                    raise UserError(
                        f"task.{split}={self.shares[split]}: leaves no example of {files['train']} for {split}; take a "
                        f"larger share, or bring a file of its own"
                    )
        return {split: rows[split] for split in SPLITS}

    def _as_read(self, row: Example) -> str:
        """The text of an example, or both, cut where the tokens are bytes."""
        most = self.max_length if self.tokens == "bytes" else None
        return " ".join(text.encode()[:most].decode(errors="replace") for text in row.texts)

    def _say_absent(self, splits: dict[str, list[Example]], labels: list[str]) -> None:
        """Classes that no score is of, as those of so few rows that a share of them is none."""
        for split in ("val", "test"):
            absent = sorted({*labels} - {row.label for row in splits[split]}, key=labels.index)
            if absent:
                names = ", ".join(map(repr, absent[:5])) + (", ..." if len(absent) > 5 else "")
                say(f"{self.name}: {len(absent)} of {len(labels)} classes have no example in {split}: {names}")

    def _encoded(self, rows: list[Example], tokenizer: "Tokenizer | None") -> list[list[np.ndarray]]:
        """The token ids of the texts of each example; those of bytes without a tokenizer."""
        if tokenizer is None:
            return [[byte_ids(text.encode(), self.max_length) for text in row.texts] for row in rows]
        ids = iter(encode(tokenizer, [text for row in rows for text in row.texts]))
        return [[next(ids)[: self.max_length] for _ in row.texts] for row in rows]


def _stem(data: Data) -> str:
    """The name of the folder or of the file, without its end."""
    path = Path(data if isinstance(data, str) else data.get("train", "files")).expanduser().absolute()
    if path.name == "..":
        path = path.resolve()
    ends = {*KINDS, *PACKED}
    while path.suffix in ends:
        path = path.with_suffix("")
    return path.parent.name or path.name if path.name in STEMS["train"] else path.name


def _located(name: str, place: Place, key: str = "data") -> Path:
    """A path as it stands, or else below the data folder."""
    path = Path(name).expanduser()
    if not path.exists() and place.data_dir is not None and (place.data_dir / path).exists():
        return place.data_dir / path
    if not path.exists():
        raise UserError(f"task.{key}: {name}: no such file or folder{' here or in LRA_DATA' if place.data_dir else ''}")
    return path


def _files(data: Data, place: Place) -> dict[str, Path]:
    """The file of each split that has one; train always has."""
    if isinstance(data, dict):
        if "train" not in data:
            raise UserError(f"task.data={data}: no file for train")
        return {split: _located(data[split], place) for split in SPLITS if split in data}
    path = _located(data, place)
    if not path.is_dir():
        return {"train": path}
    by_split = {}
    for split, stems in STEMS.items():
        names = [f"{stem}{kind}{packed}" for stem in stems for kind in KINDS for packed in ("", *PACKED)]
        there = [path / name for name in names if (path / name).is_file()]
        if len(there) > 1:
            raise UserError(f"{path}: {there[0].name} and {there[1].name} are both for {split}; keep one of them")
        if there:
            by_split[split] = there[0]
    if "train" not in by_split:
        raise UserError(f"{path}: no train.csv, .tsv, .jsonl or .parquet in it; name the files with task.data={{...}}")
    return by_split


def _looked_up(rows: list[Example], texts: dict[str, str], path: Path) -> list[Example]:
    for row in rows:
        unknown = next((name for name in row.texts if name not in texts), None)
        if unknown is not None:
            raise UserError(f"{row.where}: {unknown!r:.80} is no id of {path}")
    return [replace(row, texts=tuple(texts[name] for name in row.texts)) for row in rows]


def _refuse_unknown(splits: dict[str, list[Example]], classes: dict[str, int]) -> None:
    places = len(splits["train"][0].texts)
    for split, rows in splits.items():
        for row in rows:
            if row.label not in classes:
                raise UserError(f"{row.where}: label {row.label!r:.80} of {split} does not occur in train")
            if len(row.texts) != places:
                raise UserError(f"{row.where}: {len(row.texts)} texts, but rows of train have {places}")
