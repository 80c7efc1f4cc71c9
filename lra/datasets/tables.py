"""Read labelled texts or token ids from CSV, TSV, JSON, Parquet and Arrow files.

CSV is read with Python's `csv`, which reports the line of each row and refuses text after a closing quote mark; pyarrow
and pandas accept such text as part of the cell, or do not report the line. Every CSV cell is text: 007 stays 007.
"""

import csv
import json
import sys
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from lra.core.errors import UserError
from lra.core.names import ENDS, split_end
from lra.datasets import readers

TEXT2 = "text2"  # default name of the column of second texts
MAX_ID = 2**16 - 2  # maximum token id: id + 1 is stored as uint16, since 0 is padding

Quotes = Literal["doubled", "escaped", "none"]
DIALECTS: dict[Quotes | None, dict[str, Any]] = {
    None: {},
    "doubled": {},
    "escaped": {"doublequote": False, "escapechar": "\\"},
    "none": {"quoting": csv.QUOTE_NONE},
}

Row = tuple[str, dict[str, Any]]
"""Location of a row in errors, such as `file:line`, and values of the row by column."""


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Names of the columns to read, and how to read their cells.

    Args:
        text: column of the texts or of lists of token ids; for pairs, column of the first text.
        text2: column of the second text of pairs. Under the default name `text2`, the column may be missing in a file.
        label: column of the classes, which are texts or whole numbers.
        header: names of all columns, in order, of CSV and TSV files without a header line; None if they have one.
        quotes: notation of a quote mark inside a quoted cell of CSV and TSV files: `doubled`, or `escaped` by a
            backslash; `none` means that no cell is quoted. None reads like `doubled`, but refuses rows that may have
            been written without quoting.
        ids: True if the text columns hold lists of token ids.
        padding: token id that is stripped from both ends of each list; None strips nothing.
    """

    text: str
    text2: str
    label: str
    header: tuple[str, ...] | None = None
    quotes: Quotes | None = None
    ids: bool = False
    padding: int | None = None


class Example(NamedTuple):
    """Row of a file: its location, its label, and one or two texts or arrays [L] uint16 of token ids + 1.

    The label is '' for an empty cell, and None for a null or for -1 in a `datasets.ClassLabel` column.
    """

    where: str
    label: str | None
    texts: tuple[str | np.ndarray, ...]


def examples(path: Path, columns: Columns) -> Iterator[Example]:
    """Yield the examples of a file with one of the suffixes in ENDS.

    Raises:
        UserError: a row is malformed.
    """
    kind = split_end(path.name)[1]
    if kind in (".csv", ".tsv"):
        rows = _csv_rows(path, "," if kind == ".csv" else "\t", columns)
    elif kind in (".json", ".jsonl"):
        rows = readers.json_rows(path)
    elif kind:
        rows = _arrow_rows(path, kind)
    else:
        raise UserError(f"{path}: expected a file that ends in {', '.join(ENDS)}")
    for where, row in rows:
        second = columns.text2 != TEXT2 or TEXT2 in row  # a column that the user has named is required
        names = [columns.text, columns.text2] if second else [columns.text]
        for name in (*names, columns.label):
            if name not in row:
                raise UserError(
                    f"{where}: no column {name!r}, found {', '.join(row)}; task.text=NAME and task.label=NAME name "
                    "columns; they are separated by commas in .csv, by tabs in .tsv"
                )
        read = _ids if columns.ids else _text
        texts = tuple(read(f"{where}: {name}", row[name], columns) for name in names)
        label, place = row[columns.label], f"{where}: {columns.label}"
        if not isinstance(label, str | int | None):
            raise UserError(f"{place} is {label!r:.80}, expected a text or a whole number")
        if label is not None:  # an accented letter has two encodings that look the same; NFC is one of them
            label = unicodedata.normalize("NFC", str(label).strip())
            label = label and readers.checked_text(place, label)
        yield Example(where, label, texts)


# ---------------------------------------------------------------- cells


def _text(where: str, value: Any, columns: Columns) -> str:
    """Return the text of a cell."""
    if not isinstance(value, str):
        advice = "; task.tokens=ids reads lists of token ids" if isinstance(value, list) else ""
        raise UserError(f"{where} is {value!r:.80}, expected a text{advice}")
    return readers.checked_text(where, value)


def _ids(where: str, value: Any, columns: Columns) -> np.ndarray:
    """Return an array [L] uint16: the token ids of a cell, each plus 1, without padding at the ends."""
    # `type`, because `isinstance` takes True for an int.
    if not isinstance(value, list) or not all(type(item) is int and 0 <= item <= MAX_ID for item in value):
        raise UserError(f"{where} is {value!r:.80}, expected a list of token ids from 0 to {MAX_ID:,}")
    ids = np.array(value, dtype=np.uint16)
    if columns.padding is not None:
        kept = np.flatnonzero(ids != columns.padding)
        ids = ids[kept[0] : kept[-1] + 1] if len(kept) else ids[:0]
    if not len(ids):
        raise UserError(f"{where} has no token ids")
    return ids + np.uint16(1)


# ---------------------------------------------------------------- formats


def _csv_rows(path: Path, delimiter: str, columns: Columns) -> Iterator[Row]:
    """Yield the rows of a CSV or TSV file; unless `columns.header` is given, the first row is the header.

    The line number of a row is the number of its first line. Blank lines are skipped.
    """
    names, end = columns.header, 0
    csv.field_size_limit(sys.maxsize)  # the default limit per cell, 131,072 characters, is shorter than a book
    # utf-8-sig: Excel begins a file with a byte order mark. newline="": `csv` must see the line ends inside of cells.
    with readers.opened(path, "rt", encoding="utf-8-sig", newline="") as file:
        # strict: text after a closing quote mark is an error, and not silently a part of the cell.
        reader = csv.reader(file, delimiter=delimiter, strict=True, **DIALECTS[columns.quotes])
        try:
            for cells in reader:
                where, end = f"{path}:{end + 1}", reader.line_num  # `line_num` is the last line of a quoted cell
                if not cells:
                    continue
                header = tuple(map(str.strip, cells))
                if names is None:
                    names = header
                    named = [name for name in names if name]  # spreadsheets export empty columns without a name
                    if len({*named}) < len(named):
                        raise UserError(f"{path}: two columns have the same name: {', '.join(names)}")
                    continue
                if len(cells) != len(names):
                    raise UserError(f"{where}: expected {len(names)} columns: {', '.join(names)}; found {len(cells)}")
                if header == names:
                    raise UserError(
                        f"{where}: the header again; remove this line or, if it is the first one, leave task.columns "
                        "null"
                    )
                if columns.quotes is None:
                    _check_quotes(where, cells, delimiter)
                yield where, dict(zip(names, cells, strict=True))
        except csv.Error as error:
            raise UserError(
                f"{path}:{end + 1}: not CSV: {error}; task.quotes=none reads quote marks as text, task.quotes=escaped "
                'reads \\" as a quote mark'
            ) from None


def _check_quotes(where: str, cells: list[str], delimiter: str) -> None:
    """Raise UserError for a row that may come from a file without quoting, where a quote mark is part of the text.

    In such a file the parser joins all lines up to the next quote mark into one cell. Such cells are refused only in
    TSV, because quoted cells with line ends are common in CSV.
    """
    if delimiter == "\t" and any(mark in cell for cell in cells for mark in "\t\r\n"):
        raise UserError(
            f"{where}: a quoted cell has a tab or a line end inside, or a quote mark is text; task.quotes=doubled "
            "reads quoted cells, task.quotes=none reads quote marks as text"
        )
    if any(cell[:1].isspace() and cell.lstrip()[:1] == '"' for cell in cells):
        raise UserError(
            f"{where}: a blank before a quote mark; remove it if the mark begins a quoted cell, else task.quotes=none "
            "reads the blank and the mark as text"
        )


def _arrow_rows(path: Path, kind: str) -> Iterator[Row]:
    """Yield the rows of a Parquet file, an Arrow file or an Arrow stream; `ClassLabel` numbers become class names."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with readers.opened(path) as file:
            if kind == ".parquet":
                parquet = pq.ParquetFile(file)
                schema, batches = parquet.schema_arrow, parquet.iter_batches()
            elif file.peek(6).startswith(b"ARROW1"):  # type: ignore[attr-defined]  # Arrow IPC files, also Feather
                arrow = pa.ipc.open_file(file)
                schema, batches = arrow.schema, map(arrow.get_batch, range(arrow.num_record_batches))
            else:  # the stream format that `datasets` writes
                batches = pa.ipc.open_stream(file)
                schema = batches.schema
            # `datasets` keeps its features, with the names of the classes, in the metadata of the schema.
            info = json.loads((schema.metadata or {}).get(b"huggingface", b"{}")).get("info", {})
            classes = {
                name: dict(enumerate(feature["names"]))  # without -1, which stands for a hidden label
                for name, feature in info.get("features", {}).items()
                if isinstance(feature, dict) and feature.get("_type") == "ClassLabel"
            }
            # Convert batch by batch, because Python objects need several times the memory of Arrow's arrays.
            for number, row in enumerate((row for batch in batches for row in batch.to_pylist()), start=1):
                yield f"{path}: row {number}", row | {name: classes[name].get(row[name]) for name in classes}
    except pa.ArrowException as error:
        raise UserError(f"{path}: not readable: {str(error).splitlines()[0]}") from None
