"""Reader of labelled texts or token ids in CSV, TSV, JSON, Parquet and Arrow files.

Column names are matched without regard to case. Labels of a `datasets.ClassLabel` column are read as class names. CSV
is read with Python's `csv`, which reports the line of each row and refuses text after a closing quote mark; pyarrow and
pandas accept such text as part of the cell, or do not report the line.
"""

import csv
import json
import re
import sys
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from lra.core.errors import UserError
from lra.core.names import ENDS, split_end
from lra.datasets import readers

TEXT2 = "text2"
MAX_LABEL_CHARACTERS = 200
MAX_ID = 2**16 - 2  # ids are stored plus one as uint16, since 0 is padding
LINE_END = re.compile("\r\n|\r|\n")
REMEMBERED = 1_000  # maximum number of different first and last cells that `_check_quotes` compares with

Quotes = Literal["doubled", "escaped", "none"]
DIALECTS: dict[Quotes | None, dict[str, Any]] = {
    None: {},
    "doubled": {},
    "escaped": {"doublequote": False, "escapechar": "\\"},
    "none": {"quoting": csv.QUOTE_NONE},
}

Row = tuple[str, dict[str, Any]]
"""`file:line` of a row, and its values by column."""


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Names of the columns that are read.

    Args:
        text: column of the texts, or of lists of token ids; for pairs of the first text.
        text2: column of the second text of pairs. Under the default name `text2` files may lack this column.
        label: column of the classes, texts or whole numbers.
        header: names of all columns, in order, of CSV and TSV files without a header line; None if they have one.
        quotes: how quoted cells of CSV and TSV files hold a quote mark: `doubled`; `escaped` by a backslash; `none`: no
            cell is quoted. None reads like `doubled`, but refuses rows that may have been written without quoting.
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
    """One row: its `file:line`, its label, and one or two texts, or instead of texts token ids + 1 [L] uint16.

    The label is '' for an empty cell, and None for a null or for -1 in a `datasets.ClassLabel` column.
    """

    where: str
    label: str | None
    texts: tuple[str | np.ndarray, ...]


def parts_of(path: Path) -> tuple[str, str]:
    """Return the file name in lower case without extensions, and the extension of its format, '' if unknown."""
    stem, kind = split_end(path.name)
    return stem.lower(), kind


