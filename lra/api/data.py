"""`lra.data`: prepare the data of a task and return them as PyTorch and Hugging Face data sets."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from lra.api.training import composed_command
from lra.config import configure
from lra.datasets.builder import TaskBuilder
from lra.datasets.rows import NAMES, Rows, collate, rows_of
from lra.datasets.task import Task, TaskSpec
from lra.datasets.tokenise import TOKENIZER
from lra.runs.prepare import PrepareSettings, prepare

if TYPE_CHECKING:
    import datasets


@dataclass(frozen=True)
class Data:
    """Prepared data of a task.

    Attributes:
        train: PyTorch dataset of the training examples, see `lra.datasets.rows.Rows`; `val` and `test` likewise.
        spec: `vocab_size` with padding, `pad_id`, `max_len`, number of `classes`, `documents` per example, `objective`.
        classes: names of the classes; empty for tasks that do not classify.
        baselines: test scores of trivial baselines by name: accuracy in percent, or perplexity.
        digest: SHA-256 of the data.
        source: origin of the data.
    """

    train: Rows
    val: Rows
    test: Rows
    spec: TaskSpec
    classes: list[str]
    baselines: dict[str, float]
    digest: str
    source: Any
    _task: Task
    _builder: TaskBuilder

    collate = staticmethod(collate)

    def decode(self, row: Mapping[str, Any]) -> Any:
        """Return the text of an example, its picture (grey values [side, side] uint8), or a list of a pair's texts.

        Tokens that do not stand for text or pixels are returned as numbers separated by spaces.

        Args:
            row: an item of `train`, `val` or `test`.
        """
        tokenizer = self._task.folder / TOKENIZER
        ids = [np.asarray(values) for key, values in row.items() if key.startswith("tokens")]
        # `collate` adds padding, which the builder cannot decode.
        documents = [self._builder.decode(document[document != self.spec.pad_id], tokenizer) for document in ids]
        return documents[0] if len(documents) == 1 else documents

    def to_datasets(self) -> "datasets.DatasetDict":
        """Return a `DatasetDict` of the splits `train`, `validation` and `test`, with feature types and class names.

        `validation` is missing if the task validates on the test split. For tasks that do not classify, `targets` is
        -100 at positions that are not scored. For language models each row is a document, without `targets`.
        """
        from datasets import DatasetDict

        splits = {NAMES[rows.name]: rows for rows in (self.train, self.val, self.test)}  # `val` may be the test split
        return DatasetDict({name: rows.dataset(self.classes, self.digest) for name, rows in splits.items()})

    def __repr__(self) -> str:
        return f"data of {self.spec.name}: {', '.join(f'{name} {len(getattr(self, name)):,}' for name in NAMES)}"


def data(task: str, *overrides: str) -> Data:
    """Prepare the data of a task, as `lra-prepare task=TASK OVERRIDES` does, and return them.

    Args:
        task: name of an option of `task=`.
        overrides: as on the command line, such as `protocol=strict`.

    Raises:
        UserError: a mistake in an override, or data that are missing or damaged.
    """
    with composed_command("prepare", (f"task={task}", *overrides)) as config:
        settings = configure.part(PrepareSettings, config)
        words = list(config.hydra.overrides.task)
    builder, prepared = prepare(settings, words)
    rows = rows_of(prepared)
    return Data(
        train=rows["train"],
        val=rows.get("val", rows["test"]),
        test=rows["test"],
        spec=prepared.spec,
        classes=builder.class_names() if prepared.objective == "classify" else [],
        baselines=prepared.baselines,
        digest=prepared.digest,
        source=prepared.source,
        _task=prepared,
        _builder=builder,
    )
