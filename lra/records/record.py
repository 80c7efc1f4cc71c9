"""The record of a run: every number with what made it. Written whole or not at all."""

import hashlib
import json
import math
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from lra.core import files
from lra.core.errors import UserError
from lra.core.files import JSON_BYTES, digest, explained, open_regular, parse_json, read_regular, write_json
from lra.records.names import METRICS
from lra.records.names import RECORD as NAME

CONTENTS_BYTES = 2**32  # the most that is read of a file beside a record
SCHEMA = 2  # of records and declarations
STATUSES = ("finished", "diverged", "failed", "paused")


def read(path: Path) -> dict[str, Any]:
    """The record in a file, without the SHA-256 it was written with. Raises ValueError with the file's name where it
    is none, or is not what was written."""
    try:
        return parse(read_regular(path, JSON_BYTES))
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: not a readable record: {error}") from None


def parse(data: bytes) -> dict[str, Any]:
    """The record in the bytes of a file. Raises ValueError."""
    record = parse_json(data)
    if not isinstance(record, dict) or record.get("schema") != SCHEMA:
        raise ValueError(f"expected schema {SCHEMA}")
    if record.pop("sha256", None) != digest(record):
        raise ValueError("its content is not what its SHA-256 says")
    return record


def write(folder: Path, record: dict[str, Any]) -> None:
    """Write `record.json`, with a SHA-256 of the rest; non-finite numbers become null, since JSON has none."""
    whole = _finite({**record, "schema": SCHEMA})
    write_json(folder / NAME, {"sha256": digest(whole), **whole})


def sha256(folder: Path, *names: str) -> dict[str, str]:
    """The SHA-256 of those of the files that a folder has, by name."""
    digests = {}
    for name in names:
        if (folder / name).is_file():
            digests[name] = files.sha256(folder / name)
    return digests


def check_contents(name: str, data: bytes, record: dict[str, Any]) -> None:
    """Raises ValueError where the bytes of a file beside a record are not those that the record names."""
    expected = record.get("files", {}).get(name)
    if expected is not None and hashlib.sha256(data).hexdigest() != expected:
        raise ValueError("its SHA-256 is not that of its record")


def parse_declared(data: bytes) -> list[dict[str, Any]]:
    """The cells in the bytes of a `sweep.json`. Raises ValueError."""
    declaration = parse_json(data)
    if not isinstance(declaration, dict) or declaration.get("schema") != SCHEMA:
        raise ValueError(f"expected schema {SCHEMA}")
    cells = declaration.get("cells")
    if declaration.get("sha256") != digest(cells):
        raise ValueError("its content is not what its SHA-256 says")
    return cells


def merged(earlier: list[dict[str, Any]], later: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The cells of two declarations by folder: a cell of both is the later one, with the seeds of both."""
    cells = {cell["folder"]: cell for cell in earlier}
    for cell in later:
        seeds = cells.get(cell["folder"], cell)["seeds"]
        cells[cell["folder"]] = {**cell, "seeds": sorted({*seeds, *cell["seeds"]})}
    return [cells[folder] for folder in sorted(cells)]


def declare(path: Path, cells: list[dict[str, Any]]) -> None:
    """Write a `sweep.json`."""
    files.write_atomic(path, declaration(cells))


def declaration(cells: list[dict[str, Any]]) -> bytes:
    """What stands in a `sweep.json`: the cells and their SHA-256."""
    return files.json_bytes({"schema": SCHEMA, "sha256": digest(cells), "cells": cells})


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def differences(first: Any, other: Any, key: str = "") -> list[tuple[str, Any, Any]]:
    """(dotted key, value, other value) wherever two nested dictionaries differ; a key that is missing is None."""
    if isinstance(first, dict) and isinstance(other, dict):
        names = [*first, *(name for name in other if name not in first)]
        parts = ((first.get(name), other.get(name), f"{key}.{name}" if key else name) for name in names)
        return [change for part in parts for change in differences(*part)]
    return [] if first == other else [(key, first, other)]


class Metrics:
    """`metrics.jsonl`: one line per evaluation, flushed as it comes. `earlier`: what `write` returned before the
    checkpoint that a run goes on from; the lines after it are written again."""

    def __init__(self, folder: Path, earlier: dict[str, Any] | None) -> None:
        self._path = folder / METRICS
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = open_regular(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
            self._file.seek(0)
            kept = self._file.read(earlier["bytes"]) if earlier else b""
            self._sha = hashlib.sha256(kept)
            if earlier and self._sha.hexdigest() != earlier["sha256"]:
                raise UserError(
                    f"{self._path} is not what it was when the run was paused; delete the folder to train anew"
                )
            self._file.truncate(len(kept))
        except ValueError as error:
            raise UserError(f"{self._path}: {error}; delete it") from None
        except OSError as error:
            raise explained(error, self._path, 0) from error

    def write(self, **line: Any) -> dict[str, Any]:
        """Add a line; returns the size and the SHA-256 of the file."""
        data = (json.dumps(_finite(line)) + "\n").encode()
        try:
            self._file.write(data)
            self._file.flush()
        except OSError as error:
            raise explained(error, self._path, len(data)) from error
        self._sha.update(data)
        return {"bytes": self._file.tell(), "sha256": self._sha.hexdigest()}

    def read(self) -> bytes:
        """What stands in the file."""
        return self._path.read_bytes()

    def __enter__(self) -> "Metrics":
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):  # of a line that could not be written, which has been said
            self._file.close()
