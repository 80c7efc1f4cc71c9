"""Classification of texts, or of pairs of texts, from the user's own files."""

import re
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
from lra.data.from_source import Content, FromSource, Source, located
from lra.data.groups import Group, by_value
from lra.data.sampling import held_out, limited
from lra.data.tables import KINDS, PACKED, Columns, Example, documents, examples, scan
from lra.data.text_convolution import convolution
from lra.data.tokenise import BYTE_VOCABULARY, TOKENIZER, BpeVocabulary, byte_ids, encode, load, train_bpe
from lra.data.writer import Writer
from lra.tasks import Place, Split, TaskSpec, titled

if TYPE_CHECKING:
    from tokenizers import Tokenizer

VERSION = 3  # 2 kept the quotes of TSV cells; 1 kept the byte-order mark at the beginning of a file
STEMS = {"train": ("train",), "val": ("val", "valid", "validation", "dev", "eval"), "test": ("test",)}
DATA_ENDS = (".csv", ".tsv", ".json", ".jsonl", ".parquet", ".arrow", ".txt", ".zip", ".gz", ".xz", ".bz2", ".zst")
BATCH = 1_000  # texts that are encoded at once

Share = Annotated[float, Field(gt=0, lt=0.5)]
Data = str | dict[Literal["train", "val", "test"], str]


@dataclass(kw_only=True)
class Files(FromSource):
    """Texts or pairs of texts with labels.

    Args:
        data: a folder with train, val and test as .csv, .tsv, .jsonl or .parquet; one file; or a file for each split.
        val: share of each class of train that validates if `val` has no file.
        test: share of each class of train that tests if `test` has no file.
        columns: a mapping of `text`, `text2` and `label` to column names, or the list of all columns of CSV and TSV
            files without a header.
        documents: a file with the columns `id` and `text`; then the columns `text` and `text2` hold ids.
        tokens: `bytes`, or `bpe` for a byte-level BPE trained on train.
        vocabulary: size of the BPE.
        max_length: tokens; longer texts are cut at the right.
        limit: maximum number of examples of each split, or None.
        name: name in tables, or None for that of the folder or file.
    """

    data: Data
    val: Share
    test: Share
    columns: Columns
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
        rows_by_split: dict[str, list[Example]] = source.read()
        labels = self._labels()
        classes = {label: number for number, label in enumerate(labels)}
        _check_against_train(rows_by_split, classes)
        self._say_absent(rows_by_split, labels)
        splits = {
            split: [rows[row] for row in limited(len(rows), self.limit, split)] for split, rows in rows_by_split.items()
        }
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
            "rows": {split: len(rows) for split, rows in rows_by_split.items()},
            "parts of train": self.identity(place, [])["shares"],
            "labels": labels,
            "texts": len(splits["train"][0].texts),
            NUL: sum("\0" in text for rows in rows_by_split.values() for row in rows for text in row.texts),
            **({"tokenizer": {"kind": "BPE", "sha256": sha256(staging / TOKENIZER)}} if tokenizer else {}),
        }

    def baselines(self, splits: Splits) -> dict[str, float]:
        """Return test accuracies (percent) of the majority class, a bag of words and a convolution.

        For pairs with the labels 0 and 1 also of the cosine of the two texts.
        """
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
        """Return the groups of every task, with classes under the names of their labels."""
        labels = self._labels()
        return {**super().groups(split), "class": by_value(split.labels, lambda number: labels[number])}

    def class_names(self) -> list[str]:
        return self._labels()

    def encode(self, text: str, tokenizer: Path) -> np.ndarray:
        [[ids]] = self._encoded([Example(where="", texts=(text,), label="")], self._loaded(tokenizer))
        return ids

    def _loaded(self, path: Path) -> "Tokenizer | None":
        return None if self.tokens == "bytes" else load(path)

    def _labels(self) -> list[str]:
        if self.place is None:
            return list(map(str, range(2**16)))
        return self._scanned(_files(self.data, self.place)["train"], self.place)["labels"]

    def _scanned(self, train: Path, place: Place) -> dict[str, Any]:
        """Labels and texts per example of the training file, stored in the cache folder."""
        return fingerprints.counted(place, train, partial(scan, columns=self.columns), f"{VERSION} {self.columns}")

    def _documents(self, place: Place) -> list[Path]:
        return [] if self.documents is None else [located(place, self.documents, "documents")]

    def _read(self, files: dict[str, Path], place: Place) -> dict[str, list[Example]]:
        """Read all splits, replace ids by their texts, and hold out the splits without a file."""
        rows = {split: list(examples(path, self.columns)) for split, path in files.items()}
        for path in self._documents(place):
            texts = documents(path)
            rows = {split: _with_texts(pairs, texts, path) for split, pairs in rows.items()}
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
        """Text of an example, or both, cut if the tokens are bytes."""
        most = self.max_length if self.tokens == "bytes" else None
        return " ".join(text.encode()[:most].decode(errors="replace") for text in row.texts)

    def _say_absent(self, splits: dict[str, list[Example]], labels: list[str]) -> None:
        """Name the classes without an example in validation or test."""
        for split in ("val", "test"):
            absent = sorted({*labels} - {row.label for row in splits[split]}, key=labels.index)
            if absent:
                names = ", ".join(map(repr, absent[:5])) + (", ..." if len(absent) > 5 else "")
                say(f"{self.name}: {len(absent)} of {len(labels)} classes have no example in {split}: {names}")

    def _encoded(self, rows: list[Example], tokenizer: "Tokenizer | None") -> list[list[np.ndarray]]:
        """Token ids of the texts of each example; bytes without a tokenizer."""
        if tokenizer is None:
            return [[byte_ids(text.encode(), self.max_length) for text in row.texts] for row in rows]
        ids = iter(encode(tokenizer, [text for row in rows for text in row.texts]))
        return [[next(ids)[: self.max_length] for _ in row.texts] for row in rows]


