"""Locks between processes on a shared folder; the system releases a lock when its process ends."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Held(Exception):
    """Another process holds the lock; the message names the file."""


@contextmanager
def hold(path: Path, patience: float) -> Iterator[None]:
    """Hold the lock file `path`. Raises Held if another process still holds it after `patience` seconds."""
    from filelock import FileLock, Timeout  # takes a tenth of a second to import; --help shall not wait for it

    lock = FileLock(path)
    try:
        lock.acquire(timeout=patience)
    except Timeout:
        raise Held(f"another process holds {path}") from None
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
    except Held as held:
        return str(held)
    except PermissionError:  # a read-only copy of results, where nothing runs
        return None
