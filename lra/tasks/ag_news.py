"""AG News: classify the title and description of a news item as World, Sports, Business or Sci/Tech.

The first 70 % of the training data are the training split, the rest is the validation split, as in SimpleTRON.

Source:
    Data: Zhang, Zhao and LeCun 2015, 120,000 items for training and 7,600 for test.
"""

import csv
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import NonNegativeInt, PositiveInt

from lra.core.console import say
from lra.core.errors import UserError
from lra.core.files import sha256
from lra.core.paths import expanded
from lra.datasets import hub, readers
from lra.datasets.baselines import bag_of_words, majority
from lra.datasets.builder import FromSource, Source, of_splits
from lra.datasets.cache import Identity, Splits, Writer
from lra.datasets.groups import limited
from lra.datasets.tokenise import (
    TOKENIZER,
    BpeVocabulary,
    encode,
    head_and_tail,
    load,
    train_bpe,
    vocabulary_of,
    word_piece,
)
from lra.tasks import TaskSpec, titled

VERSION = 1
CLASSES = 4
ROWS = {"train": 120_000, "test": 7_600}
HEAD, TAIL = 128, 384
BPE_VOCABULARY = 8_000
LICENCE = "non-commercial research; cite Zhang, Zhao and LeCun 2015"
# Records store this text, so it must not change.
ORDERED_BY_DIGEST = "by SHA-256 of the text: the source has not the official order"

PARTIAL, HUB = "ag_news_partial", "fancyzhx/ag_news"
PARTIAL_ROWS = "18.6k train"  # note in the task's name for partial training data: about 18,600 of 120,000 items
WANTS = "ag_news_csv/train.csv and ag_news_csv/test.csv of the unpacked ag_news_csv.tgz"
CSV_FILES = {"train": "ag_news_csv/train.csv", "test": "ag_news_csv/test.csv"}
PARTIAL_FILES = {"train": f"{PARTIAL}/train.partial.jsonl.xz", "test": f"{PARTIAL}/test.csv.xz"}

BERT, BERT_VOCABULARY = "google-bert/bert-base-cased", 28_996
VOCABULARIES = ("ag_news/vocab.txt", "bert-base-cased/vocab.txt")

Examples = list[tuple[str, int]]
"""Texts and labels of a split."""


