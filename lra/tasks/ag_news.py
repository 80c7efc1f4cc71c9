"""AG News: the topic of a news item, its title and description; World, Sports, Business, Sci/Tech.

Data: Zhang, Zhao and LeCun 2015, 120,000 items for training and 7,600 for test. The first seven tenths of train are
trained on and the rest validates, as SimpleTRON's authors do.
"""

import csv
import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import NonNegativeInt, PositiveInt

from lra.console import say
from lra.errors import UserError
from lra.tasks import Builder, Facts, Place, Task, fingerprints, sources, titled
from lra.tasks.baselines import bag_of_words, majority
from lra.tasks.sampling import limited
from lra.tasks.storage import NUL, Splits, Writer, prepared
from lra.tasks.tokenise import TOKENIZER, BpeVocabulary, encode, head_and_tail, train_bpe, vocabulary_of, word_piece

if TYPE_CHECKING:
    from tokenizers import Tokenizer

VERSION = 1
CLASSES = 4
ROWS = {"train": 120_000, "test": 7_600}
HEAD, TAIL = 128, 384
BPE_VOCABULARY = 8_000
BATCH = 1_000  # texts that are encoded at once

ARCHIVES, PARTIAL, HUB = ("ag_news_csv.tgz", "ag_news_csv.tar.gz"), "ag_news_partial", "fancyzhx/ag_news"
SIZE = "31 MB"
WANTS = "train.csv and test.csv, or ag_news_csv.tgz, or ag_news/train and test as .jsonl[.xz] or .parquet (label, text)"
LICENCE = "non-commercial research; cite Zhang, Zhao and LeCun 2015"
PLACES = ("", "ag_news/", "ag_news_csv/")  # below the data folder
CSV_LAYOUTS = [(f"{folder}train.csv{end}", f"{folder}test.csv{end}") for folder in PLACES for end in ("", ".xz")]
ROW_LAYOUTS = [
    (f"ag_news/train{end}", f"ag_news/test{end}") for end in (".jsonl", ".jsonl.xz", ".parquet", "-*.parquet")
]
PARTIAL_LAYOUT = (f"{PARTIAL}/train.partial.jsonl.xz", f"{PARTIAL}/test.csv.xz")
ORDERED_BY_DIGEST = "by SHA-256 of the text: the source has not the official order"

BERT, BERT_VOCABULARY, BERT_SIZE = "google-bert/bert-base-cased", 28_996, "213 kB"
VOCABULARIES = ("ag_news/vocab.txt", "bert-base-cased/vocab.txt")

Examples = list[tuple[str, int]]
"""Texts and labels of a split."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where the items are: its name, its files (none for the hub), and a way to read train and test."""

    name: str
    files: list[Path]
    read: Callable[[], dict[str, Examples]]
    ordered: bool = True  # as the official files are

    def splits(self) -> dict[str, Examples]:
        """Train, validation and test."""
        read = self.read()
        train = read["train"] if self.ordered else sorted(read["train"], key=lambda item: _digest(item[0]))
        cut = len(train) * 7 // 10
        return {"train": train[:cut], "val": train[cut:], "test": read["test"]}


