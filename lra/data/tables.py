"""Labelled texts or token ids in CSV, TSV, JSON, Parquet, Arrow and NumPy files, row by row.

Column names are matched without regard to case. Labels of a `datasets.ClassLabel` column are read under their names.
"""

import csv
import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lra.core.errors import UserError, did_you_mean
from lra.core.files import opened, parse_json
from lra.data import readers

PACKED = (".xz", ".gz")  # of the first four kinds
KINDS = (".csv", ".tsv", ".jsonl", ".json", ".parquet", ".arrow", ".npz", ".npy")
TEXT2, MASK = "text2", "attention_mask"
MAX_LABELS = 1_000
MAX_LABEL_CHARACTERS = 200
MAX_ID = 2**16 - 2  # ids are stored plus one as uint16, since 0 is padding
BATCH_ROWS = 1_000

Fields = dict[str, Any]


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


@dataclass(frozen=True, kw_only=True)
class Example:
    """One row: its file and line, its label as text, and one text or two; or token ids + 1 [L] uint16."""

    where: str
    label: str
    texts: tuple[str | np.ndarray, ...]


def kind_of(path: Path) -> str:
    """Return the suffix in KINDS, without that of a compression.

    Raises:
        UserError: the file has another suffix.
    """
    suffixes = [suffix.lower() for suffix in path.suffixes[-2:]]
    packed = path.suffix.lower() in PACKED
    kind = "".join(suffixes[-2:-1] if packed else suffixes[-1:])
    if kind not in KINDS or (packed and kind not in KINDS[:4]):
        raise UserError(f"{path}: expected a file that ends in {', '.join(KINDS)}; the first four also with .xz or .gz")
    return kind


def header_of(path: Path, columns: Columns) -> list[str]:
    """Return the names of the columns of the first row."""
    return next((list(row) for _, row in _raw_rows(path, columns)), [])


def examples(path: Path, columns: Columns) -> Iterator[Example]:
    """Yield the examples of a file with one of the suffixes in KINDS.

    Raises:
        UserError: a row is malformed, or there is none.
    """
    wanted, optional = {"text": columns.text, "label": columns.label}, {MASK: MASK}
    (optional if columns.text2 == TEXT2 else wanted)["text2"] = columns.text2
    number_of_texts = 0
    for where, row in _rows(path, columns, wanted, optional):
        texts = [_content(where, getattr(columns, key), row[key], columns) for key in ("text", "text2") if key in row]
        if number_of_texts not in (0, len(texts)):
            raise UserError(f"{where}: {columns.text2} is in some rows only; give it to all rows or to none")
        number_of_texts = len(texts)
        if MASK in row and columns.ids and len(texts) == 1:
            texts = [_masked(where, row, columns)]
        label = _word(where, columns.label, row["label"])
        if len(label) > MAX_LABEL_CHARACTERS:
            raise UserError(f"{where}: a label of {len(label):,} characters; is {columns.label} the right column?")
        yield Example(where=where, label=label, texts=tuple(texts))
    if not number_of_texts:
        raise UserError(f"{path}: no rows, expected examples with {columns.text} and {columns.label}")


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
        for ids in example.texts:
            if isinstance(ids, np.ndarray):
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
            raise UserError(
                f"{where}: label {label!r:.80} is {spelling!r:.80} of an earlier row in another spelling; write equal "
                "labels alike"
            )
    if len(labels) < 2:
        [(label, where)] = labels.items()
        raise UserError(f"{where}: every label is {label!r:.80}, expected at least two different ones")
    numbers = all(label.removeprefix("-").isdecimal() for label in labels)
    return sorted(labels, key=int) if numbers else sorted(labels)


def _normal(label: str) -> str:
    """Spelling that equal labels share."""
    with suppress(ValueError):
        return repr(float(label))
    return label.casefold()


def _rows(
    path: Path, columns: Columns, wanted: dict[str, str], optional: dict[str, str]
) -> Iterator[tuple[str, Fields]]:
    """Yield (where, row) with the columns `wanted` and, where the file has them, `optional`, under their keys."""
    sources: dict[tuple[str, ...], dict[str, str]] = {}
    for where, row in _raw_rows(path, columns):
        header = tuple(row)
        if header not in sources:
            found = {key: _column(where, header, name) for key, name in {**wanted, **optional}.items()}
            for key, name in wanted.items():
                if found[key] is None:
                    remedy = f"task.{key}=NAME names the column"
                    raise UserError(f"{where}: no column {name!r}; {did_you_mean(name, header)}; {remedy}")
            sources[header] = {key: source for key, source in found.items() if source is not None}
        yield where, {key: row[source] for key, source in sources[header].items()}


