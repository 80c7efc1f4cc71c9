"""Labelled texts in CSV, TSV, JSON-lines and parquet files, row by row.

The columns are `text`, for pairs also `text2`, and `label`; others are ignored. Names are matched without regard to
case; `columns` maps other names to these, or lists the columns of a CSV or TSV file without a header.
"""

import csv
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from lra.core.errors import UserError, did_you_mean
from lra.data import readers

PACKED = (".xz", ".gz")
KINDS = (".csv", ".tsv", ".jsonl", ".parquet")
TEXT, TEXT2, LABEL, ID = "text", "text2", "label", "id"
MAX_LABELS = 1_000
MAX_LABEL_CHARACTERS = 200

Fields = dict[str, Any]
Columns = list[str] | dict[Literal["text", "text2", "label"], str] | None


@dataclass(frozen=True, kw_only=True)
class Example:
    """One row: its file and line, its label as text, and one text or two."""

    where: str
    label: str
    texts: tuple[str, ...]


def kind_of(path: Path) -> str:
    """Return the suffix in KINDS, without that of a compression.

    Raises:
        UserError: the file has another suffix.
    """
    suffixes = [suffix.lower() for suffix in path.suffixes[-2:]]
    packed = path.suffix.lower() in PACKED
    kind = "".join(suffixes[-2:-1] if packed else suffixes[-1:])
    if kind not in KINDS or (kind == ".parquet" and packed):
        raise UserError(
            f"{path}: expected a file that ends in {', '.join(KINDS)}, the first three also with .xz or .gz"
        )
    return kind


def examples(path: Path, columns: Columns) -> Iterator[Example]:
    """Yield the examples of a file.

    Args:
        path: a file with one of the suffixes in KINDS.
        columns: names of the columns, see the module.

    Raises:
        UserError: a row is malformed, or there is none.
    """
    places: tuple[str, ...] | None = None
    for where, row in _rows(path, columns, (TEXT, LABEL), (TEXT2,)):
        places = places or ((TEXT, TEXT2) if TEXT2 in row else (TEXT,))
        if (len(places) == 2) != (TEXT2 in row):
            raise UserError(f"{where}: {TEXT2} is in some rows only; give it to all rows or to none")
        label = _word(where, row, LABEL)
        if len(label) > MAX_LABEL_CHARACTERS:
            raise UserError(f"{where}: a {LABEL} of {len(label):,} characters; is {LABEL} the right column?")
        yield Example(where=where, label=label, texts=tuple(_text(where, row, name) for name in places))
    if places is None:
        raise UserError(f"{path}: no rows, expected examples with {TEXT} and {LABEL}")


def documents(path: Path) -> dict[str, str]:
    """Return the texts of a file with the columns `id` and `text` by their ids."""
    texts: dict[str, str] = {}
    for where, row in _rows(path, None, (ID, TEXT)):
        name = _word(where, row, ID)
        if name in texts:
            raise UserError(f"{where}: {ID} {name!r:.80} occurs in an earlier row")
        texts[name] = _text(where, row, TEXT)
    return texts


def scan(path: Path, columns: Columns) -> dict[str, Any]:
    """Return the `labels` of a training file in order and the number of `texts` per example.

    Raises:
        UserError: a row is malformed, all labels are equal, or two of them are one in another spelling.
    """
    spellings: dict[str, str] = {}
    texts = 0
    for example in examples(path, columns):
        texts = len(example.texts)
        spelling = spellings.setdefault(_normal(example.label), example.label)
        if spelling != example.label:
            raise UserError(
                f"{example.where}: label {example.label!r:.80} is {spelling!r:.80} of an earlier row in another "
                "spelling; write equal labels alike"
            )
        if len(spellings) > MAX_LABELS:
            raise UserError(f"{example.where}: more than {MAX_LABELS:,} different labels; is {LABEL} the right column?")
    labels = list(spellings.values())
    if len(labels) < 2:
        raise UserError(f"{path}: every {LABEL} is {labels[0]!r:.80}, expected at least two different ones")
    return {"labels": ordered(labels), "texts": texts}


