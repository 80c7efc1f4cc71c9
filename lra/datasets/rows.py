"""Convert splits to map-style PyTorch datasets, Arrow tables and Parquet files, for code outside of `lra`."""

import secrets
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset

from lra.core.errors import UserError
from lra.datasets.cache import SPLITS, splits_of
from lra.datasets.task import PADDING, Task, TaskSpec

if TYPE_CHECKING:
    import datasets
    import pyarrow as pa

IGNORED = -100  # target at positions that are not scored: the default `ignore_index` of cross_entropy
AT_ONCE = 1_024  # maximum number of rows in an Arrow batch
NAMES = {"train": "train", "val": "validation", "test": "test"}  # split names of the library `datasets`

Row = dict[str, Any]


class Rows(Dataset[Row]):
    """Dataset of the examples of one split, read from memory-mapped files.

    A pickle holds only folder, name and spec; the files are opened again when it is loaded. An item is a dictionary of
    tensors without padding, int64 unless another type is given:

    - tasks that classify: `tokens` [L], or `tokens_1` and `tokens_2` for pairs, and the integer `label`;
    - other tasks: `tokens` [L], `targets` [L], which are -100 at positions that are not scored, and `mask` bool [L],
      which is True at scored positions.

    Args:
        folder: folder of the prepared task.
        name: name of the split.
        spec: spec of the task.
    """

    def __init__(self, folder: Path, name: str, spec: TaskSpec) -> None:
        self.folder, self.name, self.spec = folder, name, spec
        self.split = splits_of(folder, spec)[name]

    def __reduce__(self) -> tuple[Any, ...]:
        return Rows, (self.folder, self.name, self.spec)

    def __len__(self) -> int:
        return len(self.split)

    def __getitem__(self, row: int) -> Row:
        if not -len(self) <= row < len(self):
            raise IndexError(f"row {row} of {len(self)}")
        row = int(row) % len(self)
        if self.spec.objective != "classify":
            marked, targets = (_tensor(values[0]) for values in self._marked(np.array([row])))
            return {"tokens": marked, "targets": targets, "mask": targets != IGNORED}
        tokens = {name: _tensor(self.split.document(row, number)) for number, name in enumerate(self._columns())}
        return {**tokens, "label": int(self.split.labels[row])}

    def __repr__(self) -> str:
        return f"{self.name} of {self.spec.name}: {len(self):,} rows"

    def _columns(self) -> list[str]:
        return ["tokens"] if self.spec.documents == 1 else [f"tokens_{n + 1}" for n in range(self.spec.documents)]

    def _marked(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the tokens and targets, both [len(rows), L], of a task that predicts at positions.

        All examples must have the same length.
        """
        length = int(self.split.lengths(rows[:1])[0, 0])
        targets = np.full(len(rows) * length, IGNORED)
        scored = self.split.scored(rows, length)  # None if all positions are scored
        targets[slice(None) if scored is None else scored] = self.split.targets(rows).ravel()
        return self.split.pad(rows, length), targets.reshape(len(rows), length)

    def dataset(self, classes: Sequence[str], digest: str) -> "datasets.Dataset":
        """Return the split as a dataset of the library `datasets`, with features and class names.

        The rows have no `mask`. For language modelling a row is a document, since training windows overlap.
        """
        import datasets
        import pyarrow as pa

        small = self.split.tokens.dtype == np.uint8 and not self.split.shift
        tokens = datasets.List(datasets.Value("uint8" if small else "uint16"))
        columns = {name: tokens for name in self._columns()}
        if self.spec.objective == "classify":
            columns["label"] = datasets.ClassLabel(names=[*classes])
        elif self.spec.objective != "next_token":
            columns["targets"] = datasets.List(datasets.Value("int32"))
        features, name = datasets.Features(columns), NAMES[self.name]
        table = pa.Table.from_batches(self._batches(features.arrow_schema), features.arrow_schema)
        fingerprint = f"{digest[:16]}-{name}"  # without one, `datasets` would hash all rows
        return datasets.Dataset(table, datasets.DatasetInfo(features=features), name, fingerprint=fingerprint)

    def _batches(self, schema: "pa.Schema") -> Iterator["pa.RecordBatch"]:
        """Yield the rows of `dataset` as Arrow batches of at most AT_ONCE rows."""
        import pyarrow as pa

        split, documents = self.split, self.spec.documents
        dtype = schema.field(0).type.value_type.to_pandas_dtype()
        for start in range(0, len(split.index) // documents, AT_ONCE):
            # [rows, P]
            stored = split.index[start * documents : (start + AT_ONCE) * documents].reshape(-1, documents)
            columns: list[Any] = [[ids.astype(dtype) + split.shift for ids in split.stored(rows)] for rows in stored.T]
            if self.spec.objective == "classify":
                columns.append(split.labels[start : start + AT_ONCE].astype(np.int64))
            elif self.spec.objective != "next_token":
                columns.append([*self._marked(np.arange(start, start + len(stored)))[1].astype(np.int32)])
            arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _tensor(ids: np.ndarray) -> Tensor:
    return torch.from_numpy(ids.astype(np.int64))


def collate(rows: Sequence[Row]) -> dict[str, Tensor]:
    """Return a batch of rows, padded on the right to the longest row: tokens with 0, targets with -100.

    The batch has the keys of the rows. Shapes are [B] for `label`, and [B, L] for all other keys. If the rows have
    no `mask`, the batch gets masks [B, L] that are True at tokens and False at padding: `mask`, or `mask_1` and
    `mask_2` for pairs.
    """
    batch: dict[str, Tensor] = {}
    for key in rows[0]:
        if key == "label":
            batch[key] = torch.tensor([row[key] for row in rows])
            continue
        padding = IGNORED if key == "targets" else PADDING
        batch[key] = pad_sequence([row[key] for row in rows], batch_first=True, padding_value=padding)
        if "mask" not in rows[0] and key.startswith("tokens"):
            lengths = torch.tensor([len(row[key]) for row in rows])
            batch[key.replace("tokens", "mask")] = torch.arange(int(lengths.max())) < lengths[:, None]  # [B, L]
    return batch


def rows_of(task: Task) -> dict[str, Rows]:
    """Return a dataset for each split of a prepared task, by name; no `val` if the task validates on the test split."""
    splits = [name for name in SPLITS if not (name == "val" and task.validates_on_test)]
    return {name: Rows(task.folder, name, task.spec) for name in splits}


def write_parquet(task: Task, classes: Sequence[str], folder: Path) -> None:
    """Write a Parquet file for each split, with the features that `datasets.load_dataset` reads."""
    import datasets

    datasets.disable_progress_bars()
    for name, rows in rows_of(task).items():
        rows.dataset(classes, task.digest).to_parquet(folder / f"{NAMES[name]}.parquet")


def refuse_used(folder: Path, key: str) -> None:
    """Raise UserError, naming the option `key`, unless `folder` is new or an empty folder."""
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
        raise UserError(f"{key}={folder}: expected a new or an empty folder; choose another one")


@contextmanager
def new_folder(folder: Path, key: str) -> Iterator[Path]:
    """Yield a temporary folder that is renamed to `folder` at the end; after an error it is deleted.

    Raises:
        UserError: `folder` cannot be written, or it is a file or not empty, so that the renaming fails.
    """
    # A sibling of `folder`, because a folder can be renamed only within its file system.
    staging = folder.absolute().with_name(f".{folder.name}.{secrets.token_hex(8)}.tmp")
    try:
        staging.mkdir(parents=True)
        yield staging
        staging.replace(folder)
    except OSError as error:
        raise UserError(f"{key}={folder}: {error.strerror or error}; nothing was written") from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)
