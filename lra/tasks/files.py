"""Classify texts, pairs of texts or token ids from the user's own files or from data sets of the hub.

Data are prepared in four steps: `files_of` finds the files of each split, `tables.examples` reads their rows,
`Files._read` assigns the rows to splits, and `Files.fill` writes their tokens.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, compress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import numpy as np
from pydantic import Field, NonNegativeInt, PositiveInt

from lra.core.console import say
from lra.core.errors import UserError
from lra.core.files import sha256
from lra.core.names import data_name
from lra.datasets.baselines import bag_of_words, majority, pair_cosine, texts_of
from lra.datasets.builder import FromSource, Source
from lra.datasets.cache import SPLITS, Identity, Splits, Writer, stored
from lra.datasets.groups import Group, by_value, held_out, limited
from lra.datasets.tables import Columns, Example, Quotes, examples
from lra.datasets.tokenise import (
    BYTE_VOCABULARY,
    MAX_VOCABULARY,
    TOKENIZER,
    BpeVocabulary,
    byte_ids,
    encode,
    load,
    text_of,
    train_bpe,
)
from lra.tasks import DataConfig, Split, TaskSpec, titled
from lra.tasks._files_of_splits import Paths, files_of

if TYPE_CHECKING:
    from tokenizers import Tokenizer

# Version 4 did not strip padding on the left, 3 dropped carriage returns in quoted cells, and 2 did not remove the
# quote marks around TSV cells.
VERSION = 5

Fraction = Annotated[float, Field(gt=0, lt=0.5)]


@dataclass(frozen=True)
class Content:
    """Properties of the user's data that a model depends on.

    Attributes:
        files: files of train and of each other split with labels.
        labels: names of the classes, in the order of their numbers.
        texts: number of texts of an example.
        vocabulary: largest token id of the labelled splits plus 2, since ids begin at 0 and padding is added; None if
            the data are texts.
    """

    files: Paths
    labels: list[str]
    texts: int
    vocabulary: int | None


@dataclass(kw_only=True)
class Files(FromSource):
    """Builder of a task with labelled texts, pairs of texts, or token ids.

    Args:
        data: a folder, one file, or a file for each split; `hf:NAME` or `hf:NAME:CONFIGURATION` is a data set that
            `datasets.load_dataset` loads.
        val: fraction of each class of train that is held out for validation if no validation file has labels.
        test: fraction of each class of train that is held out for test if no test file has labels.
        text: column of the texts, or of lists of token ids.
        text2: column of the second text of pairs.
        label: column of the classes.
        columns: names of all columns of CSV and TSV files without a header, or None.
        quotes: notation of quote marks in CSV and TSV files, see `Columns`.
        tokens: `bytes`, `bpe` for a byte-level BPE trained on train, or `ids` for columns with lists of token ids.
        vocabulary: number of tokens of the BPE.
        padding: token id that is stripped from both ends of lists of token ids, or None.
        max_length: maximum number of tokens; longer texts are cut at the right.
        limit: maximum number of examples of each split, or None.
        name: name in results; None uses the name of the folder, the file or the data set of the hub.
    """

    data: Any  # `Data`; checked below, because pydantic's errors would list the members of the union
    val: Fraction
    test: Fraction
    text: str
    text2: str
    label: str
    columns: list[str] | None
    quotes: Quotes | None
    tokens: Literal["bytes", "bpe", "ids"]
    vocabulary: BpeVocabulary
    padding: NonNegativeInt | None
    max_length: PositiveInt
    limit: PositiveInt | None
    name: str | None = field()  # type: ignore[assignment]  # without `field()`, `TaskBuilder.name` would be the default

    def __post_init__(self) -> None:
        by_split = self.data if isinstance(self.data, dict) else {"train": self.data}
        if not by_split.keys() <= {*SPLITS} or not all(isinstance(path, str) for path in by_split.values()):
            raise UserError(
                f"task.data={self.data}: expected a folder, a file, {{train: FILE, val: FILE, test: FILE}}, or hf:NAME"
            )
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
        self._content: Content | None = None  # set by `at`
        self._tokenizer: Tokenizer | None = None  # set by `fill` for a BPE; `baselines` decodes with it

    def at(self, data_config: DataConfig) -> Self:
        """Return a copy that uses the folders in `data_config`, and whose `content` has been read from the files."""
        builder = super().at(data_config)
        builder._content = builder._scanned()
        return builder

    @property
    def content(self) -> Content:
        """Content of the files, which `at` has read; `at` must have been called."""
        assert self._content is not None, "call `at` first"
        return self._content

    @property
    def spec(self) -> TaskSpec:
        content = self._content
        vocabulary = MAX_VOCABULARY if content is None else content.vocabulary
        units = {"bytes": "bytes", "bpe": f"tokens of a BPE of {self.vocabulary}", "ids": "token ids"}
        sizes = {"bytes": BYTE_VOCABULARY, "bpe": self.vocabulary, "ids": vocabulary}
        notes = {f"{self.max_length} {units[self.tokens]}": True, f"limit {self.limit}": self.limit is not None}
        return TaskSpec(
            name=titled(self.name, notes),  # type: ignore[arg-type]
            version=VERSION,
            vocab_size=sizes[self.tokens],  # type: ignore[arg-type]
            max_len=self.max_length,
            classes=2 if content is None else len(content.labels),
            documents=1 if content is None else content.texts,
        )

    def identity(self) -> Identity:
        return {
            "task": "files",
            "version": VERSION,
            "fractions": self._held_out(),
            "columns": [self.text, self.text2, self.label, self.columns, self.quotes],
            "padding": self.padding,
            "tokens": {"bpe": self.vocabulary} if self.tokens == "bpe" else self.tokens,
            "max_length": self.max_length,
            "limit": self.limit,
        }

    def find(self) -> Source:
        files = [*chain(*self.content.files.values())]
        return Source(name=", ".join(path.name for path in files), files=files, read=self._read)

    def fill(self, source: Source, writers: dict[str, Writer], folder: Path) -> dict[str, Any]:
        content, rows_by_split = self.content, source.read()
        classes = {label: number for number, label in enumerate(content.labels)}
        splits = {
            split: [rows[row] for row in limited(len(rows), self.limit, split)] for split, rows in rows_by_split.items()
        }
        if self.tokens == "bpe":
            texts = [text for row in splits["train"] for text in row.texts]
            self._tokenizer = train_bpe(texts, self.vocabulary, folder / TOKENIZER)
        cut, inputs = 0, set[bytes]()
        for split, rows in splits.items():
            every: list[Any] = [text for row in rows for text in row.texts]
            if self._tokenizer is not None:  # encode in batches, since the library uses all cores for a batch
                documents = encode(self._tokenizer, every)
            else:
                documents = iter(every) if self.tokens == "ids" else (byte_ids(text.encode(), None) for text in every)
            for row in rows:
                whole = [next(documents) for _ in row.texts]
                ids = [document[: self.max_length] for document in whole]
                cut += max(map(len, whole)) > self.max_length
                writers[split].add(classes[row.label], *ids)
                # Two different inputs suffice to show that truncation or padding has not made all inputs equal.
                if split == "train" and len(inputs) < 2:
                    inputs.add(b"".join(document.tobytes() for document in ids))
        if len(inputs) == 1:
            raise UserError(
                f"{self.name}: all {len(splits['train']):,} inputs of train are equal in their first {self.max_length} "
                "tokens; task.max_length=N reads more, task.padding=ID strips padding"
            )
        if cut:
            say(f"{self.name}: {cut:,} examples are cut: task.max_length={self.max_length}")
        return {
            "rows": {split: len(rows) for split, rows in rows_by_split.items()},
            "cut": cut,
            "parts of train": self._held_out(),
            "labels": content.labels,
            "texts": content.texts,
            **({"vocabulary": content.vocabulary} if content.vocabulary else {}),
            **({"tokenizer": {"kind": "BPE", "sha256": sha256(folder / TOKENIZER)}} if self._tokenizer else {}),
        }

    def baselines(self, splits: Splits) -> dict[str, float]:
        """Return test accuracies (percent) of the majority class and a bag of words; a token id counts as a word.

        Pairs of texts as bytes with the labels 0 and 1 have a third baseline, the cosine of the two texts.
        """
        train, test = splits["train"], splits["test"]
        scores = {"majority class": majority(train, test)}
        try:
            scores["bag of words"] = bag_of_words(self._texts(train), train.labels, self._texts(test), test.labels)
        except UserError as error:
            say(f"{self.name}: no baseline: {error}")
        if train.documents == 2 and self.tokens == "bytes" and self.class_names() == ["0", "1"]:
            scores["cosine of bag of words"] = pair_cosine(train, test)
        return scores

    def groups(self, split: Split) -> dict[str, Group]:
        labels = self.class_names()
        return {**super().groups(split), "class": by_value(split.labels, lambda number: labels[number])}

    def class_names(self) -> list[str]:
        return super().class_names() if self._content is None else self._content.labels

    def encode(self, text: str, tokenizer: Path) -> np.ndarray:
        if self.tokens == "ids":
            raise UserError(f"{text!r:.80}: {self.name} was trained on token ids; give token ids")
        ids = byte_ids(text.encode(), None) if self.tokens == "bytes" else next(encode(load(tokenizer), [text]))
        return ids[: self.max_length]

    def decode(self, ids: np.ndarray, tokenizer: Path) -> str:
        if self.tokens == "bytes":
            return text_of(ids).decode(errors="replace")
        return super().decode(ids - (self.tokens == "ids"), tokenizer)  # type: ignore[return-value]

    def stored_ids(self, ids: np.ndarray) -> np.ndarray:
        return ids + 1 if self.tokens == "ids" else ids

    def _scanned(self) -> Content:
        """Return the `Content` of all files; the summary of a file is cached until that file changes.

        A split counts as unlabelled if all its labels are empty, null or -1. If train has the label -1, -1 counts as a
        label.
        """
        # The spec needs the classes and the vocabulary before data are prepared, so the files are read twice: for their
        # summary here, and for the examples by `_read`.
        files, columns = files_of(self, self.data), self.column_names
        found = {
            path: stored(self.config, [path], f"{VERSION} {columns}", partial(scan, path, columns))
            for path in chain(*files.values())
        }
        labels = {split: {label for path in paths for label in found[path]["labels"]} for split, paths in files.items()}
        no_label = {"", "-1"} - (labels["train"] - {""})
        labelled = {split: files[split] for split in files if split == "train" or not labels[split] <= no_label}
        summaries = [found[path] for path in chain(*labelled.values())]
        for summary in summaries:
            if "" in summary["labels"]:
                raise UserError(f"{summary['labels']['']}: {self.label} is '', expected a text or a whole number")
        train, first = labels["train"], files["train"][0]
        if len(train) < 2:
            raise UserError(
                f"{first}: every {self.label} is {', '.join(train) or 'null'}, expected at least two different ones"
            )
        ids = [summary["largest"] for summary in summaries if summary["largest"] is not None]
        numbers = all(label.removeprefix("-").isdecimal() for label in train)
        return Content(
            files=labelled,
            # Sort numbers by value (2 before 10), and equal ones as texts, since 1 and 01 are two classes.
            labels=sorted(train, key=lambda label: (int(label), label)) if numbers else sorted(train),
            texts=found[first]["texts"],
            vocabulary=max(ids) + 2 if ids else None,  # + 2: ids begin at 0, and padding is added
        )

    def _held_out(self) -> dict[str, float]:
        """Return the fraction of train that is held out for each split without labelled files, by split."""
        return {split: fraction for split, fraction in self.fractions.items() if split not in self.content.files}

    def _read(self) -> dict[str, list[Example]]:
        """Return the examples of all splits; those of splits without labelled files are held out from train."""
        content, labels = self.content, set(self.content.labels)
        for split in files_of(self, self.data).keys() - content.files.keys():
            say(f"{self.name}: {split} is not read, since its labels are hidden; a part of train is held out instead")
        rows: dict[str, list[Example]] = {}
        for split, paths in content.files.items():
            every = [row for path in paths for row in examples(path, self.column_names)]
            rows[split] = [row for row in every if row.label is not None]
            if unlabelled := len(every) - len(rows[split]):
                say(f"{self.name}: {unlabelled:,} rows of {split} are not read, since they have no label")
            for row in rows[split]:
                if row.label not in labels:
                    raise UserError(f"{row.where}: label {row.label!r:.80} of {split} does not occur in train")
                if len(row.texts) != content.texts:
                    raise UserError(f"{row.where}: {len(row.texts)} texts, but the first row has {content.texts}")
        # The test split is held out first, so that it does not depend on task.val.
        for split, fraction in reversed(self._held_out().items()):
            numbers = np.unique([row.label for row in rows["train"]], return_inverse=True)[1]
            chosen = held_out(numbers, fraction, split)
            if not chosen.any():
                raise UserError(
                    f"task.{split}={fraction}: leaves no example of {content.files['train'][0]} for {split}: "
                    f"{len(numbers)} rows have {numbers.max() + 1} different labels; take a larger fraction, or add a "
                    f"file for {split}; is {self.label} the column of classes?"
                )
            rows[split] = list(compress(rows["train"], chosen))
            rows["train"] = list(compress(rows["train"], ~chosen))
        return {split: rows[split] for split in SPLITS}

    def _texts(self, split: Split) -> Iterator[str]:
        """Return the text of each example as the model reads it; pairs are joined, and a token id becomes a word."""
        documents = split.stored(split.index)
        texts: Iterator[str]
        if self.tokens == "ids":
            texts = (" ".join(map("id{}".format, ids)) for ids in documents)
        elif self._tokenizer is not None:
            texts = (self._tokenizer.decode(ids.tolist()) for ids in documents)
        else:
            texts = texts_of(split, split.index)
        return map(" ".join, zip(*[texts] * split.documents, strict=True))  # texts of an example are consecutive


def scan(path: Path, columns: Columns) -> dict[str, Any]:
    """Return a summary of a file.

    Returns:
        `labels`: location (as in errors) of the first row with each label; `texts`: number of texts of a row;
        `largest`: largest token id, or None for texts.
    """
    labels: dict[str, str] = {}
    texts, largest = 0, None
    for row in examples(path, columns):
        texts = texts or len(row.texts)
        if row.label is not None:
            labels.setdefault(row.label, row.where)
        if columns.ids:
            largest = max(largest or 0, *(int(np.asarray(ids).max()) - 1 for ids in row.texts))
    if not texts:
        raise UserError(f"{path}: no rows, expected examples with {columns.text} and {columns.label}")
    return {"labels": labels, "texts": texts, "largest": largest}
