"""Labelled texts or token ids in CSV, TSV, JSON, Parquet and Arrow files, row by row.

Column names are matched without regard to case. Labels of a `datasets.ClassLabel` column are read under their names.
"""

import csv
import json
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lra.core.errors import UserError
from lra.core.names import ENDS, split_end
from lra.data import readers

TEXT2 = "text2"
MAX_LABELS = 1_000
MAX_LABEL_CHARACTERS = 200
MAX_ID = 2**16 - 2  # ids are stored plus one as uint16, since 0 is padding

Row = tuple[str, dict[str, Any]]
"""File and line, and the values of a row by column."""


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Names of the columns that are read.

    Args:
        text: texts, or lists of token ids; of two texts the first.
        text2: the second text of a pair. A file needs it only if the name is not the usual `text2`.
        label: classes, as texts or whole numbers.
        header: all columns, in order, of CSV and TSV files without a header line; None if they have one.
        ids: the columns of texts hold lists of token ids.
        padding: token id that ends short rows and is left out; None if there is none.
    """

    text: str
    text2: str
    label: str
    header: tuple[str, ...] | None = None
    ids: bool = False
    padding: int | None = None


class Example(NamedTuple):
    """One row: its file and line, its label as text, and one text or two; or token ids + 1 [L] uint16."""

    where: str
    label: str
    texts: tuple[str | np.ndarray, ...]


def parts_of(path: Path) -> tuple[str, str]:
    """Return a name without its end, in small letters, and the kind of the file, or '' for another file."""
    stem, kind = split_end(path.name)
    return stem.lower(), kind


def examples(path: Path, columns: Columns) -> Iterator[Example]:
    """Yield the examples of a file with one of the suffixes in ENDS.

    Raises:
        UserError: a row is malformed, or there is none.
    """
    number_of_texts = 0
    for where, row in _rows(path, columns):
        names = [columns.text]
        if columns.text2 != TEXT2 or _column(row, TEXT2) is not None:
            names.append(columns.text2)
        texts = tuple(_content(f"{where}: {name}", _value(where, row, name), columns) for name in names)
        if number_of_texts not in (0, len(texts)):
            raise UserError(f"{where}: {columns.text2} is in some rows only; give it to all rows or to none")
        number_of_texts = len(texts)
        yield Example(where, _label(f"{where}: {columns.label}", _value(where, row, columns.label)), texts)
    if not number_of_texts:
        raise UserError(f"{path}: no rows, expected examples with {columns.text} and {columns.label}")


def header_of(path: Path, columns: Columns) -> list[str]:
    """Return the names of the columns of the first row."""
    return next((list(row) for _, row in _rows(path, columns)), [])


def scan(path: Path, columns: Columns) -> dict[str, Any]:
    """Return the place of each label's first row in `labels`, the number of `texts`, and the largest id or None."""
    labels: dict[str, str] = {}
    texts, largest = 0, None
    for example in examples(path, columns):
        texts = len(example.texts)
        labels.setdefault(example.label, example.where)
        if len(labels) > MAX_LABELS:
            raise UserError(
                f"{example.where}: more than {MAX_LABELS:,} different labels; is {columns.label} the right column?"
            )
        for ids in example.texts if columns.ids else ():
            largest = max(largest or 0, int(ids.max()) - 1)
    return {"labels": labels, "texts": texts, "largest": largest}


def ordered(labels: dict[str, str]) -> list[str]:
    """Sort labels, given with their places: whole numbers by value, other labels by the alphabet.

    Raises:
        UserError: there is one label only, or two are one in another spelling: 1 and 1.0, Pos and pos.
    """
    spellings: dict[str, str] = {}
    for label, where in labels.items():
        spelling = spellings.setdefault(_normal(label), label)
        if spelling != label:
            raise UserError(f"{where}: label {label!r} is {spelling!r} of an earlier row; write equal labels alike")
    if len(labels) < 2:
        [(label, where)] = labels.items()
        raise UserError(f"{where}: every label is {label!r}, expected at least two different ones")
    numbers = all(label.removeprefix("-").isdecimal() for label in labels)
    return sorted(labels, key=int) if numbers else sorted(labels)


def _normal(label: str) -> str:
    """Spelling that equal labels share."""
    with suppress(ValueError):
        return repr(float(label))
    return label.casefold()


# ---------------------------------------------------------------- cells


def _column(row: dict[str, Any], name: str) -> str | None:
    """Name of a column in the row: the same, else the only one that differs in case alone."""
    if name in row:
        return name
    matches = [column for column in row if _same(column, name)]
    return matches[0] if len(matches) == 1 else None


