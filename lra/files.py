"""Files that are either whole or absent: temporary name, flush, fsync, rename."""

import errno
import hashlib
import json
import os
import re
from pathlib import Path
from typing import Any

from lra import faults
from lra.errors import UserError

FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
PARTIAL = re.compile(r"\..*\.(\d+)\.tmp")


def write_atomic(path: Path, data: bytes) -> None:
    """Replace `path` by `data`; a reader sees the old bytes or the new ones, never a part.

    Raises UserError where there is no room, or where nothing may be written.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(partial, "wb") as file:
            faults.point("file opened")
            for half in (memoryview(data)[: len(data) // 2], memoryview(data)[len(data) // 2 :]):
                file.write(half)
                faults.point("file half written")
            file.flush()
            os.fsync(file.fileno())
        faults.point("file written")
        os.replace(partial, path)
        _sync_folder(path.parent)
    except OSError as error:
        raise explained(error, path, len(data)) from error
    finally:
        partial.unlink(missing_ok=True)


def explained(error: OSError, path: Path, needed: int) -> UserError:
    """What a failed write means for a person."""
    reason = os.strerror(error.errno).lower() if error.errno else str(error)
    if error.errno in FULL:
        existing = next(folder for folder in path.absolute().parents if folder.exists())
        disk = os.statvfs(existing)
        if disk.f_files and not disk.f_favail:
            reason = f"{reason}: no further file fits, whatever its size"
        else:
            reason = f"{reason}: {needed:,} bytes are needed, {disk.f_bavail * disk.f_frsize:,} are free"
    return UserError(f"{path} cannot be written: {reason}; what was there before is intact")


def sweep_partials(folder: Path) -> None:
    """Remove what killed processes left half written in `folder`."""
    for path in folder.iterdir() if folder.is_dir() else ():
        name = PARTIAL.fullmatch(path.name)
        if name and not _alive(int(name[1])):
            path.unlink(missing_ok=True)


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return process != os.getpid()


def _sync_folder(folder: Path) -> None:
    """Make a rename survive a power cut, where the system can."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(descriptor)
    except OSError:
        pass
    finally:
        os.close(descriptor)


def write_json(path: Path, value: Any) -> None:
    """Write strict JSON (no NaN), indented, with a final newline."""
    text = json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False)
    write_atomic(path, (text + "\n").encode())


def digest(value: Any) -> str:
    """SHA-256 of a JSON value in canonical form."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()