def ordered(labels: Iterable[str]) -> list[str]:
    """Sort whole numbers by value, other labels by the alphabet."""
    labels = list(labels)
    numbers = all(label.removeprefix("-").isdecimal() for label in labels)
    return sorted(labels, key=int) if numbers else sorted(labels)


def _normal(label: str) -> str:
    """Spelling that equal labels share: 1, 01 and 1.0; Pos and pos."""
    with suppress(ValueError):
        return repr(float(label))
    return label.casefold()


def _rows(
    path: Path, columns: Columns, wanted: tuple[str, ...], optional: tuple[str, ...] = ()
) -> Iterator[tuple[str, Fields]]:
    """Yield (where, row) under the names `wanted` and, where a column has it, `optional`."""
    renamed = columns if isinstance(columns, dict) else {}
    sources: dict[tuple[str, ...], dict[str, str]] = {}
    for where, row in _raw_rows(path, columns if isinstance(columns, list) else None):
        header = tuple(row)
        if header not in sources:
            sources[header] = _sources(where, header, renamed, wanted, optional)
        yield where, {name: row[source] for name, source in sources[header].items()}


def _raw_rows(path: Path, columns: list[str] | None) -> Iterator[tuple[str, Fields]]:
    """Yield (where, row) under the names in the file, or `columns` for a CSV or TSV file."""
    kind = kind_of(path)
    if kind == ".parquet":
        yield from readers.parquet_rows([path])
    elif kind == ".jsonl":
        yield from readers.json_rows(path)
    else:
        header = None if columns is None else _distinct("task.columns", columns)
        for where, cells in _cells(path, "," if kind == ".csv" else "\t"):
            if header is None:
                header = _distinct(where, [name.strip() for name in cells])
            elif columns is not None and _folded(cells) == _folded(header):
                raise UserError(f"{where}: a header; a list task.columns is for files without one, leave it null")
            elif len(cells) != len(header):
                raise UserError(f"{where}: {len(cells)} columns, expected {len(header)}: {', '.join(header)}")
            else:
                yield where, dict(zip(header, cells, strict=True))


def _sources(
    where: str, header: tuple[str, ...], renamed: dict[str, str], wanted: tuple[str, ...], optional: tuple[str, ...]
) -> dict[str, str]:
    """Column of the header for each name: that in `renamed`, else the only one that differs in case alone."""
    sources = {}
    for name in (*wanted, *optional):
        source = renamed.get(name, name)
        matches = [column for column in header if column == source] or [
            column for column in header if column.strip().casefold() == source.casefold()
        ]
        if len(matches) > 1:
            raise UserError(f"{where}: columns {', '.join(matches)} are all {source!r}")
        if matches:
            sources[name] = matches[0]
        elif name in wanted or name in renamed:
            remedy = f" (task.columns={{{TEXT}: NAME, {LABEL}: NAME}} maps names)" if ID not in wanted else ""
            raise UserError(f"{where}: no column {source!r}; {did_you_mean(source, header)}{remedy}")
    return sources


def _distinct(where: str, names: list[str]) -> list[str]:
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UserError(f"{where}: two columns {twice!r}")
    return names


def _folded(names: list[str]) -> list[str]:
    return [name.strip().casefold() for name in names]


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


def _text(where: str, row: Fields, name: str) -> str:
    if not isinstance(row[name], str):
        raise UserError(f"{where}: {name} is {row[name]!r:.80}, expected a text")
    return readers.checked_text(f"{where}: {name}", row[name])


def _word(where: str, row: Fields, name: str) -> str:
    """Text or whole number, as text."""
    value = row[name]
    if not isinstance(value, str | int) or not str(value).strip():
        raise UserError(f"{where}: {name} is {value!r:.80}, expected a text or a whole number")
    return readers.checked_text(f"{where}: {name}", str(value).strip())
