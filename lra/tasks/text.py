"""Text: classify the sentiment of IMDb reviews, read byte by byte; 0 is negative, 1 is positive.

Source:
    Data: Maas et al. 2011, 25,000 reviews for training and 25,000 for test. Task: Long Range Arena (Tay et al. 2021).
"""

from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import PositiveInt

from lra.core.errors import UserError
from lra.datasets import hub, readers
from lra.datasets.baselines import bag_of_words, majority, texts_of
from lra.datasets.builder import FromSource, Source, of_splits
from lra.datasets.cache import Splits, Writer
from lra.datasets.groups import held_out, limited
from lra.datasets.tokenise import BYTE_VOCABULARY, byte_ids, text_of
from lra.tasks import TaskSpec, titled

VERSION = 1
PUBLISHED_LENGTH = 4_000
ROWS = {"train": 25_000, "test": 25_000}

HUB = "stanfordnlp/imdb"
WANTS = "imdb/train.jsonl[.xz] and imdb/test.jsonl[.xz] with the fields label, text"
LICENCE = "none stated; a research data set, cite Maas et al. 2011"

Examples = list[tuple[bytes, int]]
"""Texts and labels of a split, sorted by the bytes of the texts."""


@dataclass(kw_only=True)
class ByteTexts(FromSource):
    """Base class of builders of tasks with two classes; an example is a text or two texts, as bytes (id = byte + 1).

    Args:
        max_length: maximum number of bytes of a text; longer texts are cut at the right.
        limit: maximum number of examples of each split, or None.
    """

    texts: ClassVar[int] = 1  # number of texts of an example

    max_length: PositiveInt
    limit: PositiveInt | None

    @property
    def spec(self) -> TaskSpec:
        notes = {
            f"length {self.max_length}": self.max_length != PUBLISHED_LENGTH,
            f"limit {self.limit}": self.limit is not None,
        }
        return TaskSpec(
            name=titled(self.name, notes),
            version=VERSION,
            vocab_size=BYTE_VOCABULARY,
            max_len=self.max_length,
            classes=2,
            documents=self.texts,
        )

    def encode(self, text: str, tokenizer: Path) -> np.ndarray:
        return byte_ids(text.encode(), self.max_length)

    def decode(self, ids: np.ndarray, tokenizer: Path) -> str:
        return text_of(ids).decode(errors="replace")  # a text may be cut inside a character


@dataclass(kw_only=True)
class Text(ByteTexts):
    """Builder of the task; an example is a review, and reviews are sorted by their bytes.

    Args:
        validation: `test` validates on the test split, as Long Range Arena does; `holdout` validates on a random tenth
            of each class of train. A few held-out reviews are copies of reviews that stay in train.
    """

    name = "text"

    validation: Literal["test", "holdout"]

    @property
    def validates_on_test(self) -> bool:  # type: ignore[override]
        return self.validation == "test"

    def find(self) -> Source:
        """Return the source: the JSON-lines files if they exist, else the hub."""
        if files := self.together(*({split: f"imdb/{split}.jsonl{end}" for split in ROWS} for end in (".xz", ""))):
            names = " and ".join(path.name for path in files.values())
            return of_splits(names, files, _of_file)

        def fetched() -> dict[str, Examples]:
            found = hub.rows(self.config, HUB, ROWS, wants=WANTS)
            return {split: sorted((row["text"].encode(), row["label"]) for row in found[split]) for split in found}

        return Source(name=f"the hub: {HUB}", read=fetched)

    def fill(self, source: Source, writers: dict[str, Writer], folder: Path) -> dict[str, Any]:
        read: dict[str, Examples] = source.read()
        splits = read
        if self.validation == "holdout":
            chosen = held_out(np.array([label for _, label in read["train"]]))
            train, val = (list(compress(read["train"], part)) for part in (~chosen, chosen))
            splits = {"train": train, "val": val, "test": read["test"]}
        for split, examples in splits.items():
            for row in limited(len(examples), self.limit, split):
                text, label = examples[row]
                writers[split].add(label, byte_ids(text, self.max_length))
        return {"rows": {split: len(examples) for split, examples in read.items()}, "licence": LICENCE}

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
        return ["neg", "pos"]


def _of_file(path: Path) -> Examples:
    examples = []
    for where, row in readers.json_rows(path, label=int, text=str):
        if row["label"] not in (0, 1):
            raise UserError(f"{where}: label {row['label']}, expected 0 (negative) or 1 (positive)")
        examples.append((readers.checked_text(where, row["text"]).encode(), row["label"]))
    return sorted(examples)  # by bytes, so that the files and the hub give the same data
