"""Files of examples that a person brings: CSV, TSV, JSON lines and parquet, row by row, each named by file and line.

The columns are `text`, for pairs `text2` as well, and `label`; others are not read.
"""

import csv
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lra.core.errors import UserError, did_you_mean
from lra.data import readers

PACKED = (".xz", ".gz")
KINDS = (".csv", ".tsv", ".jsonl", ".parquet")
TEXT, TEXT2, LABEL, ID = "text", "text2", "label", "id"
MOST_LABELS = 1_000

Fields = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Example:
    """One row: where it stands, its label as text, and one text or two."""

    where: str
    label: str
    texts: tuple[str, ...]


def kind_of(path: Path) -> str:
    """How the name ends, a compression left aside. Raises UserError for any other end than KINDS."""
    plain = path.with_suffix("") if path.suffix in PACKED else path
    if plain.suffix not in KINDS or (plain.suffix == ".parquet" and path.suffix in PACKED):
        raise UserError(
            f"{path}: expected a file that ends in {', '.join(KINDS)}, the first three also with .xz or .gz"
        )
    return plain.suffix


def examples(path: Path, columns: list[str] | None) -> Iterator[Example]:
    """`columns`: the names of the columns of a CSV or TSV file without a header. Raises UserError."""
    places: tuple[str, ...] | None = None
    for where, row in _rows(path, columns, (TEXT, LABEL)):
        if places is None:
            places = (TEXT, TEXT2) if TEXT2 in row else (TEXT,)
        if len(places) == 1 and TEXT2 in row:
            raise UserError(f"{where}: has {TEXT2}, but rows above have none; give it to all rows or to none")
        texts = tuple(_text(where, row, name) for name in places)
        yield Example(where=where, label=_word(where, row, LABEL), texts=texts)
    if places is None:
        raise UserError(f"{path}: no rows, expected examples with {TEXT} and {LABEL}")


def documents(path: Path) -> dict[str, str]:
    """The texts of a file with the columns `id` and `text`, by their ids."""
    texts: dict[str, str] = {}
    for where, row in _rows(path, None, (ID, TEXT)):
        name = _word(where, row, ID)
        if name in texts:
            raise UserError(f"{where}: {ID} {name!r:.80} stands above already")
        texts[name] = _text(where, row, TEXT)
    return texts


def scan(path: Path, columns: list[str] | None) -> dict[str, Any]:
    """What the name and the shape of a task need of its training file: labels in order, and texts per example."""
    counts: dict[str, int] = {}
    texts = 0
    for example in examples(path, columns):
        counts[example.label] = counts.get(example.label, 0) + 1
        texts = len(example.texts)
        if len(counts) > MOST_LABELS:
            raise UserError(
                f"{example.where}: more than {MOST_LABELS:,} different labels; is {LABEL} the right column?"
            )
    if len(counts) < 2:
        raise UserError(f"{path}: every {LABEL} is {next(iter(counts))!r:.80}, expected at least two different ones")
    return {"labels": ordered(counts), "texts": texts}


def ordered(labels: dict[str, int]) -> list[str]:
    """Whole numbers by their size, others by the alphabet."""
    numbers = all(label.removeprefix("-").isdecimal() for label in labels)
    return sorted(labels, key=int) if numbers else sorted(labels)


def _rows(path: Path, columns: list[str] | None, wanted: tuple[str, ...]) -> Iterator[tuple[str, Fields]]:
    kind = kind_of(path)
    if kind == ".jsonl":
        return _json(path)
    if kind == ".parquet":
        return _parquet(path, wanted)
    rows = _quoted(path) if kind == ".csv" else ((where, line.split("\t")) for where, line in _decoded(path))
    return _table(rows, columns, wanted)


def _json(path: Path) -> Iterator[tuple[str, Fields]]:
    for where, row in readers.json_lines(path):
        if not isinstance(row, dict):
            raise UserError(f"{where}: {row!r:.80}, expected an object with {TEXT} and {LABEL}")
        yield where, row


def _parquet(path: Path, wanted: tuple[str, ...]) -> Iterator[tuple[str, Fields]]:
    if find_spec("pyarrow") is None:
        raise UserError(f"{path}: parquet files need pyarrow: pip install pyarrow, or bring CSV, TSV or JSON lines")
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        names = pq.read_schema(path).names
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{path}: not readable: {' '.join(str(error).split())}") from None
    _check_names(str(path), names, wanted)
    return readers.columnar_rows([path], **dict.fromkeys([*wanted, *({TEXT2} & {*names})], object))


def _table(
    rows: Iterable[tuple[str, list[str]]], columns: list[str] | None, wanted: tuple[str, ...]
) -> Iterator[tuple[str, Fields]]:
    """Cells by the names of a header, or of `columns`. Raises UserError, also where `columns` names what a header names
    already, or a name twice."""
    names = columns
    if columns is not None:
        _check_names("task.columns", columns, wanted)
    for number, (where, cells) in enumerate(rows):
        if names is None:
            names = [name.strip() for name in cells]
            _check_names(where, names, wanted)
        elif columns is not None and number == 0 and _folded(cells) == _folded(columns):
            raise UserError(f"{where}: a header, which task.columns is for files without; leave task.columns=null")
        elif len(cells) != len(names):
            raise UserError(f"{where}: {len(cells)} columns, expected {len(names)}: {', '.join(names)}")
        else:
            yield where, dict(zip(names, cells, strict=True))


def _folded(names: list[str]) -> list[str]:
    return [name.strip().casefold() for name in names]


def _check_names(where: str, names: list[str], wanted: tuple[str, ...]) -> None:
    for name in wanted:
        if name not in names:
            raise UserError(f"{where}: no column {name!r}; {did_you_mean(name, names)} (task.columns=[...] names them)")
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UserError(f"{where}: two columns {twice!r}")


def _decoded(path: Path) -> Iterator[tuple[str, str]]:
    """Lines without the mark that some programs begin a file of UTF-8 with."""
    for number, (where, line) in enumerate(readers.lines(path)):
        yield where, readers.decoded(where, line).removeprefix("" if number else "\ufeff")


def _quoted(path: Path) -> Iterator[tuple[str, list[str]]]:
    """The rows of a CSV file, each named by its first line; a quoted cell may have line ends in it."""
    csv.field_size_limit(readers.MAX_LINE_BYTES)
    reader = csv.reader((f"{line}\n" for _, line in _decoded(path)), strict=True)
    first = 1
    while True:
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            open_quote = ": a quote is never closed" if "unexpected end" in str(error) else ""
            raise UserError(f"{path}:{first}: not CSV: {error}{open_quote}") from None
        if cells:
            yield f"{path}:{first}", cells
        first = reader.line_num + 1


def _text(where: str, row: Fields, name: str) -> str:
    if not isinstance(row.get(name), str):
        raise UserError(f"{where}: {name} {_state(row, name)}, expected a text")
    return readers.checked_text(f"{where}: {name}", row[name])


def _word(where: str, row: Fields, name: str) -> str:
    """A text or a whole number, as text."""
    value = row.get(name)
    if not isinstance(value, str | int) or not str(value).strip():
        raise UserError(f"{where}: {name} {_state(row, name)}, expected a text or a whole number")
    return readers.checked_text(f"{where}: {name}", str(value).strip())


def _state(row: Fields, name: str) -> str:
    return f"is {row[name]!r:.80}" if name in row else "is missing"