def _same(column: str, name: str) -> bool:
    """True if two names differ in case and outer blanks alone."""
    return column.strip().casefold() == name.strip().casefold()


def _value(where: str, row: dict[str, Any], name: str) -> Any:
    column = _column(row, name)
    if column is None:
        found = ", ".join(map(str.strip, row))
        raise UserError(f"{where}: no column {name!r}, found {found}; task.text=NAME and task.label=NAME name columns")
    return row[column]


def _content(where: str, value: Any, columns: Columns) -> str | np.ndarray:
    """Text, or token ids + 1."""
    if columns.ids:
        return _ids(where, value, columns.padding)
    if not isinstance(value, str):
        raise UserError(f"{where} is {value!r:.80}, expected a text; task.tokens=ids reads lists of token ids")
    return readers.checked_text(where, value)


def _ids(where: str, value: Any, padding: int | None) -> np.ndarray:
    if not isinstance(value, list) or not all(type(item) is int and 0 <= item <= MAX_ID for item in value):
        raise UserError(f"{where} is {value!r:.80}, expected a list of token ids from 0 to {MAX_ID:,}")
    ids = np.array(value, dtype=np.uint16)
    if padding is not None:
        ids = ids[: np.flatnonzero(ids != padding).max(initial=-1) + 1]
    if not len(ids):
        raise UserError(f"{where} has no token ids")
    return ids + np.uint16(1)


def _label(where: str, value: Any) -> str:
    """Text or whole number, as text."""
    if isinstance(value, float) and value.is_integer():  # as pandas stores whole numbers beside missing ones
        value = int(value)
    if not isinstance(value, str | int) or not str(value).strip():
        raise UserError(f"{where} is {value!r:.80}, expected a text or a whole number")
    label = readers.checked_text(where, str(value).strip())
    if len(label) > MAX_LABEL_CHARACTERS:
        raise UserError(f"{where} has {len(label):,} characters; is that the right column?")
    return label


# ---------------------------------------------------------------- formats


def _rows(path: Path, columns: Columns) -> Iterator[Row]:
    """Yield the rows of a file under the names in it."""
    kind = parts_of(path)[1]
    if kind in (".csv", ".tsv"):
        return _csv_rows(path, "," if kind == ".csv" else "\t", columns.header)
    if kind in (".json", ".jsonl"):
        return readers.json_rows(path)
    if kind:
        return _arrow_rows(path, kind)
    raise UserError(f"{path}: expected a file that ends in {', '.join(ENDS)}")


def _csv_rows(path: Path, delimiter: str, header: tuple[str, ...] | None) -> Iterator[Row]:
    """Yield the rows of a CSV or TSV file, whose first row is the header unless there is one given."""
    csv.field_size_limit(sys.maxsize)
    with readers.opened(path, "rt", encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file, header, delimiter=delimiter, strict=True)
        try:
            names = [name.strip() for name in reader.fieldnames or ()]
            if len(set(names)) < len(names):
                raise UserError(f"{path}: two columns have one name: {', '.join(names)}")
            for row in reader:
                where = f"{path}:{reader.line_num}"
                if None in row or None in row.values():
                    raise UserError(f"{where}: expected {len(names)} columns: {', '.join(names)}")
                if header is not None and all(_same(*cell) for cell in row.items()):
                    raise UserError(f"{where}: a header; task.columns is for files without one, leave it null")
                yield where, row
        except csv.Error as error:
            raise UserError(f"{path}:{reader.line_num + 1}: not CSV: {error}") from None


def _arrow_rows(path: Path, kind: str) -> Iterator[Row]:
    """Yield the rows of a Parquet file, or of an Arrow file of `datasets`, with the names of classes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with readers.opened(path) as file:
            table = pq.ParquetFile(file) if kind == ".parquet" else pa.ipc.open_stream(file)
            schema = table.schema_arrow if kind == ".parquet" else table.schema
            info = json.loads((schema.metadata or {}).get(b"huggingface", b"{}")).get("info", {})
            names = {
                name: feature["names"]
                for name, feature in info.get("features", {}).items()
                if isinstance(feature, dict) and feature.get("_type") == "ClassLabel"
            }
            batches = table.iter_batches() if kind == ".parquet" else table
            rows = (row for batch in batches for row in batch.to_pylist())
            for number, row in enumerate(rows, start=1):
                where = f"{path}: row {number}"
                for column, known in names.items():
                    if row[column] not in range(len(known)):
                        raise UserError(f"{where}: {column} is {row[column]}, expected 0 to {len(known) - 1}")
                    row[column] = known[row[column]]
                yield where, row
    except pa.ArrowException as error:
        raise UserError(f"{path}: not readable: {str(error).splitlines()[0]}") from None
