"""The files of runs below a results folder, whether they lie in folders or in receipts files."""

from pathlib import Path, PurePosixPath
from typing import Any

from lra.core.errors import UserError
from lra.core.files import JSON_BYTES, read_regular
from lra.records import record
from lra.records.names import RECEIPTS, SWEEP
from lra.records.receipts import Receipts


class RunFiles:
    """What lies below `root`: a results folder, or a receipts file, which stands for the folder that it lies in.

    Files are named by their paths below `folder`. Where one lies in folders and is packed as well, that in folders is
    read. Raises UserError where there is no such folder, and where two files of a run differ so.
    """

    def __init__(self, root: Path) -> None:
        if not root.exists():
            raise UserError(f"{root}: no such folder")
        self._only_packed = not root.is_dir()
        self.folder = root.parent if self._only_packed else root
        self._packed: dict[str, tuple[Receipts, str]] = {}  # with the name that it has there
        for path in [root] if self._only_packed else sorted(root.rglob(RECEIPTS)):
            receipts = Receipts(path)
            place = path.parent.relative_to(self.folder)
            self._packed |= {(place / name).as_posix(): (receipts, name) for name in receipts.names}
        for name in self._packed:
            self._refuse_two(name)

    @property
    def packed(self) -> list[str]:
        """The paths of all files in receipts."""
        return sorted(self._packed)

    def find(self, name: str) -> list[str]:
        """The paths of all files of this name, folder by folder."""
        loose = [] if self._only_packed else self.folder.rglob(name)
        paths = {path.relative_to(self.folder) for path in loose}
        paths |= {Path(path) for path in self._packed if PurePosixPath(path).name == name}
        return [path.as_posix() for path in sorted(paths)]

    def exists(self, path: str) -> bool:
        return self._is_loose(path) or path in self._packed

    def is_packed(self, path: str) -> bool:
        return path in self._packed and not self._is_loose(path)

    def member(self, path: str) -> tuple[str, str]:
        """The receipts file below the folder, and the name that a packed file has in it."""
        receipts, name = self._packed[path]
        return receipts.path.relative_to(self.folder).as_posix(), name

    def read(self, path: str, most: int = record.CONTENTS_BYTES) -> bytes:
        """The bytes of a file. Raises OSError, and ValueError without the path."""
        if not self.is_packed(path):
            return read_regular(self.folder / path, most)
        receipts, name = self._packed[path]
        return receipts.read(name)

    def shown(self, path: str) -> str:
        """Where a file lies, for a message."""
        if not self.is_packed(path):
            return str(self.folder / path)
        receipts, name = self._packed[path]
        return f"{receipts.path}: {name}"

    def declared(self, path: str) -> list[dict[str, Any]]:
        """The cells that a `sweep.json` declares, beside the receipts and in them. Raises ValueError with its name."""
        try:
            cells = record.parse_declared(self.read(path, JSON_BYTES))
            if path in self._packed and self._is_loose(path):
                receipts, name = self._packed[path]
                cells = record.merged(record.parse_declared(receipts.read(name)), cells)
            return cells
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{self.shown(path)}: not what a sweep declares: {error}") from None

    def _is_loose(self, path: str) -> bool:
        return not self._only_packed and (self.folder / path).exists()

    def _refuse_two(self, path: str) -> None:
        """A sweep that goes on declares its cells anew beside the receipts; whatever a run left is there once."""
        if PurePosixPath(path).name == SWEEP or not self._is_loose(path):
            return
        receipts, name = self._packed[path]
        try:
            same = read_regular(self.folder / path, record.CONTENTS_BYTES) == receipts.read(name)
        except (OSError, ValueError):
            same = False
        if not same:
            raise UserError(f"{receipts.path}: {name}: another {self.folder / path} lies beside it; keep one of them")
