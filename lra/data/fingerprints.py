"""What raw data are: the SHA-256 of their files, remembered in the cache folder so that a second start reads none.

A file is known again by its path, device, inode, size and times. A memory that is damaged, or of a file that changed,
costs another reading and nothing else.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from glob import iglob
from pathlib import Path
from typing import Any

from lra.core.console import say
from lra.core.errors import UserError
from lra.core.files import digest, read_json, sha256, write_json
from lra.data import Place

MEMORY = "raw"  # a folder beside those of the tasks
SUFFIX, ROWS_SUFFIX = ".stamp", ".rows"
SETTLED_NS = 2_000_000_000  # a file that changed more recently may change again within the resolution of its times

Stamp = dict[str, str]
"""The name and the SHA-256 of a file or folder of raw data: what the identity of a cache says of it."""


def stamps(place: Place, paths: list[Path], inside: tuple[str, ...] = ()) -> list[Stamp]:
    """A stamp of each file. A folder stands for its files that match one of the patterns `inside`.

    With `place.verify` every file is read, whatever is remembered of it. Raises UserError for what is no regular file.
    """
    return [{"name": path.name, "sha256": _fingerprint(place, path, inside)} for path in paths]


def confirmed(place: Place, paths: list[Path], expected: list[Stamp], inside: tuple[str, ...] = ()) -> dict[str, str]:
    """Names and SHA-256 of raw data, computed anew after they were read.

    Raises UserError where they are not those of the stamps `expected`, by which the cache is named.
    """
    for path, before, now in zip(paths, expected, stamps(replace(place, verify=True), paths, inside), strict=True):
        if before != now:
            raise UserError(f"{path}: it changed while it was read, or before unnoticed; prepare again")
    return {stamp["name"]: stamp["sha256"] for stamp in expected}


def _fingerprint(place: Place, path: Path, inside: tuple[str, ...]) -> str:
    """SHA-256 of a file; of a folder that of the names and SHA-256 of its files."""
    files = {path.name: path}
    if inside and path.is_dir():
        names = (name for pattern in inside for name in iglob(pattern, root_dir=path, include_hidden=True))
        files = {name: path / name for name in names}

    def read() -> str:
        each = {name: sha256(file) for name, file in files.items()}
        return digest(each) if inside and path.is_dir() else each[path.name]

    remembered, actual = _known(place, path, files, SUFFIX, "sha256", read)
    if remembered not in (None, actual):
        say(f"{path}: its content changed, though its size and its times did not; what was remembered is corrected")
    return actual


def counted(place: Place, path: Path, count: Callable[[Path], Any], what: str = "") -> Any:
    """The JSON value that `count` makes of a file, remembered as its SHA-256 is. `what` tells values of one file apart:
    that of rows has none."""
    suffix = f".{digest(what)[:16]}{ROWS_SUFFIX}" if what else ROWS_SUFFIX
    return _known(place, path, {path.name: path}, suffix, "rows", lambda: count(path))[1]


def _known(
    place: Place, path: Path, files: dict[str, Path], suffix: str, name: str, read: Callable[[], Any]
) -> tuple[Any, Any]:
    """The value of this name that was remembered, None where there was none, and the one that holds: what `read` makes
    of the files where nothing was remembered or `place.verify` asks.

    It is written down, unless a file is so new that it may change unnoticed, or changed meanwhile.
    """
    state, changed = _state(path, files)
    memory = place.cache / MEMORY / f"{digest(str(path.resolve()))[:16]}{suffix}"
    remembered = _remembered(memory, state, name)
    if remembered is not None and not place.verify:
        return remembered, remembered
    actual = read()
    settled = time.time_ns() - changed > SETTLED_NS
    if remembered != actual and _state(path, files)[0] == state and settled:
        with suppress(UserError, OSError):  # where the cache is read-only, the files are read at every start
            write_json(memory, {"state": state, name: actual, "check": digest([state, actual])})
    return remembered, actual


def _state(path: Path, files: dict[str, Path]) -> tuple[str, int]:
    """A digest of what files are known again by, and when the last of them changed, in ns."""
    rows, changed = [], 0
    for name, file in sorted(files.items()):
        try:
            status = file.stat()
        except (OSError, ValueError) as error:
            raise UserError(f"{file}: {getattr(error, 'strerror', None) or error}") from None
        rows.append([name, status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns])
        changed = max(changed, status.st_mtime_ns, status.st_ctime_ns)
    return digest([str(path.resolve()), rows]), changed


def _remembered(memory: Path, state: str, name: str) -> Any:
    """The value of this name that was written down for this state; None where there is none, or where it is damaged."""
    try:
        entry = read_json(memory)
        whole = entry["check"] == digest([state, entry[name]])
        return entry[name] if whole and entry["state"] == state else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
