"""Files that a user's task reads while it is prepared: a cache is stale once one of them has changed."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lra.core.files import sha256

_opened: list[set[str]] = []  # of the preparations under way


def _listen(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and _opened and isinstance(arguments[0], str):
        _opened[-1].add(os.path.abspath(arguments[0]))


@contextmanager
def recorded(apart: Path) -> Iterator[dict[str, str]]:
    """Fill a dictionary with the SHA-256 of each file that this process opens inside, by absolute path.

    Python's own files, modules and files below `apart` (the cache folder) are left out. Files opened by other processes
    or by libraries without Python's `open` are not recorded.
    """
    if not hasattr(_listen, "installed"):  # a hook stays until the process ends
        sys.addaudithook(_listen)
        _listen.installed = True  # type: ignore[attr-defined]
    inputs: dict[str, str] = {}
    _opened.append(set())
    try:
        yield inputs
    finally:
        paths = [Path(name) for name in sorted(_opened.pop())]
    elsewhere = (sys.prefix, sys.base_prefix, "/proc", "/sys", "/dev", apart.absolute())
    for path in paths:
        if path.is_file() and path.suffix not in (".py", ".pyc") and not any(map(path.is_relative_to, elsewhere)):
            inputs[str(path)] = sha256(path)


def changed(inputs: dict[str, str]) -> str | None:
    """Return the first file whose content is no longer the recorded one; a file that is gone has not changed."""
    return next((name for name, sha in inputs.items() if Path(name).is_file() and sha256(Path(name)) != sha), None)