def examples(path: Path, columns: Columns) -> Iterator[Example]:
    """Yield the examples of a file with one of the suffixes in ENDS.

    Raises:
        UserError: a row is malformed, or the file has no rows.
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


def scan(path: Path, columns: Columns, max_classes: int) -> dict[str, Any]:
    """Return a summary of the rows of a file.

    Returns:
        `labels`: `file:line` of the first row with each label; `unlabelled`: number of rows whose label is None;
        `texts`: number of texts of a row; `largest`: largest token id or None; `columns`: names of all columns.
    """
    labels: dict[str, str] = {}
    unlabelled, texts, largest = 0, 0, None
    for example in examples(path, columns):
        texts = len(example.texts)
        if example.label is None:
            unlabelled += 1
        else:
            labels.setdefault(example.label, example.where)
        if len(labels) > max_classes:
            raise UserError(
                f"{example.where}: more than {max_classes:,} different labels; is {columns.label} the right column? "
                "task.max_classes=N allows more"
            )
        for ids in example.texts if columns.ids else ():
            largest = max(largest or 0, int(np.asarray(ids).max()) - 1)
    names = next((list(row) for _, row in _rows(path, columns)), [])
    return {"labels": labels, "unlabelled": unlabelled, "texts": texts, "largest": largest, "columns": names}


def ordered(labels: dict[str, str], exact: bool) -> list[str]:
    """Sort labels: by value if all are whole numbers, else alphabetically.

    Args:
        labels: `file:line` of the first row with each label.
        exact: accept labels that look alike, such as 1 and 1.0, or Pos and pos.

    Raises:
        UserError: there is only one label, or two look alike and `exact` is false.
    """
    spellings: dict[Decimal | str, str] = {}
    for label, where in labels.items():
        spelling = label if exact else spellings.setdefault(_normal(label), label)
        if spelling != label:
            raise UserError(
                f"{where}: label {label!r} looks like {spelling!r} of an earlier row; spell equal labels alike, or "
                "keep both as two classes with task.exact_labels=true"
            )
    if len(labels) < 2:
        [(label, where)] = labels.items()
        raise UserError(f"{where}: every label is {label!r}, expected at least two different ones")
    numbers = all(label.removeprefix("-").isdecimal() for label in labels)
    return sorted(labels, key=lambda label: (int(label), label)) if numbers else sorted(labels)


def _normal(label: str) -> Decimal | str:
    """Return a key that is equal for equal numbers, and for texts that differ in case or Unicode form alone."""
    text = unicodedata.normalize("NFKC", label).casefold()
    text = "".join(c for c in unicodedata.normalize("NFKC", text) if unicodedata.category(c) not in ("Cc", "Cf"))
    try:
        return Decimal(text)
    except InvalidOperation:
        return " ".join(text.split())


# ---------------------------------------------------------------- cells


def _column(row: dict[str, Any], name: str) -> str | None:
    """Return the column of the row with this name, else the only one whose `bare` name is equal, else None."""
    if name in row:
        return name
    matches = [column for column in row if bare(column) == bare(name)]
    return matches[0] if len(matches) == 1 else None


def _value(where: str, row: dict[str, Any], name: str) -> Any:
    column = _column(row, name)
    if column is None:
        found = ", ".join(map(str.strip, row))
        advice = "task.text=NAME and task.label=NAME name columns; task.data={train: FILE} leaves other files out"
        if len(row) == 1 and re.search("[,;|\t]", found):
            advice = "columns are separated by commas in .csv, by tabs in .tsv"
        raise UserError(f"{where}: no column {name!r}, found {found}; {advice}")
    return row[column]


def _content(where: str, value: Any, columns: Columns) -> str | np.ndarray:
    """Return the cell's text, or its token ids + 1."""
    if columns.ids:
        return _ids(where, value, columns.padding)
    if not isinstance(value, str):
        advice = "; task.tokens=ids reads lists of token ids" if isinstance(value, list) else ""
        raise UserError(f"{where} is {value!r:.80}, expected a text{advice}")
    return readers.checked_text(where, value)


def _ids(where: str, value: Any, padding: int | None) -> np.ndarray:
    if not isinstance(value, list) or not all(type(item) is int and 0 <= item <= MAX_ID for item in value):
        raise UserError(f"{where} is {value!r:.80}, expected a list of token ids from 0 to {MAX_ID:,}")
    ids = np.array(value, dtype=np.uint16)
    if padding is not None:
        kept = np.flatnonzero(ids != padding)
        ids = ids[kept[0] : kept[-1] + 1] if len(kept) else ids[:0]
    if not len(ids):
        raise UserError(f"{where} has no token ids")
    return ids + np.uint16(1)


def _label(where: str, value: Any) -> str | None:
    """Return the text or whole number of a label cell as text; None for a null."""
    if value is None or value != value:  # pandas stores missing numbers as NaN
        return None
    if isinstance(value, float) and value.is_integer():  # pandas stores whole numbers as floats if some are missing
        value = int(value)
    if not isinstance(value, str | int):
        raise UserError(f"{where} is {value!r:.80}, expected a text or a whole number")
    label = str(value).strip()
    if len(label) > MAX_LABEL_CHARACTERS:
        raise UserError(f"{where} has {len(label):,} characters; is that the right column?")
    return label and readers.checked_text(where, label)


# ---------------------------------------------------------------- formats


def _rows(path: Path, columns: Columns) -> Iterator[Row]:
    """Yield the rows of a file, with column names as the file spells them."""
    kind = parts_of(path)[1]
    if kind in (".csv", ".tsv"):
        return _csv_rows(path, "," if kind == ".csv" else "\t", columns)
    if kind in (".json", ".jsonl"):
        return readers.json_rows(path)
    if kind:
        return _arrow_rows(path, kind)
    raise UserError(f"{path}: expected a file that ends in {', '.join(ENDS)}")


