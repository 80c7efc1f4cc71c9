"""Sources of AG News and their readers."""

import csv
from collections.abc import Iterable, Iterator
from pathlib import Path

from lra.core.errors import UserError
from lra.data import hub, readers
from lra.data.from_source import Source, counted, first, of_splits, together
from lra.tasks import Place

CLASSES = 4
ROWS = {"train": 120_000, "test": 7_600}

ARCHIVES, PARTIAL, HUB = ("ag_news_csv.tgz", "ag_news_csv.tar.gz"), "ag_news_partial", "fancyzhx/ag_news"
SIZE = "31 MB"
WANTS = "train.csv and test.csv, or ag_news_csv.tgz, or ag_news/train and test as .jsonl[.xz] or .parquet (label, text)"
PLACES = ("", "ag_news/", "ag_news_csv/")  # below the data folder
CSV_LAYOUTS = [(f"{folder}train.csv{end}", f"{folder}test.csv{end}") for folder in PLACES for end in ("", ".xz")]
ROW_LAYOUTS = [
    (f"ag_news/train{end}", f"ag_news/test{end}") for end in (".jsonl", ".jsonl.xz", ".parquet", "-*.parquet")
]
PARTIAL_LAYOUT = (f"{PARTIAL}/train.partial.jsonl.xz", f"{PARTIAL}/test.csv.xz")

Examples = list[tuple[str, int]]
"""Texts and labels of a split."""


def find(place: Place) -> Source:
    """Return the first of: the official CSV files, their archive, JSONL or parquet files, a part of train, the hub.

    Its `read` returns the examples of train and test.
    """
    if files := together(place, CSV_LAYOUTS):
        return _of_files(place, "the official CSV files", files)
    if archive := first(place, *(folder + name for folder in PLACES for name in ARCHIVES)):
        return Source(
            name=archive.name,
            paths=[archive],
            read=lambda: {split: csv_examples(lines) for split, lines in _members(archive)},
            content=lambda: {"rows": counted(place, archive, _count)},
        )
    if files := together(place, ROW_LAYOUTS):
        return _of_files(place, "files of label and text", files)
    if files := together(place, [PARTIAL_LAYOUT]):
        return _of_files(place, PARTIAL, files)
    return Source(name=f"the hub: {HUB}", read=lambda: {split: _hub_examples(place, split) for split in ROWS})


def _of_files(place: Place, name: str, files: list[list[Path]]) -> Source:
    paths_of = dict(zip(ROWS, files, strict=True))
    return of_splits(place, name, paths_of, lambda: {split: _read_files(paths) for split, paths in paths_of.items()})


def _members(archive: Path) -> Iterator[tuple[str, Iterator[tuple[str, bytes]]]]:
    """Yield the split and the lines of train.csv and test.csv, in the archive's order."""
    for name, where, stream in readers.named_members(archive, [f"{split}.csv" for split in ROWS]):
        yield name.removesuffix(".csv"), readers.stream_lines(where, stream)


def _count(archive: Path) -> dict[str, int]:
    return {split: sum(1 for _ in lines) for split, lines in _members(archive)}


def _read_files(paths: list[Path]) -> Examples:
    if ".csv" in paths[0].suffixes:
        return csv_examples(readers.lines(paths[0]))
    rows = readers.rows(paths, label=int, text=str)
    return [_example(where, row["label"], row["text"]) for where, row in rows]


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
            fields = next(csv.reader([readers.decoded(where, line)], strict=True))
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
    return readers.checked_text(where, text), label