@dataclass(kw_only=True)
class AgNews(FromSource):
    """Builder of the task; an example is the title and description of a news item, as tokens.

    Args:
        tokenizer: `wordpiece` is the tokenizer of bert-base-cased; its vocabulary is the file `vocab` if that is set,
            else a file in the data folder if there is one, else the file on the hub. `wordpiece_uncased` lower-cases
            the text first. `bpe` is trained on the training split. `auto` is `wordpiece` if `vocab` is set or the data
            folder has a vocabulary, else `bpe`; it never downloads a vocabulary.
        vocab: path of BERT's vocabulary file, or None.
        vocabulary: number of tokens of the BPE.
        head: number of tokens kept from the beginning of an item that is longer than head + tail.
        tail: number of tokens kept from the end of such an item.
        limit: maximum number of examples of each split, or None.
    """

    name = "ag_news"

    tokenizer: Literal["auto", "wordpiece", "wordpiece_uncased", "bpe"]
    vocab: str | None
    vocabulary: BpeVocabulary
    head: PositiveInt
    tail: NonNegativeInt
    limit: PositiveInt | None

    def __post_init__(self) -> None:
        if self.tokenizer == "wordpiece_uncased" and self.vocab is None:
            raise UserError("task.tokenizer=wordpiece_uncased: name its vocabulary with task.vocab=FILE")
        if self.vocab is not None and self.tokenizer == "bpe":
            raise UserError(f"task.vocab={self.vocab} is for WordPiece, but task.tokenizer=bpe; remove one of them")
        self._texts: dict[str, list[str]] = {}  # uncut texts of each split, for the baselines

    @property
    def _vocab_file(self) -> Path | None:
        """WordPiece vocabulary file: `vocab`, else the one in the data folder; None if there is neither, or for BPE."""
        if self.vocab is not None:
            return expanded(self.vocab, "task.vocab")
        return None if self.tokenizer == "bpe" else self.first(*VOCABULARIES)

    @property
    def _pieces(self) -> bool:
        """True if the tokenizer is WordPiece, False if it is BPE."""
        return self.tokenizer.startswith("wordpiece") or (self.tokenizer == "auto" and self._vocab_file is not None)

    @property
    def spec(self) -> TaskSpec:
        pieces, size = self._pieces, self.vocabulary
        if pieces:
            size = len(vocabulary_of(self._vocab_file)) if self._vocab_file else BERT_VOCABULARY
        notes = {
            PARTIAL_ROWS: self.data_config is not None and self.find().name == PARTIAL,
            "BPE" if size == BPE_VOCABULARY else f"BPE {size}": not pieces,
            f"{size} word pieces": pieces and size != BERT_VOCABULARY,
            "lower case": self.tokenizer == "wordpiece_uncased",
            f"length {self.head}+{self.tail}": (self.head, self.tail) != (HEAD, TAIL),
            f"limit {self.limit}": self.limit is not None,
        }
        return TaskSpec(
            name=titled(self.name, notes),
            version=VERSION,
            vocab_size=size,
            max_len=self.head + self.tail,
            classes=CLASSES,
        )

    def files(self) -> list[Path]:
        return [*super().files(), *([self._vocab_file] if self._vocab_file else [])]

    def identity(self) -> Identity:
        auto = "wordpiece" if self._pieces else "bpe"
        kind = auto if self.tokenizer == "auto" else self.tokenizer
        # The vocabulary's path is omitted: the SHA-256 of the file is added to these values, since `files` lists it.
        return {**super().identity(), "vocab": None, "tokenizer": kind}

    def find(self) -> Source:
        """Return the source: the official CSV files if they exist, else files with a part of train, else the hub."""
        for name, layout in (("the official CSV files", CSV_FILES), (PARTIAL, PARTIAL_FILES)):
            if files := self.together(layout):
                return of_splits(name, files, _of_file)

        def fetched() -> dict[str, Examples]:
            found = hub.rows(self.config, HUB, ROWS, wants=WANTS)
            return {split: [(row["text"], row["label"]) for row in found[split]] for split in found}

        return Source(name=f"the hub: {HUB}", read=fetched)

    def fill(self, source: Source, writers: dict[str, Writer], folder: Path) -> dict[str, Any]:
        if self.tokenizer == "auto" and not self._pieces:
            say(
                f"ag_news: no vocabulary of bert-base-cased found; using a BPE of {self.vocabulary} tokens "
                "(task.tokenizer=wordpiece fetches the vocabulary, task.vocab=FILE sets its path)"
            )
        examples_by_split = source.read()
        ordered, train = source.name != PARTIAL, examples_by_split["train"]
        if not ordered:  # not the official order: sort, so that train and val do not depend on the order of the file
            train = sorted(train, key=lambda item: hashlib.sha256(item[0].encode()).digest())
        cut = len(train) * 7 // 10
        splits = {"train": train[:cut], "val": train[cut:], "test": examples_by_split["test"]}
        for split, examples in splits.items():
            splits[split] = [examples[row] for row in limited(len(examples), self.limit, split)]
        self._texts = {split: [text for text, _ in examples] for split, examples in splits.items()}
        if self._pieces:
            wants = f"{VOCABULARIES[0]}, or choose task.tokenizer=bpe"
            vocab = self._vocab_file or hub.file(self.config, BERT, "vocab.txt", wants=wants)
            tokenizer = word_piece(vocab, lower_case=self.tokenizer == "wordpiece_uncased")
            tokenizer.save(str(folder / TOKENIZER))
        else:
            tokenizer = train_bpe(self._texts["train"], self.vocabulary, folder / TOKENIZER)
        for split, examples in splits.items():
            for (_, label), ids in zip(examples, encode(tokenizer, self._texts[split]), strict=True):
                writers[split].add(label, head_and_tail(ids, self.head, self.tail))
        return {
            "rows": {split: len(examples) for split, examples in examples_by_split.items()},
            "order": "official" if ordered else ORDERED_BY_DIGEST,
            "tokenizer": {
                "kind": "WordPiece" if self._pieces else "BPE",
                "size": self.spec.vocab_size,
                "sha256": sha256(folder / TOKENIZER),
            },
            "licence": LICENCE,
        }

    def baselines(self, splits: Splits) -> dict[str, float]:
        """Return test accuracies (percent) of the majority class and of a bag of words of the uncut texts."""
        train, test = splits["train"], splits["test"]
        return {
            "majority class": majority(train, test),
            "bag of words": bag_of_words(self._texts["train"], train.labels, self._texts["test"], test.labels),
        }

    def class_names(self) -> list[str]:
        return ["World", "Sports", "Business", "Sci/Tech"]

    def encode(self, text: str, tokenizer: Path) -> np.ndarray:
        return head_and_tail(next(encode(load(tokenizer), [text])), self.head, self.tail)


def _of_file(path: Path) -> Examples:
    """Return the examples of a file of JSON lines with label and text, or of an official CSV file.

    The columns of an official file are class index (1 to 4), title, description. Each line is a row, since line ends in
    texts are written as a backslash and n. Backslashes stay in the texts.
    """
    if ".csv" not in path.suffixes:
        rows = readers.json_rows(path, label=int, text=str)
        return [_example(where, row["label"], row["text"]) for where, row in rows]
    examples = []
    for where, line in readers.lines(path):
        try:
            # Line by line, as the format says, so that one unclosed quote mark cannot swallow the lines after it.
            label, title, description = next(csv.reader([line.decode()], strict=True))
            examples.append(_example(where, int(label) - 1, f"{title} {description}"))
        except (csv.Error, ValueError) as error:
            raise UserError(f"{where}: {error}; expected class index, title, description") from None
    return examples


def _example(where: str, label: int, text: str) -> tuple[str, int]:
    if label not in range(CLASSES):
        raise UserError(f"{where}: no class {label!s:.80}, expected {CLASSES} classes")
    return readers.checked_text(where, text), label
