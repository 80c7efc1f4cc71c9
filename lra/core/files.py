"""Atomic writes, JSON, YAML, and locks between processes on a shared folder."""

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

FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
PARTIALS = ".*.tmp"  # the pattern of the temporary names


class Locked(UserError):
    """Another process holds the lock; the message names the folder."""


@contextmanager
def hold(path: Path, patience: float) -> Iterator[None]:
    """Hold the lock file `path`; the system releases it when the process ends.

    Raises:
        Locked: another process still holds it after `patience` seconds.
    """
    from filelock import FileLock, Timeout  # takes a tenth of a second to import; --help shall not wait for it

    lock = FileLock(path)
    try:
        lock.acquire(timeout=patience)
    except Timeout:
        raise Locked(f"another process works in {path.parent}") from None
    try:
        yield
    finally:
        lock.release()


def holder(path: Path) -> str | None:
    """Return a phrase for messages if a process holds the lock file `path`, None if it is free."""
    if not path.exists():
        return None
    try:
        with hold(path, 0):
            return None
    except Locked as held:
        return str(held)
    except PermissionError:  # a read-only copy of results, where nothing runs
        return None


def check_access(folder: Path, remedy: str) -> None:
    """Raise UserError if there are a folder and files that this user may not read, as in a cache of a colleague."""
    for path in (*reversed(folder.parents), folder):
        if not os.path.lexists(path):
            return
        if not os.access(path, os.X_OK, effective_ids=True):
            raise denied(path, remedy)
    for path in (folder, *folder.iterdir()):
        if not os.access(path, os.R_OK, effective_ids=True):
            raise denied(path, remedy)


def denied(path: Path, remedy: str) -> UserError:
    """Return a message for a lack of permission, with the owner of the file or of the folder where it would be."""
    there = next(each for each in (path, *path.parents) if os.path.lexists(each))
    try:
        owner = there.owner()
    except KeyError:  # of another machine
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
    """Read the value of a JSON file. Raises OSError, and ValueError without the path."""
    return parse_json(path.read_bytes())


def read_yaml(path: Path) -> Any:
    """Read the value of a YAML file, by libyaml where it is. Raises OSError and yaml.YAMLError."""
    return yaml.load(path.read_text(encoding="utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def parse_json(text: bytes | str) -> Any:
    """Parse JSON without NaN, infinities and repeated names in an object. Raises ValueError."""
    return json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_object)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError(f"a name is repeated in {', '.join(name for name, _ in pairs)}")
    return fields


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def write_atomic(path: Path, data: bytes) -> None:
    """Replace `path` by `data`; readers see the old bytes or the new ones, never a part. Raises UserError."""
    partial = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")  # unique on every machine
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(partial, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except OSError as error:
        raise explained(error, path, written=True) from error
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """Write strict JSON (no NaN), indented, with a final newline."""
    write_atomic(path, (json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode())


def digest(value: Any) -> str:
    """Return the SHA-256 of a JSON value in canonical form."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def sweep_partials(folder: Path) -> None:
    """Remove temporary files of killed processes from a folder whose lock the caller holds."""
    for path in folder.glob(PARTIALS):
        if not path.is_dir():
            path.unlink(missing_ok=True)


def explained(error: OSError, path: Path, written: bool) -> UserError:
    """Return a failed read or write as a one-line message."""
    reason = os.strerror(error.errno).lower() if error.errno else str(error)
    if written or error.errno in FULL:
        return UserError(f"{path} cannot be written: {reason}; the previous file is intact")
    return UserError(f"{error.filename or path}: {reason}")
