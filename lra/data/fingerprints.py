"""SHA-256 and row counts of raw data, stored in the cache folder so that a second start reads no data.

A stored value holds as long as path, inode, size and times of the files are unchanged.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from lra.core.errors import UserError
from lra.core.files import digest, read_json, sha256, write_json
from lra.data import Place

FOLDER = "raw"  # beside the folders of the tasks
SETTLED_NS = 2_000_000_000  # a file that changed more recently may change again without a new time

Stamp = dict[str, str]
"""Name and SHA-256 of a file or folder of raw data, as the identity of a cache holds them."""


def stamps(place: Place, paths: list[Path], inside: tuple[str, ...] = ()) -> list[Stamp]:
    """Return the stamp of each path.

    Args:
        place: its cache folder stores the digests; with `place.verify` every file is read again.
        paths: files, or folders that stand for their files that match one of the patterns `inside`.
        inside: patterns relative to a folder; the digest of a folder is that of the names and SHA-256 of its files.

    Raises:
        UserError: a path is not a regular file.
    """
    return [{"name": path.name, "sha256": _sha256(place, path, inside)} for path in paths]


def confirmed(place: Place, paths: list[Path], expected: list[Stamp], inside: tuple[str, ...] = ()) -> dict[str, str]:
    """Read all files again and return their names and SHA-256.

    Raises:
        UserError: a stamp differs from the `expected` one, by which the cache is named.
    """
    for path, before, now in zip(paths, expected, stamps(replace(place, verify=True), paths, inside), strict=True):
        if before != now:
            raise UserError(f"{path}: changed while it was read, or before without a new time; prepare again")
    return {stamp["name"]: stamp["sha256"] for stamp in expected}


def counted(place: Place, path: Path, count: Callable[[Path], Any], what: str = "rows") -> Any:
    """Return the JSON value `count(path)`, stored under the name `what` until the file changes."""
    return _stored(place, path, [path], what, lambda: count(path))


def _sha256(place: Place, path: Path, inside: tuple[str, ...]) -> str:
    if not (inside and path.is_dir()):
        return _stored(place, path, [path], "sha256", lambda: sha256(path))
    files = {str(file.relative_to(path)): file for pattern in inside for file in path.glob(pattern)}

    def of_folder() -> str:
        return digest({name: sha256(file) for name, file in files.items()})

    return _stored(place, path, list(files.values()), "sha256", of_folder)


def _stored(place: Place, path: Path, files: list[Path], what: str, compute: Callable[[], Any]) -> Any:
    """Return the stored value of unchanged files, or compute and store it."""
    state, changed = _state(files)
    memo = place.cache / FOLDER / f"{digest([str(path.resolve()), what])[:16]}.stamp"
    with suppress(OSError, ValueError, KeyError, TypeError):
        entry = read_json(memo)
        if entry["state"] == state and not place.verify:
            return entry["value"]
    value = compute()
    if time.time_ns() - changed > SETTLED_NS and _state(files)[0] == state:
        with suppress(UserError):  # a cache folder that is read-only
            write_json(memo, {"state": state, "value": value})
    return value


def _state(files: list[Path]) -> tuple[str, int]:
    """Digest of inode, size and times of the files, and the time of the last change in ns."""
    try:
        status = {str(file): file.stat() for file in files}
    except OSError as error:
        raise UserError(f"{error.filename}: {error.strerror}") from None
    states = {name: [s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns] for name, s in status.items()}
    return digest(states), max((max(s.st_mtime_ns, s.st_ctime_ns) for s in status.values()), default=0)