def _column(where: str, header: tuple[str, ...], name: str) -> str | None:
    """Name in the header: the same, else the only one that differs in case alone."""
    matches = [column for column in header if column == name] or [
        column for column in header if column.strip().casefold() == name.casefold()
    ]
    if len(matches) > 1:
        raise UserError(f"{where}: columns {', '.join(matches)} are all {name!r}")
    return matches[0] if matches else None


def _raw_rows(path: Path, columns: Columns) -> Iterator[tuple[str, Fields]]:
    """Yield (where, row) under the names in the file."""
    kind = kind_of(path)
    if kind in (".parquet", ".arrow"):
        return _arrow_rows(path)
    if kind in (".npz", ".npy"):
        return _numpy_rows(path, columns)
    if kind == ".json":
        with readers.decompressed(path) as file:
            if readers.contents(str(path), file).lstrip()[:1] == b"[":
                return _array_rows(path)
    return readers.json_rows(path) if kind in (".json", ".jsonl") else _csv_rows(path, kind, columns.header)


def _csv_rows(path: Path, kind: str, header: tuple[str, ...] | None) -> Iterator[tuple[str, Fields]]:
    """Yield the rows of a CSV or TSV file, whose first row is the header unless there is one given."""
    names = None if header is None else _distinct("task.columns", list(header))
    for where, cells in _cells(path, "," if kind == ".csv" else "\t"):
        if names is None:
            names = _distinct(where, [name.strip() for name in cells])
        elif header is not None and [*map(_folded, cells)] == [*map(_folded, header)]:
            raise UserError(f"{where}: a header; task.columns is for files without one, leave it null")
        elif len(cells) != len(names):
            raise UserError(f"{where}: {len(cells)} columns, expected {len(names)}: {', '.join(names)}")
        else:
            yield where, dict(zip(names, cells, strict=True))


def _array_rows(path: Path) -> Iterator[tuple[str, Fields]]:
    """Yield the objects of a JSON file with one array."""
    with readers.decompressed(path) as file:
        try:
            rows = parse_json(readers.contents(str(path), file))
        except ValueError as error:
            raise UserError(f"{path}: not JSON: {error}") from None
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, dict):
            raise UserError(f"{path}: item {number}: {row!r:.80}, expected an object with fields")
        yield f"{path}: item {number}", row


def _arrow_rows(path: Path) -> Iterator[tuple[str, Fields]]:
    """Yield the rows of a Parquet file, or of an Arrow file of `datasets`."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with opened(path) as file:
            table = pq.ParquetFile(file) if kind_of(path) == ".parquet" else pa.ipc.open_stream(file)
            schema = getattr(table, "schema_arrow", None) or table.schema
            names = _class_names(schema)
            number = 0
            for batch in table.iter_batches(BATCH_ROWS) if isinstance(table, pq.ParquetFile) else table:
                for row in batch.to_pylist():
                    number += 1
                    where = f"{path}: row {number}"
                    for column, known in names.items():
                        if row[column] is not None and not 0 <= row[column] < len(known):
                            raise UserError(f"{where}: {column} is {row[column]}, expected 0 to {len(known) - 1}")
                        row[column] = None if row[column] is None else known[row[column]]
                    yield where, row
    except (pa.ArrowException, OSError) as error:
        raise readers.unreadable(str(path), error) from None


def _class_names(schema: Any) -> dict[str, list[str]]:
    """Names of the classes of each `ClassLabel` column, from the metadata that `datasets` writes."""
    info = json.loads((schema.metadata or {}).get(b"huggingface", b"{}")).get("info", {})
    features = {name: kind for name, kind in info.get("features", {}).items() if isinstance(kind, dict)}
    return {name: kind["names"] for name, kind in features.items() if kind.get("_type") == "ClassLabel"}


def _numpy_rows(path: Path, columns: Columns) -> Iterator[tuple[str, Fields]]:
    """Yield the rows of the arrays of an .npz file, or of NAME.npy with token ids and NAME_labels.npy beside it."""
    labels = path.with_name(f"{path.stem}_labels.npy")
    files = {columns.text: path, columns.label: labels} if kind_of(path) == ".npy" else {"": path}
    arrays: dict[str, np.ndarray] = {}
    for name, file in files.items():
        try:
            with opened(file) as stream:
                loaded = np.load(stream, allow_pickle=False)
                arrays |= {name: loaded} if name else dict(loaded)
        except (OSError, ValueError, EOFError) as error:
            raise UserError(f"{file}: not an array of NumPy without Python objects ({error})") from None
    if len({len(array) if array.ndim else None for array in arrays.values()}) != 1:
        shapes = ", ".join(f"{name} {list(array.shape)}" for name, array in arrays.items())
        raise UserError(f"{path}: arrays of different lengths: {shapes}")
    for number, row in enumerate(zip(*arrays.values(), strict=True), start=1):
        yield f"{path}: row {number}", {name: value.tolist() for name, value in zip(arrays, row, strict=True)}


def _distinct(where: str, names: list[str]) -> list[str]:
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UserError(f"{where}: two columns {twice!r}")
    return names


def _folded(name: str) -> str:
    return name.strip().casefold()


def _cells(path: Path, delimiter: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the rows of a CSV or TSV file, each named by its first line; a quoted cell may have line ends in it."""
    csv.field_size_limit(sys.maxsize)
    reader = csv.reader((f"{line}\n" for line in _decoded(path)), delimiter=delimiter, strict=True)
    first = 1
    while True:
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            open_quote = ": a quote is never closed" if "unexpected end" in str(error) else ""
            raise UserError(f"{path}:{first}: not {path.suffix[1:].upper()}: {error}{open_quote}") from None
        if cells:
            yield f"{path}:{first}", cells
        first = reader.line_num + 1


