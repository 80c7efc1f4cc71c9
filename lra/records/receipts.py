"""receipts.zip: every file of a finished sweep's runs in one, which any zip program opens.

A member has the path that the file had below the results folder. SHA256SUMS lists the digest of every other member as
sha256sum writes and checks them. The same files give the same bytes: names are sorted, times and modes are fixed, and
the compression is zlib's at its highest level.
"""

import hashlib
import io
import re
import stat
import zlib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path, PurePosixPath
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile, ZipInfo

from lra.core.errors import UserError
from lra.core.files import read_regular
from lra.records.names import DIGESTS, RECEIPTS

EARLIEST = (1980, 1, 1, 0, 0, 0)  # that a zip file can say
UNIX, MODE, LEVEL = 3, stat.S_IFREG | 0o644, 9
FILE_BYTES, MEMBERS = 2**30, 2**18  # the most of a receipts file
UNPACKED_BYTES = 2**32  # the most of all members together
LINE = re.compile(r"([0-9a-f]{64})  (.+)")  # of SHA256SUMS
UNREADABLE = (BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, OSError, ValueError)


class Receipts:
    """A receipts file, read whole. Raises UserError, with the member, where it is damaged or not safe to unpack."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._archive = ZipFile(io.BytesIO(read_regular(path, FILE_BYTES)))
            self._members = _checked(self._archive.infolist())
            self._digests = _parsed(self._unpacked(DIGESTS))
            _check_listed(self._members.keys() - {DIGESTS}, self._digests.keys())
        except UNREADABLE as error:
            raise UserError(f"{path}: not a readable receipts file: {_reason(error)}") from None

    @property
    def names(self) -> list[str]:
        """The paths of its members below the results folder, sorted."""
        return sorted(self._digests)

    def __contains__(self, name: str) -> bool:
        return name in self._digests

    def read(self, name: str) -> bytes:
        """A member that is what the list of digests says. Raises ValueError, without the names, where it is not."""
        try:
            data = self._unpacked(name)
        except UNREADABLE as error:
            raise ValueError(f"damaged: {_reason(error)}") from None
        if hashlib.sha256(data).hexdigest() != self._digests[name]:
            raise ValueError(f"its SHA-256 is not that of {DIGESTS}")
        return data

    def _unpacked(self, name: str) -> bytes:
        if name not in self._members:
            raise ValueError(f"it has no {name}")
        return self._archive.read(self._members[name])


def kept_in(folder: Path) -> Receipts | None:
    """The receipts file of a results folder, None where it has none. Raises UserError."""
    path = folder / RECEIPTS
    try:
        status = path.lstat()
    except OSError:
        return None
    return _opened(path, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=8)
def _opened(path: Path, changed: int, size: int) -> Receipts:
    """Read again only when the file has `changed`."""
    return Receipts(path)


def zip_bytes(files: Mapping[str, bytes]) -> bytes:
    """The bytes of a receipts file that holds `files`, by their paths below the results folder."""
    lines = [f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in sorted(files.items())]
    buffer = io.BytesIO()
    with ZipFile(buffer, "w") as archive:
        for name, data in {DIGESTS: "".join(lines).encode(), **dict(sorted(files.items()))}.items():
            member = ZipInfo(name, EARLIEST)
            member.create_system, member.external_attr = UNIX, MODE << 16
            archive.writestr(member, data, ZIP_DEFLATED, LEVEL)
    return buffer.getvalue()


def _checked(members: list[ZipInfo]) -> dict[str, ZipInfo]:
    """The members by name. Raises ValueError where one is not to be read."""
    if len(members) > MEMBERS:
        raise ValueError(f"expected at most {MEMBERS:,} members, found {len(members):,}")
    unpacked = sum(member.file_size for member in members)
    if unpacked > UNPACKED_BYTES:
        raise ValueError(f"expected at most {UNPACKED_BYTES:,} bytes unpacked, found {unpacked:,}")
    by_name: dict[str, ZipInfo] = {}
    for member in members:
        wrong = "its name stands there twice" if member.filename in by_name else _wrong(member)
        if wrong:
            raise ValueError(f"{member.filename}: {wrong}")
        by_name[member.filename] = member
    folders = {parent.as_posix() for name in by_name for parent in PurePosixPath(name).parents}
    for name in sorted(folders & by_name.keys()):
        raise ValueError(f"{name}: it is a file and a folder")
    return by_name


def _wrong(member: ZipInfo) -> str:
    """Why a member is not to be read; empty where it may be."""
    path = PurePosixPath(member.filename)
    inside = not path.is_absolute() and ".." not in path.parts and not re.search(r"[\\:]", member.filename)
    if not inside or path.as_posix() != member.filename or not member.filename.isprintable():
        return "expected the path of a file below the results folder"
    if stat.S_IFMT(member.external_attr >> 16) not in (0, stat.S_IFREG):
        return "expected a regular file, found a link or a device"
    if member.flag_bits & 1:
        return "it is encrypted"
    if member.compress_type not in (ZIP_STORED, ZIP_DEFLATED):
        return "expected it stored or deflated"
    return ""


def _parsed(text: bytes) -> dict[str, str]:
    """The digests of SHA256SUMS by name. Raises ValueError."""
    digests = {}
    for number, line in enumerate(text.decode().splitlines(), start=1):
        match = LINE.fullmatch(line)
        if match is None:
            raise ValueError(f"{DIGESTS}, line {number}: expected a SHA-256 and a name, found {line[:40]!r}")
        digests[match[2]] = match[1]
    return digests


def _check_listed(members: set[str], listed: set[str]) -> None:
    """Raises ValueError for the first member without a digest, or digest without a member."""
    for name in sorted(members ^ listed):
        fault = f"{DIGESTS} does not list it" if name in members else f"{DIGESTS} lists it, but it is not there"
        raise ValueError(f"{name}: {fault}")


def _reason(error: BaseException) -> str:
    return str(error) or type(error).__name__
