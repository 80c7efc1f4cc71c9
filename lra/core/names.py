"""Name data sets, and shorten names to the limits of file systems and logging services."""

import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

from lra.core.files import digest
from lra.core.paths import expanded

HUB = "hf:"  # prefix of data sets on the Hugging Face hub
TEXT_KINDS = (".csv", ".tsv", ".jsonl", ".json")  # suffixes of text files, which may be compressed
KINDS = {kind: kind for kind in (*TEXT_KINDS, ".parquet", ".arrow")} | {".feather": ".arrow"}
ENDS = KINDS | {f"{kind}{packed}": kind for kind in TEXT_KINDS for packed in (".xz", ".gz")}
"""Format of a file of examples by the suffix of its name, such as `.csv` or `.csv.gz`."""
FILE_NAME_BYTES = 255  # maximum length of a file name on all common file systems
JOINERS = "\u200c\u200d"  # zero-width characters: not printable, but needed to spell Persian and Hindi words


def data_name(data: Any, name: str | None) -> str:
    """Return the name, in Unicode form NFC, under which the user's data appear in tables, paths and loggers.

    Args:
        data: `task.data`: a path, a mapping from splits to paths, or `hf:NAME` or `hf:NAME:CONFIGURATION`.
        name: `task.name`, which is the result if it is set. If it is None, the result is the name of the Hugging Face
            data set with its configuration, or of the folder or file at the path `data` (for a mapping, at its `train`
            path) without suffix. If that is `train`, the result is the name of the parent folder.
    """
    if not name and isinstance(data, str) and data.startswith(HUB):
        source, *configuration = data.removeprefix(HUB).split(":", 1)
        name = ":".join([Path(source).name, *configuration])
    elif not name:
        path = expanded(str(data if isinstance(data, str) else data.get("train", "files")), "task.data").absolute()
        path = path.resolve() if path.name == ".." else path  # without `resolve` a symbolic link keeps its own name
        name = split_end(path.name)[0]
        name = path.parent.name if name == "train" and path.parent.name else name  # reviews/train.csv is `reviews`
    return unicodedata.normalize("NFC", str(name))  # macOS decomposes accented letters in file names


def split_end(name: str) -> tuple[str, str]:
    """Return a file name without its suffix, and the format of the suffix.

    If the suffix is not in `ENDS`, the name is returned unchanged and the format is empty.
    """
    end = max((end for end in ENDS if name.lower().endswith(end)), key=len, default="")
    return name[: len(name) - len(end)], ENDS.get(end, "")


def quoted(text: str, safe: str = " ") -> str:
    """Return a text with special characters as %XX; letters, digits, non-ASCII symbols, `_.-~` and `safe` stay."""
    return "".join(
        c if c > "\x7f" and (c.isprintable() or c in JOINERS) else quote(c, safe=safe, errors="surrogateescape")
        for c in text
    )


def file_name(text: str) -> str:
    """Return `text`, which must be quoted already, shortened if it is too long for a file name."""
    return shortened(text, FILE_NAME_BYTES, lambda name: len(name.encode()))


def shortened(text: str, limit: int, size: Callable[[str], int] = len) -> str:
    """Return a text whose `size` is at most `limit`; a longer text is cut and ends with a digest of the whole text."""
    if size(text) <= limit:
        return text
    end = f"-{digest(text)[:8]}"
    while size(text + end) > limit:  # by characters: cutting bytes could split one
        text = text[:-1]
    return text + end
