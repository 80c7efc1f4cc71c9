"""`lra.data`: the prepared data of a task as PyTorch and Hugging Face data sets."""

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
        train: `torch.utils.data.Dataset` of rows, see `lra.datasets.rows.Rows`; likewise `val` and `test`.
        spec: `vocab_size` with padding, `pad_id`, `max_len`, `classes`, `documents` per example, `objective`.
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
        """Return a row's text, its picture as grey values [side, side] uint8, or a list of the two texts of a pair.

        Tokens without a text are returned as numbers separated by spaces.
        """
        tokenizer = self._task.folder / TOKENIZER
        ids = [np.asarray(values) for key, values in row.items() if key.startswith("tokens")]
        # Without padding, which the builder cannot decode.
        documents = [self._builder.decode(document[document != self.spec.pad_id], tokenizer) for document in ids]
        return documents[0] if len(documents) == 1 else documents

    def to_datasets(self) -> "datasets.DatasetDict":
        """Return the splits `train`, `validation` and `test` with their features and the names of classes.

        Tokens are not copied where they are stored in the order of the rows. There is no `validation` where the task
        validates on the test split. The targets of tasks that do not classify are -100 at positions without one; a row
        of a language model is a document.
        """
        from datasets import DatasetDict

        splits = {NAMES[rows.name]: rows for rows in (self.train, self.val, self.test)}  # val may be test
        return DatasetDict({name: rows.dataset(self.classes, self.digest) for name, rows in splits.items()})

    def __repr__(self) -> str:
        return f"data of {self.spec.name}: {', '.join(f'{name} {len(getattr(self, name)):,}' for name in NAMES)}"


def data(task: str, *overrides: str) -> Data:
    """Prepare the data of a task as `lra-prepare task=TASK OVERRIDES`, and open them.

    Args:
        task: option of `task=`.
        overrides: as on the command line, such as `protocol=strict`.

    Raises:
        UserError: a mistake, or data that are missing or damaged.
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
