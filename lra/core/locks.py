"""Locks on a file that the system holds and gives back when their holder ends, however it ends: flock(2).

A file system that several machines share shows them to all, as NFS and Lustre do, or says in its mount options that
it does not. Whether a lock is held is never told by a clock or by the number of a process.
"""

import errno
import fcntl
import os
import platform
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lra.core.errors import UserError
from lra.core.files import guarded, open_regular, open_to_write

WAIT_SECONDS = 0.05  # between two attempts
NAME_BYTES = 1000  # the most that is read of a holder's name
UNNAMED = "a process without a name"
JOB = ", SLURM job "
BUSY = {errno.EWOULDBLOCK, errno.EACCES}
NONE = {errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK, errno.EINVAL}
MOUNTS = Path("/proc/self/mounts")
ONE_HOST = re.compile(r"^(local_lock=(all|flock)|nolock|localflock|nobrl)$")  # of NFS, Lustre and CIFS


class Held(Exception):
    """Another holds the lock; the message says who."""


@contextmanager
def hold(path: Path, patience: float) -> Iterator[None]:
    """Hold the lock of `path`, with the holder's name in it. Raises Held where another has it for `patience` seconds
    more, and UserError where the file system has no locks or `path` is no regular file.

    Whoever holds it writes beside it only while it is there: another process takes a new one where it was deleted.
    """
    end = time.monotonic() + patience
    descriptor = _taken_before(end, path)
    while not _in_place(descriptor, path):  # whoever had it before has removed it
        os.close(descriptor)
        descriptor = _taken_before(end, path)
    place = path.absolute()

    def check() -> None:
        if not _in_place(descriptor, place):
            raise UserError(
                f"{path}: deleted or replaced while it was held, so another process may be at work there; this one "
                "writes nothing more, and the same command goes on"
            )

    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, _own_name().encode(), 0)
        try:
            with guarded(path, check):
                yield
        finally:
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # a child may have inherited the descriptor
    finally:
        os.close(descriptor)


def _taken_before(end: float, path: Path) -> int:
    """A descriptor of the lock file, locked. Raises Held where another has it until then, and UserError as `hold`."""
    try:
        descriptor = open_to_write(path, os.O_RDWR)
    except ValueError as error:
        raise UserError(f"{path}: {error}; delete it") from None
    try:
        while not _taken(descriptor, fcntl.LOCK_EX, path):
            if time.monotonic() >= end:
                raise Held(holder(path) or UNNAMED)
            time.sleep(WAIT_SECONDS)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _in_place(descriptor: int, path: Path) -> bool:
    """Whether a file that is open still has this name."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except FileNotFoundError:
        return False


def holder(path: Path) -> str | None:
    """Who holds the lock of `path`: host, process and SLURM job; None where nobody does."""
    try:
        with open_regular(path) as file:
            if _taken(file.fileno(), fcntl.LOCK_SH, path):
                return None
            return file.read(NAME_BYTES).decode(errors="replace") or UNNAMED
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise UserError(f"{path}: {error}; delete it") from None


def held_by(path: Path, process: int) -> bool:
    """Whether it is this process of this host that holds the lock of `path`."""
    name = holder(path)
    return name is not None and name.partition(JOB)[0] == _name_of(process)


def of_one_host(path: Path) -> str | None:
    """The mount option by which other hosts do not see the locks below an existing `path`, None where there is none."""
    mounts = [line.split() for line in MOUNTS.read_text().splitlines()] if MOUNTS.exists() else []
    place = path.resolve()
    options = {Path(fields[1].replace("\\040", " ")): fields[3] for fields in mounts}
    mounted = next((options[folder] for folder in (place, *place.parents) if folder in options), "")
    return next((option for option in mounted.split(",") if ONE_HOST.match(option)), None)


def _taken(descriptor: int, kind: int, path: Path) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in BUSY:
            return False
        if error.errno in NONE:
            raise UserError(
                f"{path}: its file system has no locks ({os.strerror(error.errno).lower()}), so nothing could keep two "
                "processes apart; choose a folder elsewhere (out=..., cache=...)"
            ) from None
        raise
    return True


def _own_name() -> str:
    job = os.environ.get("SLURM_JOB_ID")
    return _name_of(os.getpid()) + (f"{JOB}{job}" if job else "")


def _name_of(process: int) -> str:
    return f"{platform.node()}, process {process}"
