"""The checkpoint of a run: its whole state between two steps, in one safetensors file that is replaced atomically."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lra.core.errors import UserError
from lra.core.files import write_atomic
from lra.records.names import CHECKPOINT

if TYPE_CHECKING:  # a finished run needs no torch
    from torch import Tensor

STATE = "state"  # key of the JSON values in the file's header


def write(folder: Path, tensors: "dict[str, Tensor]", state: dict[str, Any]) -> None:
    """Replace the checkpoint of a folder. Raises UserError; the earlier checkpoint is intact then.

    Args:
        folder: of the run.
        tensors: by name.
        state: JSON values.
    """
    from safetensors.torch import save

    on_cpu = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    write_atomic(folder / CHECKPOINT, save(on_cpu, metadata={STATE: json.dumps(state)}))


def read(folder: Path) -> "tuple[dict[str, Tensor], dict[str, Any]] | None":
    """Return the tensors and the state of a checkpoint, None if there is none. Raises UserError if it is damaged."""
    from safetensors import SafetensorError, safe_open

    path = folder / CHECKPOINT
    if not path.exists():
        return None
    try:
        with safe_open(path, "pt") as file:
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
            return tensors, json.loads(file.metadata()[STATE])
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise UserError(f"{path}: damaged: {error}; delete it to train from the start") from None


def remove(folder: Path) -> None:
    """Remove the checkpoint of a finished run, if there is one."""
    path = folder / CHECKPOINT
    if path.exists():  # `missing_ok` fails on a read-only disk
        path.unlink()
