"""Read and write the checkpoint of a run: its complete state between two steps, in one safetensors file.

The file is replaced atomically. It contains the SHA-256 of its bytes, computed with zeros in place of the digest.
"""

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lra.core.errors import UserError
from lra.core.files import write_atomic
from lra.records import tensors
from lra.records.names import CHECKPOINT

if TYPE_CHECKING:
    from torch import Tensor

UNSIGNED = "0" * 64  # placeholder for the SHA-256 while the SHA-256 is computed
REMEDY = "delete it to train from the start"


def write(folder: Path, values: "dict[str, Tensor]", state: dict[str, Any]) -> None:
    """Write tensors and a state of JSON values, both by name, as the checkpoint of a run.

    Raises:
        UserError: if the file cannot be written; an earlier checkpoint is then intact.
    """
    # A digest of the whole file cannot be part of the bytes that it covers, so it takes the place of zeros.
    data = tensors.encode(values, sha256=UNSIGNED, state=state)
    digest = hashlib.sha256(data).hexdigest()
    # Replace only the first match: it is in the header, and the tensors after the header may contain the same bytes.
    write_atomic(folder / CHECKPOINT, data.replace(UNSIGNED.encode(), digest.encode(), 1))


def read(folder: Path) -> "tuple[dict[str, Tensor], dict[str, Any]] | None":
    """Return the tensors and the state of a checkpoint; None if there is none. Raises UserError if it is damaged."""
    path = folder / CHECKPOINT
    if not path.exists():
        return None
    try:
        data = path.read_bytes()
        values, notes = tensors.decode(data)
        digest = notes["sha256"]
        if digest != hashlib.sha256(data.replace(digest.encode(), UNSIGNED.encode(), 1)).hexdigest():
            raise ValueError("its content does not match its SHA-256")
        return values, notes["state"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path}: damaged: {error}; {REMEDY}") from None


def remove(folder: Path) -> None:
    """Remove the checkpoint of a finished run, if there is one."""
    path = folder / CHECKPOINT
    if path.exists():  # on a read-only disk `unlink(missing_ok=True)` fails even without a file
        path.unlink()
