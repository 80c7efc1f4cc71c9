"""What a run left beside its record: predictions, costs, a text; and where links to the record lead."""

import io
from pathlib import PurePosixPath
from typing import Any

import numpy as np

from lra.core.errors import UserError, printable
from lra.records import record
from lra.records.names import COSTS, PREDICTIONS, SAMPLE
from lra.records.run_files import RunFiles

Record = dict[str, Any]
"""As the file has it, with its `path` below the results folder, whether it is `packed`, and the files beside it that
are `damaged`."""


def anchor(run: Record) -> str:
    """Where the page shows a record that is packed, and that no link can open."""
    return f"run/{PurePosixPath(run['path']).parent}"


def beside(run: Record, name: str) -> str:
    """The path of a file beside a record."""
    return str(PurePosixPath(run["path"]).with_name(name))


def predictions(files: RunFiles, run: Record, selection: str) -> np.ndarray | None:
    """Predicted classes and labels [2, n] of the test split under a selection rule, where the run kept them.

    They are kept for the checkpoint that the run's own rule selects. Raises UserError.
    """
    shown = run["test"].get(selection)
    if shown is None or shown["step"] != run["test"][run["selection"]]["step"]:
        return None
    array = _array(files, run, PREDICTIONS, kinds="iu")
    if array is not None and array.shape != (2, shown["examples"]):
        place = files.shown(beside(run, PREDICTIONS))
        raise UserError(f"{place}: expected an array of shape (2, {shown['examples']}), found {array.shape}")
    return array


def costs(files: RunFiles, run: Record) -> np.ndarray | None:
    """The training cost of every batch, where the run kept them. Raises UserError."""
    array = _array(files, run, COSTS, kinds="f")
    if array is not None and array.ndim != 1:
        raise UserError(
            f"{files.shown(beside(run, COSTS))}: expected a line of numbers, found a shape of {array.shape}"
        )
    return array


def text(files: RunFiles, run: Record) -> str | None:
    """What a language model wrote, in one line, where the run kept it. Raises UserError."""
    data = contents(files, run, SAMPLE)
    return None if data is None else printable(" ".join(data.decode(errors="replace").split()))


def _array(files: RunFiles, run: Record, name: str, kinds: str) -> np.ndarray | None:
    """An array of one of these kinds of numbers, as numpy names them."""
    data = contents(files, run, name)
    if data is None:
        return None
    try:
        array = np.lib.format.read_array(io.BytesIO(data), allow_pickle=False)
        if array.dtype.kind not in kinds:
            raise ValueError(f"its numbers are of the type {array.dtype}")
        return array
    except (ValueError, EOFError, MemoryError, OverflowError) as error:
        raise UserError(f"{files.shown(beside(run, name))}: not a readable array: {error}") from None


def contents(files: RunFiles, run: Record, name: str) -> bytes | None:
    """A file beside a record; None where there is none, or where it is not what the record says. Raises UserError."""
    path = beside(run, name)
    if name in run.get("damaged", ()) or not files.exists(path):
        return None
    try:
        data = files.read(path)
        record.check_contents(name, data, run)
        return data
    except (OSError, ValueError) as error:
        raise UserError(f"{files.shown(path)}: {error}") from None
