"""Matching: predict whether one paper cites the other, from the bytes of both texts; 0 is no, 1 is yes.

Source:
    Data: the ACL Anthology Network (Radev et al. 2013). Task: Long Range Arena (Tay et al. 2021).
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from lra.core.errors import UserError
from lra.datasets import hub, readers
from lra.datasets.baselines import Overlap, majority, pair_cosine
from lra.datasets.builder import Source, of_splits
from lra.datasets.cache import Splits, Writer
from lra.datasets.groups import Group, by_size, sampled
from lra.datasets.tokenise import byte_ids, text_of
from lra.tasks import Split, Task
from lra.tasks.text import ByteTexts

LABELS = {"0": 0, "1": 1, "0.0": 0, "1.0": 1}  # LRA's files have 0.0 and 1.0
FILE_SPLITS = {"train": "train", "val": "eval", "test": "test"}  # names of the splits in file names

Pair = tuple[int, bytes, bytes]
"""A label and two texts."""


class Pairs(ByteTexts):
    """Base class of builders of tasks with pairs of texts, in the order of the files."""

    texts = 2
    licence: ClassVar[str]

    def fill(self, source: Source, writers: dict[str, Writer], folder: Path) -> dict[str, Any]:
        rows = Counter[str]()

        def encoded(split: str, pairs: Iterable[Pair]) -> Iterator[tuple]:
            for label, *texts in pairs:
                rows[split] += 1
                yield label, *(byte_ids(text, self.max_length) for text in texts)

        for split, pairs in source.read().items():  # one pair at a time, since files have several GB
            for example in sampled(encoded(split, pairs), self.limit, split):
                writers[split].add(*example)
        return {"rows": rows, "licence": self.licence}

    def baselines(self, splits: Splits) -> dict[str, float]:
        """Return test accuracies (percent) of the majority class and of the cosine of the two documents."""
        train, test = splits["train"], splits["test"]
        return {"majority class": majority(train, test), "cosine of bag of words": pair_cosine(train, test)}

    def groups(self, split: Split) -> dict[str, Group]:
        overlap = Overlap(split)(split, np.arange(len(split)))
        return {"overlap (%)": by_size(np.rint(100 * overlap).astype(np.int64)), **super().groups(split)}


class Matching(Pairs):
    """Builder of a task with Long Range Arena's pairs, new_aan_pairs.{train,eval,test}.tsv of lra_release.gz.

    The files have no header; a line is label, id1, id2, text1, text2. Quotes are ordinary bytes. Texts are used as they
    are in the files: Python literals of byte strings, b'...', with their escapes.
    """

    name = "matching"
    licence = "none stated in the archive; papers of the ACL Anthology Network, cite Radev et al. 2013"

    # folders below the data folder, depending on how the archive was unpacked
    FOLDERS = ("tsv_data", "lra_release/tsv_data", "lra_release/lra_release/tsv_data")

    def find(self) -> Source:
        layouts = [
            {split: f"{folder}/new_aan_pairs.{part}.tsv" for split, part in FILE_SPLITS.items()}
            for folder in self.FOLDERS
        ]
        files = self.together(*layouts)
        if not files:
            raise hub.missing_data_error(
                self.config,
                "the AAN pairs of Long Range Arena",
                wants="tsv_data of the unpacked lra_release.gz (7.7 GB); or use the smaller task=acl_matching",
                reason="they are not on the Hugging Face hub",
            )
        return of_splits(files["train"].name, files, _pairs_of)

    def export(self, task: Task, folder: Path) -> None:
        """Write tsv_data/new_aan_pairs.*.tsv with truncated texts; a paper's id is the index of its stored document."""
        (folder / "tsv_data").mkdir()
        for split, part in FILE_SPLITS.items():
            examples: Split = getattr(task, split)
            with open(folder / "tsv_data" / f"new_aan_pairs.{part}.tsv", "wb") as file:
                for row, label in enumerate(examples.labels.tolist()):
                    ids = examples.index[2 * row : 2 * row + 2]
                    texts = [text_of(document) for document in examples.stored(ids)]
                    file.write(b"\t".join([b"%.1f" % label, *(b"%d" % number for number in ids), *texts]) + b"\n")


def _pairs_of(path: Path) -> Iterator[Pair]:
    for where, line in readers.lines(path):
        label, _, _, *texts = fields_of(where, line, 5)
        if not all(texts):
            raise UserError(f"{where}: an empty text, expected a document")
        yield label_of(where, label.decode(errors="backslashreplace")), texts[0], texts[1]


def fields_of(where: str, line: bytes, count: int) -> list[bytes]:
    """Return the fields of a line of a tab-separated file; raise UserError unless it has `count` fields."""
    fields = line.split(b"\t")
    if len(fields) != count:
        raise UserError(f"{where}: {len(fields)} tab-separated fields, expected {count}")
    return fields


def label_of(where: str, label: str) -> int:
    """Return the label 0 or 1, which may be written as 0.0 or 1.0; raise UserError for any other text."""
    if label not in LABELS:
        raise UserError(f"{where}: label {label!r:.80}, expected 0 or 1")
    return LABELS[label]
