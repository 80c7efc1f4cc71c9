"""Reader of Long Range Arena's ListOps files."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from lra.core.errors import UserError
from lra.data import readers
from lra.tasks import Progress
from lra.tasks.listops.trees import IDS


def ids_of(text: str, where: str) -> np.ndarray:
    """Return the token ids of an expression; raise UserError for an unknown word."""
    words = text.replace("(", " ").replace(")", " ").split()
    unknown = next((word for word in words if word not in IDS), None)
    if unknown is not None:
        raise UserError(f"{where}: unknown word {unknown!r:.40}; known: {', '.join(IDS)}")
    return np.array([IDS[word] for word in words], dtype=np.uint8)


def read_tsv(path: Path, max_length: int, progress: Progress) -> Iterator[tuple[int, np.ndarray]]:
    """Yield labels and token ids of a `Source<TAB>Target` file of LRA; parentheses are dropped."""
    size, read = path.stat().st_size, 0
    for number, (where, raw) in enumerate(readers.lines(path), start=1):
        read += len(raw) + 1
        source, _, target = readers.decoded(where, raw, "ASCII").partition("\t")
        if number == 1:
            if (source, target) != ("Source", "Target"):
                raise UserError(f"{where}: header {source} {target}, expected Source and Target")
            continue
        if target not in {*"0123456789"}:
            raise UserError(f"{where}: label {target!r:.80}, expected 0 to 9")
        ids = ids_of(source, where)
        if not 0 < len(ids) <= max_length:
            raise UserError(f"{where}: {len(ids)} words, expected 1 to task.max_length={max_length}")
        yield int(target), ids
        if number % 1000 == 0:
            progress(read, size)
    progress(size, size)


def rows(path: Path) -> int:
    """Number of expressions in a file of LRA, whose first line is a header."""
    return readers.count(path) - 1
