"""Names of data sets, and shortening of names to the limits of file systems and logging services."""

import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

from lra.core.files import digest
from lra.core.paths import expanded

HUB = "hf:"  # before the name of a data set of the Hugging Face hub
TEXT_KINDS = (".csv", ".tsv", ".jsonl", ".json")  # also compressed
KINDS = {kind: kind for kind in (*TEXT_KINDS, ".parquet", ".arrow")} | {".feather": ".arrow"}
ENDS = KINDS | {f"{kind}{packed}": kind for kind in TEXT_KINDS for packed in (".xz", ".gz")}
"""Kind of a file of examples by the end of its name."""
FILE_NAME_BYTES = 255  # of one level of a path, on all common file systems
JOINERS = "\u200c\u200d"  # not printable, but part of the spelling of Persian and Hindi words


def data_name(data: Any, name: str | None) -> str:
    """Return the name of the user's data in tables, paths and loggers.

    Args:
        data: `task.data`: a path, a mapping from splits to paths, or `hf:NAME` or `hf:NAME:CONFIGURATION`.
        name: `task.name`, used unchanged; if None, the name is that of the folder, of the file without its extension,
            or of the Hugging Face data set with its configuration.
    """
    if not name and isinstance(data, str) and data.startswith(HUB):
        source, *configuration = data.removeprefix(HUB).split(":", 1)
        name = ":".join([Path(source).name, *configuration])
    elif not name:
        path = expanded(str(data if isinstance(data, str) else data.get("train", "files")), "task.data").absolute()
        path = path.resolve() if path.name == ".." else path
        name = split_end(path.name)[0]
        name = path.parent.name if name == "train" and path.parent.name else name
    return unicodedata.normalize("NFC", str(name))  # macOS decomposes letters in names of files


def split_end(name: str) -> tuple[str, str]:
    """Return the name of a file without its end in `ENDS`, and its kind; no kind for another end."""
    end = max((end for end in ENDS if name.lower().endswith(end)), key=len, default="")
    return name[: len(name) - len(end)], ENDS.get(end, "")


def quoted(text: str, safe: str = " ") -> str:
    """Write special characters as %XX; letters and digits of all scripts, `_.-~` and those in `safe` stay."""
    return "".join(
        c if c > "\x7f" and (c.isprintable() or c in JOINERS) else quote(c, safe=safe, errors="surrogateescape")
        for c in text
    )


def file_name(text: str) -> str:
    """Return a quoted text as one level of a path, shortened if it is too long for one."""
    return shortened(text, FILE_NAME_BYTES, lambda name: len(name.encode()))


def shortened(text: str, limit: int, size: Callable[[str], int] = len) -> str:
    """Return a text of at most `limit` characters: a longer one is cut, and ends with a digest of the whole."""
    if size(text) <= limit:
        return text
    end = f"-{digest(text)[:8]}"
    while size(text + end) > limit:
        text = text[:-1]
    return text + end