def _decoded(path: Path) -> Iterator[str]:
    """Yield lines without the byte-order mark that some programs write first."""
    for number, (where, line) in enumerate(readers.lines(path)):
        yield readers.decoded(where, line).removeprefix("" if number else "\ufeff")


def _content(where: str, name: str, value: Any, columns: Columns) -> str | np.ndarray:
    """Text, or token ids + 1."""
    if isinstance(value, list if columns.ids else str):
        return (
            _ids(where, name, value, columns.padding)
            if columns.ids
            else readers.checked_text(f"{where}: {name}", value)
        )
    remedy = "; task.tokens=ids reads lists of token ids" if isinstance(value, list) else ""
    expected = "a list of token ids (task.tokens=ids)" if columns.ids else f"a text{remedy}"
    raise UserError(f"{where}: {name} is {value!r:.80}, expected {expected}")


def _ids(where: str, name: str, value: list, padding: int | None) -> np.ndarray:
    wrong = next((item for item in value if type(item) is not int or not 0 <= item <= MAX_ID), None)
    if wrong is not None:
        raise UserError(f"{where}: {name} has {wrong!r:.80}, expected token ids from 0 to {MAX_ID:,}")
    ids = np.array(value, dtype=np.uint16)
    if padding is not None:
        ids = ids[: len(ids) - int(np.argmax(ids[::-1] != padding)) if (ids != padding).any() else 0]
    if not len(ids):
        raise UserError(f"{where}: {name} has no token ids")
    return ids + np.uint16(1)


def _masked(where: str, row: Fields, columns: Columns) -> np.ndarray:
    """Token ids where the attention mask is 1."""
    if not isinstance(row[MASK], list) or len(row[MASK]) != len(row["text"]):
        raise UserError(f"{where}: {MASK} is not a list as long as {columns.text}")
    kept = [item for item, real in zip(row["text"], row[MASK], strict=True) if real]
    return _ids(where, columns.text, kept, columns.padding)


def _word(where: str, name: str, value: Any) -> str:
    """Text or whole number, as text."""
    if isinstance(value, float) and value.is_integer():  # as pandas stores whole numbers beside missing ones
        value = int(value)
    if not isinstance(value, str | int) or not str(value).strip():
        raise UserError(f"{where}: {name} is {value!r:.80}, expected a text or a whole number")
    return readers.checked_text(f"{where}: {name}", str(value).strip())


def labels_of(scans: Iterable[dict[str, Any]]) -> dict[str, str]:
    """Return the labels of several files with the places of their first rows."""
    labels: dict[str, str] = {}
    for found in scans:
        labels = {**found["labels"], **labels}
    return labels
