"""Checkpoints: the whole state of a run between two steps, in files that are verified and hold no code.

A generation is a safetensors file with tensors, and with everything else as JSON in its header. `checkpoint.json` lists
the generations, newest first, with their sizes and SHA-256. It is replaced after a new file was read back, and then the
oldest generation is removed, so a run that is killed at any instant has a whole generation.
"""

import hashlib
import json
import os
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lra.core.console import say
from lra.core.errors import UserError
from lra.core.files import explained, read_json, read_regular, write_atomic, write_json
from lra.records.names import CHECKPOINTS as INDEX
from lra.records.names import GENERATIONS

if TYPE_CHECKING:  # a finished run needs no torch
    from torch import Tensor

SCHEMA = 3  # 2 did not say of which run it is
KEPT = 2
STATE = "state"


@dataclass(frozen=True, kw_only=True)
class Generation:
    """A checkpoint.

    Args:
        tensors: by name.
        state: JSON values.
    """

    step: int
    tensors: "dict[str, Tensor]"
    state: dict[str, Any]


def write(folder: Path, checkpoint: Generation) -> None:
    """Add a generation to `folder`. Raises OSError; the earlier generations are intact then."""
    put(folder, checkpoint.step, encoded(checkpoint))


class Background:
    """Writer of generations in a thread, one after the other, while training goes on.

    A generation has the state at the time of the call.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._thread = ThreadPoolExecutor(max_workers=1)
        self._last: Future[None] | None = None

    def write(self, checkpoint: Generation) -> None:
        """Start writing, after the previous write has ended. Raises its exception."""
        data = encoded(checkpoint)
        self.wait()
        self._last = self._thread.submit(put, self._folder, checkpoint.step, data)

    def check(self) -> None:
        """Raise the exception of the last write, if it has ended."""
        if self._last is not None and self._last.done():
            self.wait()

    def wait(self) -> None:
        """Wait for the last write. Raises its exception, once."""
        if self._last is None:
            return
        try:
            self._last.result()
        finally:  # a signal may end the waiting before the writing
            if self._last.done():
                self._last = None


def encoded(checkpoint: Generation) -> bytes:
    """Return the bytes of the file of a generation."""
    from safetensors.torch import save

    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in checkpoint.tensors.items()}
    return save(tensors, metadata={STATE: json.dumps(checkpoint.state)})


def put(folder: Path, step: int, data: bytes) -> None:
    """Write the bytes of a generation, read them back, list it, and remove the oldest."""
    entry = {
        "file": GENERATIONS.replace("*", str(step)),
        "step": step,
        "bytes": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
    }
    path = folder / entry["file"]
    write_atomic(path, data)
    if read_regular(path, len(data)) != data:
        raise OSError(f"{path}: the written bytes cannot be read back")
    earlier = [other for other in _index(folder) if other["step"] != step]
    kept = [entry, *earlier][:KEPT]
    write_json(folder / INDEX, {"schema": SCHEMA, "generations": kept})
    _remove_others(folder, {other["file"] for other in kept})


def read(folder: Path) -> Generation | None:
    """Read the newest whole generation; None if there is no checkpoint.

    A damaged generation is reported and skipped. Raises UserError if none is left.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load

    generations = _index(folder)
    for number, entry in enumerate(generations):
        try:
            data = _read(folder, entry)
            return Generation(step=entry["step"], tensors=load(data), state=_state(data))
        except (OSError, ValueError, KeyError, TypeError, RecursionError, SafetensorError) as error:
            last = number == len(generations) - 1
            say(f"{folder / entry['file']}: damaged: {error}; {'no' if last else 'an'} earlier checkpoint is there")
    if generations:
        raise UserError(f"{folder}: no checkpoint is whole; delete {folder / INDEX} to train from the start")
    return None


def remove(folder: Path) -> None:
    """Remove every generation of a finished run. Raises UserError if the folder is read-only."""
    try:
        if os.path.lexists(folder / INDEX):
            (folder / INDEX).unlink()
        _remove_others(folder, set())
    except OSError as error:
        raise explained(error, folder, None) from error


def _index(folder: Path) -> list[dict[str, Any]]:
    path = folder / INDEX
    try:
        index = read_json(path)
        if index["schema"] != SCHEMA:
            raise UserError(
                f"{path}: schema {index['schema']}, expected {SCHEMA}: it is of another version of lra; use that "
                "version, or delete it to train from the start"
            )
        for entry in index["generations"]:
            if Path(entry["file"]).name != entry["file"] or not isinstance(entry["step"], int):
                raise ValueError(f"an entry {entry}")
        return index["generations"]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path}: damaged: {error}; delete it to train from the start") from None


def _read(folder: Path, entry: dict[str, Any]) -> bytes:
    """Read and verify the bytes of a generation. Raises OSError or ValueError."""
    data = read_regular(folder / entry["file"], entry["bytes"])
    if len(data) != entry["bytes"]:
        raise ValueError(f"{len(data)} bytes, expected {entry['bytes']}")
    digest = hashlib.sha256(data).hexdigest()
    if digest != entry["sha256"]:
        raise ValueError(f"SHA-256 {digest}, expected {entry['sha256']}")
    return data


def _state(data: bytes) -> dict[str, Any]:
    """Parse the JSON text in the header of a safetensors file."""
    size = int.from_bytes(data[:8], "little")
    return json.loads(json.loads(data[8 : 8 + size])["__metadata__"][STATE])


def _remove_others(folder: Path, kept: set[str]) -> None:
    for path in folder.glob(GENERATIONS):
        if path.name not in kept:
            path.unlink()
