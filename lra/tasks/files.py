"""Classification of texts, pairs of texts or token ids, from the user's own files or data sets of the hub."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, compress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import Field, NonNegativeInt, PositiveInt

from lra.core.console import say
from lra.core.errors import UserError
from lra.core.files import sha256
from lra.core.names import data_name
from lra.datasets.baselines import bag_of_words, bag_of_words_or_letters, majority, pair_cosine
from lra.datasets.builder import FromSource, Source
from lra.datasets.cache import SPLITS, Identity, Splits, Writer, stored
from lra.datasets.groups import Group, by_value, held_out, limited
from lra.datasets.tables import Columns, Example, Quotes, bare, examples, ordered, scan
from lra.datasets.tokenise import (
    BYTE_VOCABULARY,
    MAX_VOCABULARY,
    TOKENIZER,
    BpeVocabulary,
    byte_ids,
    decode,
    encode,
    load,
    text_of,
    train_bpe,
)
from lra.tasks import Split, TaskSpec, titled
from lra.tasks._files_of_splits import Data, Paths, files_of, unread

if TYPE_CHECKING:
    from tokenizers import Tokenizer

VERSION = 5  # 4 kept padding on the left, 3 dropped carriage returns in quoted cells, 2 kept the quotes of TSV cells
NAMED = 5  # maximum number of columns, files or classes that a message lists

Fraction = Annotated[float, Field(gt=0, lt=0.5)]


@dataclass(kw_only=True)
class Files(FromSource):
    """Texts, pairs of texts, or token ids with labels.

    Args:
        data: a folder, one file, or a file for each split; `hf:NAME` or `hf:NAME:CONFIGURATION` is a data set that
            `datasets.load_dataset` loads.
        val: fraction of each class of train that is held out for validation if there is no validation file.
        test: fraction of each class of train that is held out for test if there is no test file.
        text: column of the texts, or of lists of token ids.
        text2: column of the second text of pairs.
        label: column of the classes.
        columns: all columns of CSV and TSV files without a header, or None.
        quotes: how quoted cells of CSV and TSV files hold a quote mark, see `Columns`.
        exact_labels: accept labels that look alike, such as Pos and pos, or 3.1 and 3.10, as different classes.
        max_classes: maximum number of different labels; more are an error, since `label` may be the wrong column.
        tokens: `bytes`, `bpe` for a byte-level BPE trained on train, or `ids` for columns with lists of token ids.
        vocabulary: number of tokens of the BPE.
        padding: token id that is stripped from both ends of lists of token ids, or None.
        max_length: maximum number of tokens; longer texts are cut at the right.
        limit: maximum number of examples of each split, or None.
        name: name in tables; None uses the name of the folder, the file or the data set of the hub.
    """

    data: Data
    val: Fraction
    test: Fraction
    text: str
    text2: str
    label: str
    columns: list[str] | None
    quotes: Quotes | None
    exact_labels: bool
    max_classes: PositiveInt
    tokens: Literal["bytes", "bpe", "ids"]
    vocabulary: BpeVocabulary
    padding: NonNegativeInt | None
    max_length: PositiveInt
    limit: PositiveInt | None
    name: str | None = field()  # type: ignore[assignment]  # without it, the base class's name would be a default

    def __post_init__(self) -> None:
        self.fractions = {"val": self.val, "test": self.test}
        self.name = data_name(self.data, self.name)
        self.column_names = Columns(
            text=self.text,
            text2=self.text2,
            label=self.label,
            header=None if self.columns is None else tuple(self.columns),
            quotes=self.quotes,
            ids=self.tokens == "ids",
            padding=self.padding,
        )
        self._tokenizer: Tokenizer | None = None  # set by `fill` for a BPE; `baselines` decodes with it

    def find(self) -> Source:
        every = [*chain(*self._files().values())]
        return Source(
            name=", ".join(path.name for path in every), files=every, read=lambda: self._read(self._labelled())
        )

    @property
    def spec(self) -> TaskSpec:
        content = {} if self.data_config is None else self._content()
        units = {"bytes": "bytes", "bpe": f"tokens of a BPE of {self.vocabulary}", "ids": "token ids"}
        sizes = {"bytes": BYTE_VOCABULARY, "bpe": self.vocabulary, "ids": content.get("vocabulary", MAX_VOCABULARY)}
        notes = {f"{self.max_length} {units[self.tokens]}": True, f"limit {self.limit}": self.limit is not None}
        return TaskSpec(
            name=titled(self.name, notes),  # type: ignore[arg-type]
            version=VERSION,
            vocab_size=sizes[self.tokens],
            max_len=self.max_length,
            classes=len(content.get("labels", ("no", "yes"))),
            documents=content.get("texts", 1),
        )

    def identity(self) -> Identity:
        return {
            "task": "files",
            "version": VERSION,
            "fractions": self._fractions(self._labelled()),
            "columns": [self.text, self.text2, self.label, self.columns, self.quotes, self.exact_labels],
            "padding": self.padding,
            "tokens": {"bpe": self.vocabulary} if self.tokens == "bpe" else self.tokens,
            "max_length": self.max_length,
            "limit": self.limit,
        }

    def fill(self, source: Source, writers: dict[str, Writer], folder: Path) -> dict[str, Any]:
        rows_by_split: dict[str, list[Example]] = source.read()
        content = self._content()
        classes = {label: number for number, label in enumerate(content["labels"])}
        _check_against_train(rows_by_split, classes)
        splits = {
            split: [rows[row] for row in limited(len(rows), self.limit, split)] for split, rows in rows_by_split.items()
        }
        tokenizer = None
        if self.tokens == "bpe":
            texts = [text for row in splits["train"] for text in row.texts]
            tokenizer = train_bpe(texts, self.vocabulary, folder / TOKENIZER)
        self._tokenizer, cut, inputs = tokenizer, 0, set[bytes]()
        for split, rows in splits.items():
            for row, ids in zip(rows, _encoded(rows, tokenizer), strict=True):
                cut += any(len(document) > self.max_length for document in ids)
                documents = [document[: self.max_length] for document in ids]
                writers[split].add(classes[row.label], *documents)
                # Two different inputs are enough to show that truncation or padding has not made all equal.
                if split == "train" and len(inputs) < 2:
                    inputs.add(b"".join(document.tobytes() for document in documents))
        if len(inputs) == 1:
            raise UserError(
                f"{self.name}: all {len(splits['train']):,} inputs of train are equal in their first {self.max_length} "
                "tokens; task.max_length=N reads more, task.padding=ID strips padding"
            )
        used, found = (sum(map(len, rows.values())) for rows in (splits, rows_by_split))
        self._report(rows_by_split, content["labels"])
        if used < found:
            say(f"{self.name}: {used:,} of {found:,} examples are used: task.limit={self.limit}")
        if cut:
            say(f"{self.name}: {cut:,} of {used:,} examples are cut: task.max_length={self.max_length}")
        return {
            "rows": {split: len(rows) for split, rows in rows_by_split.items()},
            "cut": cut,
            "parts of train": self._fractions(self._labelled()),
            **content,
            **({"tokenizer": {"kind": "BPE", "sha256": sha256(folder / TOKENIZER)}} if tokenizer else {}),
        }

    def baselines(self, splits: Splits) -> dict[str, float]:
        """Return test accuracies (percent) of the majority class and a bag of words, or of letters if blanks are rare.

        Pairs of texts (bytes) with the labels 0 and 1 have a third baseline, their cosine. A token id counts as a word.
        """
        train, test = splits["train"], splits["test"]
        scores = {"majority class": majority(train, test)}
        try:
            texts = list(self._texts(train)), train.labels, list(self._texts(test)), test.labels
            scores |= (
                {"bag of words": bag_of_words(*texts)} if self.tokens == "ids" else bag_of_words_or_letters(*texts)
            )
        except UserError as error:
            say(f"{self.name}: no baseline: {error}")
        if train.documents == 2 and self.tokens == "bytes" and self.class_names() == ["0", "1"]:
            scores["cosine of bag of words"] = pair_cosine(train, test)
        return scores

    def groups(self, split: Split) -> dict[str, Group]:
        """Return groups by length, and by class under the names of the labels."""
        labels = self.class_names()
        return {**super().groups(split), "class": by_value(split.labels, lambda number: labels[number])}

    def class_names(self) -> list[str]:
        return super().class_names() if self.data_config is None else self._content()["labels"]

    def encode(self, text: str, tokenizer: Path) -> np.ndarray:
        if self.tokens == "ids":
            raise UserError(f"{text!r:.80}: {self.name} was trained on token ids; give token ids")
        ids = byte_ids(text.encode(), None) if self.tokens == "bytes" else next(encode(load(tokenizer), [text]))
        return ids[: self.max_length]

    def decode(self, ids: np.ndarray, tokenizer: Path) -> str:
        if self.tokens == "ids":
            return super().decode(ids - 1, tokenizer)  # type: ignore[return-value]
        return text_of(ids).decode(errors="replace") if self.tokens == "bytes" else decode(ids, tokenizer)

    def stored_ids(self, ids: np.ndarray) -> np.ndarray:
        return ids + 1 if self.tokens == "ids" else ids

    def _files(self) -> Paths:
        return files_of(self, self.data)

    def _scans(self) -> dict[str, list[dict[str, Any]]]:
        """Return the result of `scan` for each file of each split; results are stored until a file changes."""
        key = f"{VERSION} {self.max_classes} {self.column_names}"
        return {
            split: [
                stored(self.config, [path], key, partial(scan, path, self.column_names, self.max_classes))
                for path in paths
            ]
            for split, paths in self._files().items()
        }

    def _labelled(self) -> Paths:
        """Return the files of train and of each split with labels.

        A split counts as unlabelled if all its labels are empty, null or -1; -1 is a label if train has it.
        """
        labels = {split: {*chain(*(found["labels"] for found in scans))} for split, scans in self._scans().items()}
        known = labels["train"] - {""}
        return {
            split: paths
            for split, paths in self._files().items()
            if split == "train" or not labels[split] <= {"", "-1"} - known
        }

    def _content(self) -> dict[str, Any]:
        """Return labels and number of texts per example of train, and for token ids the vocabulary of all splits."""
        scans = {split: found for split, found in self._scans().items() if split in self._labelled()}
        for found in chain(*scans.values()):
            if "" in found["labels"]:
                raise UserError(f"{found['labels']['']}: {self.label} is '', expected a text or a whole number")
        labels: dict[str, str] = {}
        for found in scans["train"]:
            labels = {**found["labels"], **labels}
        if not labels:
            raise UserError(f"{self._files()['train'][0]}: no row has a label in {self.label}")
        ids = [found["largest"] for found in chain(*scans.values()) if found["largest"] is not None]
        return {
            "labels": ordered(labels, self.exact_labels),
            "texts": scans["train"][0]["texts"],
            **({"vocabulary": max(ids) + 2} if ids else {}),  # + 2 for id 0 and padding
        }

    def _fractions(self, files: Paths) -> dict[str, float]:
        return {split: fraction for split, fraction in self.fractions.items() if split not in files}

    def _read(self, files: Paths) -> dict[str, list[Example]]:
        """Return the examples of all splits; splits without a file are held out from train."""
        rows = {
            split: [row for path in paths for row in examples(path, self.column_names) if row.label is not None]
            for split, paths in files.items()
        }
        for split in ("test", "val"):
            if split not in rows:
                labels = np.unique([row.label for row in rows["train"]], return_inverse=True)[1]
                chosen = held_out(labels, self.fractions[split], split)
                rows[split] = list(compress(rows["train"], chosen))
                rows["train"] = list(compress(rows["train"], ~chosen))
                if not rows[split]:
                    raise UserError(
                        f"task.{split}={self.fractions[split]}: leaves no example of {files['train'][0]} for {split}: "
                        f"{len(labels)} rows have {labels.max() + 1} labels; take a larger fraction, or add a "
                        f"file for {split}; is {self.label} the column of classes?"
                    )
        return {split: rows[split] for split in SPLITS}

    def _texts(self, split: Split) -> Iterator[str]:
        """Yield the text of each example as the model reads it; pairs are joined, and token ids written as words."""
        documents = split.stored(split.index)
        for _ in range(len(split)):
            yield " ".join(self._text(next(documents)) for _ in range(split.documents))

    def _text(self, ids: np.ndarray) -> str:
        if self.tokens == "ids":
            return " ".join(map("id{}".format, ids))
        return self._tokenizer.decode(ids.tolist()) if self._tokenizer else text_of(ids).decode(errors="replace")

    def _report(self, splits: dict[str, list[Example]], labels: list[str]) -> None:
        """Print the columns, files and rows that are not read, and classes without an example in validation or test."""
        names = [*map(bare, (self.text, self.text2, self.label))]
        scans, labelled = self._scans(), self._labelled()
        for split, found in scans.items():
            hidden = sum(each["unlabelled"] for each in found)
            if split not in labelled:
                say(f"{self.name}: {split} is not read, its labels are hidden; a fraction of train is held out instead")
            elif hidden:
                say(f"{self.name}: {hidden:,} rows of {split} are not read, they have no label")
        header = scans["train"][0]["columns"]
        lists: dict[str, list[str]] = {
            "columns not read": [name or repr(name) for name in header if bare(name) not in names],
            "files not read": unread(self, self.data, self._files()),
        }
        for split in ("val", "test"):
            present = {row.label for row in splits[split]}
            lists[f"classes without an example in {split}"] = [repr(name) for name in labels if name not in present]
        for what, listed in lists.items():
            if listed:
                more = f" and {len(listed) - NAMED} more" if len(listed) > NAMED else ""
                say(f"{self.name}: {what}: {', '.join(listed[:NAMED])}{more}")


def _encoded(rows: list[Example], tokenizer: "Tokenizer | None") -> Iterator[list[np.ndarray]]:
    """Yield the token ids of the texts of each example; without a tokenizer texts become bytes."""
    if tokenizer is None:
        for row in rows:
            yield [byte_ids(text.encode(), None) if isinstance(text, str) else text for text in row.texts]
    else:
        ids = encode(tokenizer, [text for row in rows for text in row.texts])  # type: ignore[misc]
        for row in rows:
            yield [next(ids) for _ in row.texts]


def _check_against_train(splits: dict[str, list[Example]], classes: dict[str, int]) -> None:
    """Raise UserError for a label or a number of texts that does not occur in train."""
    expected = len(splits["train"][0].texts)
    for split, rows in splits.items():
        for row in rows:
            if row.label not in classes:
                raise UserError(f"{row.where}: label {row.label!r:.80} of {split} does not occur in train")
            if len(row.texts) != expected:
                raise UserError(f"{row.where}: {len(row.texts)} texts, but rows of train have {expected}")
