"""What raw data are: the SHA-256 of their files, remembered in the cache folder so that a second start reads none.

A file is known again by its path, device, inode, size and times. A memory that is damaged, or of a file that changed,
costs another reading and nothing else.
"""

import time
from contextlib import suppress
from dataclasses import replace
from glob import iglob
from pathlib import Path

from lra.console import say
from lra.errors import UserError
from lra.files import digest, read_json, write_json
from lra.tasks import Place
from lra.tasks.sources import sha256

MEMORY = "raw"  # a folder beside those of the tasks
SUFFIX = ".stamp"
SETTLED_NS = 2_000_000_000  # a file that changed more recently may change again within the resolution of its times

Stamp = dict[str, str]
"""The name and the SHA-256 of a file or folder of raw data: what the identity of a cache says of it."""


def stamps(place: Place, paths: list[Path], inside: tuple[str, ...] = ()) -> list[Stamp]:
    """A stamp of each file. A folder stands for its files that match one of the patterns `inside`.

    With `place.verify` every file is read, whatever is remembered of it. Raises UserError for what is no regular file.
    """
    return [{"name": path.name, "sha256": _fingerprint(place, path, inside)} for path in paths]


def confirmed(place: Place, paths: list[Path], known: list[Stamp], inside: tuple[str, ...] = ()) -> dict[str, str]:
    """Names and SHA-256 of raw data, computed anew after they were read.

    Raises UserError where they are not those of the stamps `known`, by which the cache is named.
    """
    for path, before, now in zip(paths, known, stamps(replace(place, verify=True), paths, inside), strict=True):
        if before != now:
            raise UserError(f"{path}: it changed while it was read, or before unnoticed; prepare again")
    return {stamp["name"]: stamp["sha256"] for stamp in known}


def _fingerprint(place: Place, path: Path, inside: tuple[str, ...]) -> str:
    """SHA-256 of a file; of a folder that of the names and SHA-256 of its files."""
    files = {path.name: path}
    if inside and path.is_dir():
        names = (name for pattern in inside for name in iglob(pattern, root_dir=path, include_hidden=True))
        files = {name: path / name for name in names}
    state, changed = _state(path, files)
    memory = place.cache / MEMORY / f"{digest(str(path.resolve()))[:16]}{SUFFIX}"
    remembered = _remembered(memory, state)
    if remembered and not place.verify:
        return remembered
    each = {name: sha256(file) for name, file in files.items()}
    found = digest(each) if inside and path.is_dir() else each[path.name]
    if remembered not in (None, found):
        say(f"{path}: its content changed, though its size and its times did not; what was remembered is corrected")
    if remembered != found and _state(path, files)[0] == state and time.time_ns() - changed > SETTLED_NS:
        with suppress(UserError, OSError):  # where the cache is read-only, the files are read at every start
            write_json(memory, {"state": state, "sha256": found, "check": digest([state, found])})
    return found


def _state(path: Path, files: dict[str, Path]) -> tuple[str, int]:
    """By what files are known again, as a digest, and when the last of them changed, in ns."""
    rows, changed = [], 0
    for name, file in sorted(files.items()):
        try:
            status = file.stat()
        except (OSError, ValueError) as error:
            raise UserError(f"{file}: {getattr(error, 'strerror', None) or error}") from None
        rows.append([name, status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns])
        changed = max(changed, status.st_mtime_ns, status.st_ctime_ns)
    return digest([str(path.resolve()), rows]), changed


def _remembered(memory: Path, state: str) -> str | None:
    """The SHA-256 that was written down for this state; None where there is none, or where it is damaged."""
    try:
        entry = read_json(memory)
        whole = entry["check"] == digest([state, entry["sha256"]])
        return entry["sha256"] if whole and entry["state"] == state else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
