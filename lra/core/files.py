"""Files that are either whole or absent: temporary name, flush, fsync, rename. And strict reading: only regular files,
of a limited size."""

import errno
import hashlib
import json
import os
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from lra.core import fault_points
from lra.core.errors import UserError

FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
PARTIALS = ".*.tmp"  # the pattern of the temporary names
NO_LINK = {errno.ELOOP, errno.EMLINK}  # what open(2) says of a symbolic link with O_NOFOLLOW
JSON_BYTES, JSON_DEPTH = 2**26, 64  # the most that a JSON file may have
_guards: dict[Path, Callable[[], None]] = {}  # by lock: raises where its folder may not be written any longer


def open_regular(path: Path, follow: bool = False) -> BinaryIO:
    """Open a regular file to read it; a symbolic link only where `follow` says so.

    Raises OSError as `open` does, and ValueError, without the path, where something else than a regular file is there.
    It never waits, as `open` does for a FIFO.
    """
    descriptor = _descriptor(path, os.O_RDONLY | os.O_NONBLOCK, follow)
    return os.fdopen(descriptor, "rb")


def opened(path: Path) -> BinaryIO:
    """A regular file, or the one that a link leads to, to be read. Raises UserError for anything else."""
    try:
        return open_regular(path, follow=True)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}") from None
    except ValueError as error:
        raise UserError(f"{path}: {error}") from None


def sha256(path: Path) -> str:
    """The SHA-256 of a whole file that `opened` opens, in hexadecimal. Raises UserError."""
    with opened(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def open_to_write(path: Path, flags: int) -> int:
    """A descriptor of a regular file, which is made if it is not there; never of what a symbolic link leads to.

    `flags`: those of os.open besides O_CREAT. Raises as `open_regular` does.
    """
    return _descriptor(path, flags | os.O_CREAT | os.O_NONBLOCK, follow=False)


def _descriptor(path: Path, flags: int, follow: bool) -> int:
    try:
        descriptor = os.open(path, flags | (0 if follow else os.O_NOFOLLOW), 0o666)
    except OSError as error:
        if error.errno in NO_LINK and path.is_symlink():
            raise ValueError("expected a regular file, found a symbolic link") from None
        if error.errno in (errno.EISDIR, errno.ENXIO):
            raise ValueError(f"expected a regular file, found {_kind(path.stat().st_mode)}") from None
        raise
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        raise ValueError(f"expected a regular file, found {_kind(mode)}")
    return descriptor


def _kind(mode: int) -> str:
    kinds = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket"}
    return kinds.get(stat.S_IFMT(mode), "a device")


def read_regular(path: Path, most: int, follow: bool = False) -> bytes:
    """The bytes of a regular file of at most `most` bytes. Raises OSError, and ValueError without the path."""
    with open_regular(path, follow) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise ValueError(f"expected at most {most:,} bytes, found {size:,}")
        return file.read()


def read_json(path: Path, most: int = JSON_BYTES) -> Any:
    """The value in a JSON file that `read_regular` reads. Raises OSError, and ValueError without the path."""
    return parse_json(read_regular(path, most))


def parse_json(text: bytes | str) -> Any:
    """The value of a JSON text without NaN and infinities, not nested deeper than `JSON_DEPTH`. Raises ValueError."""
    too_deep = f"nested deeper than {JSON_DEPTH} levels"
    try:
        value = json.loads(text, parse_constant=_no_number)
    except RecursionError:
        raise ValueError(too_deep) from None
    level = [value]
    for _ in range(JSON_DEPTH + 1):
        level = [item for item in level if isinstance(item, dict | list)]
        if not level:
            return value
        level = [child for item in level for child in (item.values() if isinstance(item, dict) else item)]
    raise ValueError(too_deep)


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


@contextmanager
def guarded(lock: Path, check: Callable[[], None]) -> Iterator[None]:
    """From here on this process calls `check` before it writes a file in the folder of a lock."""
    _guards[lock.absolute()] = check
    try:
        yield
    finally:
        del _guards[lock.absolute()]


def check_guard(folder: Path) -> None:
    """Raises UserError where this process may not write in a folder any longer."""
    place = folder.absolute()
    for lock, check in _guards.items():
        if lock.parent == place:
            check()


def write_atomic(path: Path, data: bytes) -> None:
    """Replace `path` by `data`; a reader sees the old bytes or the new ones, never a part.

    A symbolic link is replaced, and what it leads to stays. Raises UserError where there is no room, or where nothing
    may be written.
    """
    check_guard(path.parent)
    partial = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")  # no other process has it, on any machine
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(partial, "xb") as file:
            fault_points.point("file opened")
            for half in (memoryview(data)[: len(data) // 2], memoryview(data)[len(data) // 2 :]):
                file.write(half)
                fault_points.point("file half written")
            file.flush()
            os.fsync(file.fileno())
        fault_points.point("file written")
        os.replace(partial, path)
        _sync_folder(path.parent)
    except OSError as error:
        raise explained(error, path, len(data)) from error
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


def explained(error: OSError, path: Path, needed: int | None) -> UserError:
    """What an error of the system means for a person. `needed`: the bytes of a write that failed; None: it may have
    been no write, and `path` is told where the error names no file."""
    reason = os.strerror(error.errno).lower() if error.errno else str(error)
    if needed is None and error.errno not in FULL:
        return UserError(f"{error.filename or path}: {reason}")
    if error.errno in FULL:
        existing = next(folder for folder in path.absolute().parents if folder.exists())
        disk = os.statvfs(existing)
        if disk.f_files and not disk.f_favail:
            reason = f"{reason}: no further file fits, whatever its size"
        else:
            reason = f"{reason}: {needed or 0:,} bytes are needed, {disk.f_bavail * disk.f_frsize:,} are free"
    return UserError(f"{path} cannot be written: {reason}; what was there before is intact")


def make_results_folder(folder: Path) -> None:
    """Make a folder at or below `out`, and those above it. Raises UserError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        if error.errno in FULL:
            raise explained(error, folder, None) from error
        reason = os.strerror(error.errno).lower() if error.errno else str(error)
        raise UserError(f"{folder}: this folder cannot be made: {reason}; choose another out=...") from None


def sweep_partials(folder: Path) -> None:
    """Remove what killed processes left half written in `folder`, to which only the caller writes: it holds a lock."""
    for path in folder.glob(PARTIALS):
        if not path.is_dir():
            path.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    """Make a rename survive a power cut, where the system can."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def write_json(path: Path, value: Any) -> None:
    """Write a value as `json_bytes` gives it."""
    write_atomic(path, json_bytes(value))


def json_bytes(value: Any) -> bytes:
    """Strict JSON (no NaN), indented, with a final newline."""
    return (json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


def digest(value: Any) -> str:
    """SHA-256 of a JSON value in canonical form."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()