def _csv_rows(path: Path, delimiter: str, columns: Columns) -> Iterator[Row]:
    """Yield the rows of a CSV or TSV file; unless `columns.header` is given, the first row is the header.

    The line number of a row is that of its first line. Blank lines are skipped.
    """
    names = columns.header and _distinct(path, columns.header)
    firsts, lasts, end = set[str](), set[str](), 0
    csv.field_size_limit(sys.maxsize)
    readers.check_is_text(path)
    with readers.opened(path, "rt", encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, delimiter=delimiter, strict=True, **DIALECTS[columns.quotes])
        try:
            for cells in reader:
                start, end = end + 1, reader.line_num
                where = f"{path}:{start}"
                if not cells:
                    continue
                if names is None:
                    names = _distinct(path, cells)
                    continue
                if len(cells) != len(names):
                    raise UserError(f"{where}: expected {len(names)} columns: {', '.join(names)}; found {len(cells)}")
                if bare(cells[0]) in map(bare, names) and sorted(map(bare, cells)) == sorted(map(bare, names)):
                    raise UserError(
                        f"{where}: a header; remove this line, and leave task.columns null if the file begins with it"
                    )
                if columns.quotes is None:
                    _check_quotes(where, cells, delimiter, end > start, firsts, lasts)
                    if len(firsts) < REMEMBERED and len(lasts) < REMEMBERED:
                        firsts.add(cells[0])
                        lasts.add(cells[-1])
                yield where, dict(zip(names, cells, strict=True))
        except csv.Error as error:
            raise UserError(
                f"{path}:{end + 1}: not CSV: {error}; task.quotes=none reads quote marks as text, task.quotes=escaped "
                'reads \\" as a quote mark'
            ) from None


def _distinct(path: Path, header: Iterable[str]) -> tuple[str, ...]:
    names = tuple(map(str.strip, header))
    named = [name for name in names if name]  # spreadsheets export empty columns without a name
    if len(set(named)) < len(named):
        raise UserError(f"{path}: two columns have the same name: {', '.join(names)}")
    return names


def bare(name: str) -> str:
    """Return a column name without case, outer blanks, quote marks and byte-order mark, which joined files contain."""
    return name.strip('\ufeff" ').casefold()


def _check_quotes(
    where: str, cells: list[str], delimiter: str, several_lines: bool, firsts: set[str], lasts: set[str]
) -> None:
    """Raise UserError for a row that may come from a file without quoting, where a quote mark is part of the text.

    In such a file the parser joins all lines up to the next quote mark into one cell. Since quoted cells with line ends
    are common in CSV, a CSV row is refused only if each line of its cells looks like a row: it has as many cells, and
    all first cells are in `firsts` or all last cells in `lasts`, those of earlier rows.
    """
    joined = several_lines or (delimiter == "\t" and any(delimiter in cell for cell in cells))
    if joined and delimiter == ",":
        lines = [line.split(delimiter) for line in LINE_END.split(delimiter.join(cells))]
        known = {line[0] for line in lines} <= firsts or {line[-1] for line in lines} <= lasts
        joined = known and all(len(line) == len(cells) for line in lines)
    if joined:
        raise UserError(
            f"{where}: a quoted cell has a tab or a line end inside, or a quote mark is text; task.quotes=doubled "
            "reads quoted cells, task.quotes=none reads quote marks as text"
        )
    if any(cell[:1].isspace() and cell.lstrip()[:1] == '"' for cell in cells):
        raise UserError(
            f"{where}: a blank before a quote mark; remove it if the mark begins a quoted cell, else task.quotes=none "
            "reads both as text"
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
            info = json.loads((schema.metadata or {}).get(b"huggingface", b"{}")).get("info", {})
            names = {
                name: {-1: None, None: None, **dict(enumerate(feature["names"]))}
                for name, feature in info.get("features", {}).items()
                if isinstance(feature, dict) and feature.get("_type") == "ClassLabel"
            }
            rows = (row for batch in batches for row in batch.to_pylist())
            for number, row in enumerate(rows, start=1):
                where = f"{path}: row {number}"
                for column, known in names.items():
                    if row[column] not in known:
                        raise UserError(f"{where}: {column} is {row[column]}, expected 0 to {len(known) - 3}")
                    row[column] = known[row[column]]
                yield where, row
    except pa.ArrowException as error:
        raise UserError(f"{path}: not readable: {str(error).splitlines()[0]}") from None
