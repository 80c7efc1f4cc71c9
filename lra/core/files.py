"""Write files atomically, read JSON and YAML, and lock folders that several processes share."""

import errno
import hashlib
import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

import yaml

from lra.core.errors import UserError

FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}  # error numbers: disk full, quota exceeded, file too large
PARTIALS = ".*.tmp"  # glob pattern of the temporary files of `write_atomic`


class Locked(UserError):
    """Raised if another process holds a lock; the message names the folder."""


@contextmanager
def hold(path: Path, patience: float) -> Iterator[None]:
    """Context manager that holds the lock file `path`; the operating system releases the lock if the process dies.

    Raises:
        Locked: if another process still holds the lock after `patience` seconds.
    """
    from filelock import FileLock, Timeout  # here, because the import takes a tenth of a second

    try:
        held = FileLock(path).acquire(timeout=patience)
    except Timeout:
        raise Locked(f"another process works in {path.parent}") from None
    with held:  # outside of `try`: a Timeout of the body is not one of this lock
        yield


def holder(path: Path) -> str | None:
    """Return a message if another process holds the lock file `path`; None if the lock is free."""
    if not path.exists():
        return None
    try:
        with hold(path, 0):
            return None
    except Locked as held:
        return str(held)
    except PermissionError:  # the folder is a read-only copy, in which nothing runs
        return None


def check_access(folder: Path, remedy: str) -> None:
    """Raise UserError if this user may not read a folder, such as a colleague's cache, or its files.

    A folder that does not exist is no error.
    """
    for path in (*reversed(folder.parents), folder):
        if not os.path.lexists(path):
            return
        if not os.access(path, os.X_OK, effective_ids=True):
            raise denied(path, remedy)
    for path in (folder, *folder.iterdir()):
        if not os.access(path, os.R_OK, effective_ids=True):
            raise denied(path, remedy)


def denied(path: Path, remedy: str) -> UserError:
    """Return the error for a missing permission; it names the owner of `path`, or of its nearest existing parent."""
    there = next(each for each in (path, *path.parents) if os.path.lexists(each))
    try:
        owner = there.owner()
    except KeyError:  # the owner has no name on this machine
        owner = f"user {there.stat().st_uid}"
    return UserError(f"{path}: permission denied; {there} belongs to {owner}; {remedy}")


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file in hexadecimal. Raises UserError if it cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from None


def read_json(path: Path) -> Any:
    """Return the value of a JSON file. Raises OSError, or a ValueError that does not name the file."""
    return parse_json(path.read_bytes())


def read_yaml(path: Path) -> Any:
    """Return the value of a YAML file. Raises OSError and yaml.YAMLError."""
    # The loader in C is eight times as fast, but some builds of PyYAML lack it.
    return yaml.load(path.read_text(encoding="utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def parse_json(text: bytes | str) -> Any:
    """Return the value of a JSON text. Raises ValueError, also for NaN and infinities, which Python would accept."""

    def refuse(name: str) -> NoReturn:
        raise ValueError(f"{name} is no JSON number")

    return json.loads(text, parse_constant=refuse)


def write_atomic(path: Path, data: bytes) -> None:
    """Write `data` to `path` atomically: readers see the old file or the new one, never a part. Raises UserError."""
    partial = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")  # unique: other machines may write here
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(partial, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())  # else a crash of the machine could leave an empty file under the new name
        os.replace(partial, path)
    except OSError as error:
        raise explained(error, path, written=True) from error
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """Write `value` to `path` as indented JSON with a final newline. Raises ValueError for NaN and infinities."""
    write_atomic(path, (json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode())


def digest(value: Any) -> str:
    """Return the SHA-256 of the canonical JSON text of a value."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def sweep_partials(folder: Path) -> None:
    """Remove temporary files that killed processes left in a folder; the caller must hold its lock."""
    for path in folder.glob(PARTIALS):
        if not path.is_dir():
            path.unlink(missing_ok=True)


def explained(error: OSError, path: Path, written: bool) -> UserError:
    """Return the UserError for an OSError that occurred while reading `path` or, if `written`, while writing it."""
    reason = os.strerror(error.errno).lower() if error.errno else str(error)
    if written or error.errno in FULL:
        return UserError(f"{path} cannot be written: {reason}; the previous file is intact")
    return UserError(f"{error.filename or path}: {reason}")