def _stem(data: Data) -> str:
    """Name of the folder or of the file, without its suffixes."""
    path = Path(data if isinstance(data, str) else data.get("train", "files")).expanduser().absolute()
    if path.name == "..":
        path = path.resolve()
    while path.suffix in (*KINDS, *PACKED):
        path = path.with_suffix("")
    return path.parent.name or path.name if path.name in STEMS["train"] else path.name


def _files(data: Data, place: Place) -> dict[str, Path]:
    """Find the file of each split that has one; train must have one."""
    if isinstance(data, dict):
        if "train" not in data:
            raise UserError(f"task.data={data}: no file for train")
        return {split: located(place, data[split], "data") for split in SPLITS if split in data}
    path = located(place, data, "data")
    if not path.is_dir():
        return {"train": path}
    paths = {split: found for split in STEMS if (found := _file_of(path, split))}
    if "train" not in paths:
        raise UserError(f"{path}: no train.csv, .tsv, .jsonl or .parquet in it; name the files with task.data={{...}}")
    return paths


def _file_of(folder: Path, split: str) -> Path | None:
    """Find the file of a split by its name, in any case.

    Raises UserError for two files, and for none where the name of a file that cannot be read begins like the split.
    """
    stems = STEMS[split]
    names = {f"{stem}{kind}{packed}" for stem in stems for kind in KINDS for packed in ("", *PACKED)}
    files = sorted(path for path in folder.iterdir() if path.is_file())
    paths = [path for path in files if path.name.lower() in names]
    if len(paths) > 1:
        raise UserError(f"{folder}: {paths[0].name} and {paths[1].name} are both for {split}; keep one of them")
    if paths:
        return paths[0]
    begins_like = re.compile(rf"({'|'.join(stems)})([^a-z].*)?({'|'.join(map(re.escape, DATA_ENDS))})")
    similar = next((path.name for path in files if begins_like.fullmatch(path.name.lower())), None)
    if similar is not None:
        expected = ", ".join(f"{stems[0]}{kind}" for kind in KINDS)
        raise UserError(
            f"{folder}: {similar} looks like data for {split}, but is none of {expected} (also .xz or .gz); convert or "
            "rename it, or name the files with task.data={...}"
        )
    return None


def _with_texts(rows: list[Example], texts: dict[str, str], path: Path) -> list[Example]:
    """Replace the ids in rows by their texts."""
    for row in rows:
        unknown = next((name for name in row.texts if name not in texts), None)
        if unknown is not None:
            raise UserError(f"{row.where}: {unknown!r:.80} is no id of {path}")
    return [replace(row, texts=tuple(texts[name] for name in row.texts)) for row in rows]


def _check_against_train(splits: dict[str, list[Example]], classes: dict[str, int]) -> None:
    """Refuse labels and numbers of texts that train does not have."""
    places = len(splits["train"][0].texts)
    for split, rows in splits.items():
        for row in rows:
            if row.label not in classes:
                raise UserError(f"{row.where}: label {row.label!r:.80} of {split} does not occur in train")
            if len(row.texts) != places:
                raise UserError(f"{row.where}: {len(row.texts)} texts, but rows of train have {places}")