class AgNews(Builder):
    """Title and description in tokens; of a longer item the first `head` and the last `tail`.

    `tokenizer`: `wordpiece` is that of bert-base-cased, its vocabulary from the file `vocab`, else from the data
    folder, else from the hub; `bpe` is trained on the training split to `vocabulary` tokens; `auto` takes word pieces
    where their vocabulary is at hand and never fetches it; `wordpiece_uncased` lower-cases the text first.
    `limit`: at most this many examples of each split.
    """

    def __init__(
        self,
        *,
        tokenizer: Literal["auto", "wordpiece", "wordpiece_uncased", "bpe"],
        vocab: str | None,
        vocabulary: BpeVocabulary,
        head: PositiveInt,
        tail: NonNegativeInt,
        limit: PositiveInt | None,
    ) -> None:
        if tokenizer == "wordpiece_uncased" and vocab is None:
            raise UserError("task.tokenizer=wordpiece_uncased: name its vocabulary with task.vocab=FILE")
        if vocab is not None and tokenizer == "bpe":
            raise UserError(f"task.vocab={vocab} is of word pieces, but task.tokenizer=bpe; leave one of them out")
        self.tokenizer = tokenizer
        self.vocab = Path(vocab).expanduser() if vocab is not None else None
        self.vocabulary = vocabulary
        self.head, self.tail = head, tail
        self.limit = limit

    @property
    def facts(self) -> Facts:
        """With `tokenizer=auto` those of a BPE: what the data folder holds is known when the task is built."""
        return self._facts(self.vocab)

    def _pieces(self, vocab: Path | None) -> bool:
        """Whether the tokens are word pieces, given the vocabulary at hand."""
        return self.tokenizer.startswith("wordpiece") or (self.tokenizer == "auto" and vocab is not None)

    @property
    def _case(self) -> dict[str, bool]:
        """What a tokenizer that lower-cases adds to the identity of a cache."""
        return {"lower_case": True} if self.tokenizer == "wordpiece_uncased" else {}

    def _facts(self, vocab: Path | None) -> Facts:
        size = self.vocabulary
        if self._pieces(vocab):
            size = len(vocabulary_of(vocab)) if vocab else BERT_VOCABULARY
        return Facts(
            name=self._name([], self._pieces(vocab), size),
            version=VERSION,
            vocab_size=size,
            max_len=self.head + self.tail,
            classes=CLASSES,
            documents=1,
        )

    def _name(self, notes: list[str], pieces: bool, size: int) -> str:
        """`ag_news` for the published data as the authors read them; other data say in what they differ."""
        own = list(notes)
        if not pieces:
            own.append("BPE" if size == BPE_VOCABULARY else f"BPE {size}")
        elif size != BERT_VOCABULARY:
            own.append(f"{size} word pieces")
        if self._case:
            own.append("lower case")
        if (self.head, self.tail) != (HEAD, TAIL):
            own.append(f"length {self.head}+{self.tail}")
        if self.limit is not None:
            own.append(f"limit {self.limit}")
        return titled("ag_news", own)

    def build(self, place: Place) -> Task:
        source = find(place)
        vocab = None if self.tokenizer == "bpe" else self.vocab or sources.find(place, *VOCABULARIES)
        facts, pieces = self._facts(vocab), self._pieces(vocab)
        if self.tokenizer == "auto" and not pieces:
            say(
                f"ag_news: no vocabulary of bert-base-cased at hand, so a BPE of {self.vocabulary} tokens; "
                "for word pieces: task.tokenizer=wordpiece fetches it, task.vocab=FILE names it"
            )
        stamps = fingerprints.stamps(place, source.files)
        identity = {
            "task": "ag_news",
            "version": VERSION,
            "tokenizer": {"pieces": sources.sha256(self.vocab) if self.vocab else None, **self._case}
            if pieces
            else {"bpe": self.vocabulary},
            "head": self.head,
            "tail": self.tail,
            "limit": self.limit,
            "raw": _raw(stamps, None if self.vocab else vocab),
        }
        texts: dict[str, list[str]] = {}

        def make(writers: dict[str, Writer], staging: Path) -> dict[str, Any]:
            splits = source.splits()
            rows = {"train": len(splits["train"]) + len(splits["val"]), "test": len(splits["test"])}
            nul = sum("\0" in text for examples in splits.values() for text, _ in examples)
            for split, examples in splits.items():
                splits[split] = [examples[row] for row in limited(len(examples), self.limit, split)]
                texts[split] = [text for text, _ in splits[split]]
            tokenizer = self._tokenizer(place, pieces, vocab, texts["train"], staging / TOKENIZER)
            self._write(writers, splits, tokenizer, place)
            return {
                "from": source.name,
                "sha256": fingerprints.confirmed(place, source.files, stamps),
                "rows": rows,
                NUL: nul,
                "order": "official" if source.ordered else ORDERED_BY_DIGEST,
                "tokenizer": {
                    "kind": "WordPiece" if pieces else "BPE",
                    "size": facts.vocab_size,
                    "sha256": sources.sha256(staging / TOKENIZER),
                },
                "licence": LICENCE,
            }

        def baselines(splits: Splits) -> dict[str, float]:
            train, test = splits["train"], splits["test"]
            return {
                "majority class": majority(train, test),
                "bag of words": bag_of_words(texts["train"], train.labels, texts["test"], test.labels),
            }

        task = prepared(place, facts, identity, make, baselines)
        size, rows = task.source["tokenizer"]["size"], task.source["rows"]
        notes = [_count(rows[split], split) for split in ROWS if rows[split] != ROWS[split]]
        return replace(task, name=self._name(notes, pieces, size), vocab_size=size)

    def _tokenizer(self, place: Place, pieces: bool, vocab: Path | None, train: list[str], path: Path) -> "Tokenizer":
        """The tokenizer, saved as `path`."""
        if not pieces:
            return train_bpe(train, self.vocabulary, path)
        wants = f"{VOCABULARIES[0]}, or choose task.tokenizer=bpe"
        tokenizer = word_piece(
            vocab or sources.hub_file(place, BERT, "vocab.txt", size=BERT_SIZE, wants=wants),
            lower_case=bool(self._case),
        )
        if vocab is None and tokenizer.get_vocab_size() != BERT_VOCABULARY:
            raise UserError(f"vocab.txt of {BERT}: {tokenizer.get_vocab_size()} tokens, expected {BERT_VOCABULARY}")
        tokenizer.save(str(path))
        return tokenizer

    def _write(
        self, writers: dict[str, Writer], splits: dict[str, Examples], tokenizer: "Tokenizer", place: Place
    ) -> None:
        done, total = 0, sum(map(len, splits.values()))
        for split, examples in splits.items():
            for start in range(0, len(examples), BATCH):
                batch = examples[start : start + BATCH]
                for (_, label), ids in zip(batch, encode(tokenizer, [text for text, _ in batch]), strict=True):
                    writers[split].add(label, head_and_tail(ids, self.head, self.tail))
                done += len(batch)
                place.progress(done, total)


