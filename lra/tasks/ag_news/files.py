"""Sources of AG News and their readers."""

import csv
import io
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from lra.core.errors import UserError
from lra.data import hub, readers
from lra.data.from_source import Source, counted, first, of_splits, together
from lra.tasks import Place

CLASSES = 4
ROWS = {"train": 120_000, "test": 7_600}

ARCHIVE, PARTIAL, HUB = "ag_news_csv.tgz", "ag_news_partial", "fancyzhx/ag_news"
SIZE = "31 MB"
WANTS = f"{ARCHIVE}, or its folder ag_news_csv with train.csv and test.csv"
CSV_FILES = ("ag_news_csv/train.csv", "ag_news_csv/test.csv")
PARTIAL_FILES = (f"{PARTIAL}/train.partial.jsonl.xz", f"{PARTIAL}/test.csv.xz")

Examples = list[tuple[str, int]]
"""Texts and labels of a split."""


def find(place: Place) -> Source:
    """Return the first of: the official archive, its two files, a part of train, the hub.

    Its `read` returns the examples of train and test.
    """
    if archive := first(place, ARCHIVE, f"ag_news/{ARCHIVE}"):
        return Source(
            name=archive.name,
            files=[archive],
            read=lambda: {split: csv_examples(lines) for split, lines in _members(archive).items()},
            content=lambda: {"rows": counted(place, archive, _count)},
        )
    for name, layout in (("the official CSV files", CSV_FILES), (PARTIAL, PARTIAL_FILES)):
        if paths := together(place, layout):
            files = dict(zip(ROWS, paths, strict=True))
            return of_splits(place, name, files, partial(_read_files, files))
    return Source(name=f"the hub: {HUB}", read=lambda: {split: _hub_examples(place, split) for split in ROWS})


def _members(archive: Path) -> dict[str, Iterable[tuple[str, bytes]]]:
    """Lines of each split."""
    contents = readers.named_members(archive, *(f"{split}.csv" for split in ROWS))
    return {
        split: readers.numbered(f"{archive}: {split}.csv", io.BytesIO(data))
        for split, data in zip(ROWS, contents, strict=True)
    }


def _count(archive: Path) -> dict[str, int]:
    return {split: sum(1 for _ in lines) for split, lines in _members(archive).items()}


def _read_files(files: dict[str, Path]) -> dict[str, Examples]:
    return {split: _read_file(path) for split, path in files.items()}


def _read_file(path: Path) -> Examples:
    if ".csv" in path.suffixes:
        return csv_examples(readers.lines(path))
    return [_example(where, row["label"], row["text"]) for where, row in readers.json_rows(path, label=int, text=str)]


def _hub_examples(place: Place, split: str) -> Examples:
    rows = hub.rows(place, HUB, split=split, size=SIZE, wants=WANTS)
    if len(rows) != ROWS[split]:
        raise UserError(f"{HUB}: {len(rows):,} items in {split}, expected {ROWS[split]:,}")
    return [
        _example(f"{HUB}: {split}: row {number}", row["label"], row["text"]) for number, row in enumerate(rows, start=1)
    ]


def csv_examples(lines: Iterable[tuple[str, bytes]]) -> Examples:
    """Parse lines of the official files: class index (1 to 4), title, description; quotes inside a field are doubled.

    Every line is a row, since line ends are written as backslash and n. Backslashes are kept.

    Raises:
        UserError: a line is malformed.
    """
    examples = []
    for where, line in lines:
        try:
            label, title, description = next(csv.reader([readers.decoded(where, line)], strict=True))
            examples.append(_example(where, int(label) - 1, f"{title} {description}"))
        except (csv.Error, ValueError) as error:
            raise UserError(f"{where}: {error}; expected class index, title, description") from None
    return examples


def _example(where: str, label: int, text: str) -> tuple[str, int]:
    if label not in range(CLASSES):
        raise UserError(f"{where}: no class {label!s:.80}, expected {CLASSES} classes")
    return readers.checked_text(where, text), label