def find(place: Place) -> Source:
    """The first of: the official CSV files, their archive, JSON-lines or parquet files, a part of train, the hub."""
    if files := _find_files(place, CSV_LAYOUTS):
        return _of_files("the official CSV files", files)
    if archive := sources.find(place, *(folder + name for folder in PLACES for name in ARCHIVES)):
        return Source(name=archive.name, files=[archive], read=lambda: _read_archive(archive))
    if files := _find_files(place, ROW_LAYOUTS):
        return _of_files("files of label and text", files)
    if files := _find_files(place, [PARTIAL_LAYOUT]):
        return replace(_of_files(PARTIAL, files), ordered=False)
    return Source(name=f"the hub: {HUB}", files=[], read=lambda: _read_hub(place))


def _find_files(place: Place, layouts: list[tuple[str, str]]) -> dict[str, list[Path]] | None:
    """The files of train and test in the first of the layouts that has train."""
    for layout in layouts if place.data_dir else []:
        train, test = (sorted(place.data_dir.glob(pattern)) for pattern in layout)
        if train and not test:
            raise UserError(f"{place.data_dir / layout[1]}: no such file; it belongs beside {train[0].name}")
        if train:
            return {"train": train, "test": test}
    return None


def _of_files(name: str, files: dict[str, list[Path]]) -> Source:
    return Source(
        name=name,
        files=[path for paths in files.values() for path in paths],
        read=lambda: {split: _read_files(paths) for split, paths in files.items()},
    )


def _raw(stamps: list[fingerprints.Stamp], vocab: Path | None) -> dict[str, Any] | None:
    """What the identity of a cache says of the files that were found: data, and a vocabulary that nobody named."""
    if not stamps and vocab is None:
        return None
    return {"data": stamps, "vocab": sources.sha256(vocab) if vocab else None}


def _read_files(paths: list[Path]) -> Examples:
    if ".csv" in paths[0].suffixes:
        return csv_examples(sources.lines(paths[0]))
    fields = {"label": int, "text": str}
    if paths[0].suffix == ".parquet":
        rows = sources.columnar_rows(paths, **fields)
    else:
        rows = sources.json_rows(paths[0], **fields)
    return [_example(where, row["label"], row["text"]) for where, row in rows]


def _read_archive(path: Path) -> dict[str, Examples]:
    """train.csv and test.csv, in whichever order they come; every member is looked at."""
    read = {}
    for name, stream in sources.members(path, lambda name: True):
        split = name.rpartition("/")[2].removesuffix(".csv")
        if split in ROWS:
            read[split] = csv_examples(sources.stream_lines(f"{path}: {name}", stream))
    for split in ROWS:
        if split not in read:
            raise UserError(f"{path}: no member {split}.csv; fetch the archive again")
    return read


def _read_hub(place: Place) -> dict[str, Examples]:
    read = {}
    for split in ROWS:
        rows = sources.hub(place, HUB, split=split, size=SIZE, wants=WANTS)
        read[split] = [
            _example(f"{HUB}: {split}: row {number}", row["label"], row["text"])
            for number, row in enumerate(rows, start=1)
        ]
    return read


def csv_examples(lines: Iterable[tuple[str, bytes]]) -> Examples:
    """Of the official files: class index (1 to 4), title, description; quotes inside a field are doubled.

    A row is a line, for line ends are written as backslash and n. Backslashes stay as they are.
    """
    examples = []
    for where, line in lines:
        try:
            fields = next(csv.reader([line.decode()], strict=True))
        except UnicodeDecodeError as error:
            column = error.start + 1
            raise UserError(f"{where}: byte 0x{line[error.start]:02x} at column {column}, expected UTF-8") from None
        except csv.Error as error:
            raise UserError(f"{where}: not CSV: {error}") from None
        if len(fields) != 3:
            raise UserError(f"{where}: {len(fields)} columns, expected 3: class index, title, description")
        if fields[0] not in ("1", "2", "3", "4"):
            raise UserError(f"{where}: label {fields[0]!r:.80}, expected 1 to 4")
        examples.append(_example(where, int(fields[0]) - 1, f"{fields[1]} {fields[2]}"))
    return examples


def _example(where: str, label: int, text: str) -> tuple[str, int]:
    if label not in range(CLASSES):
        raise UserError(f"{where}: label {label!s:.80}, expected 0 to {CLASSES - 1}")
    return sources.checked_text(where, text), label


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _count(rows: int, split: str) -> str:
    """As names say it: 18.6k train."""
    return f"{rows / 1000:.1f}k {split}" if rows >= 1000 else f"{rows} {split}"
