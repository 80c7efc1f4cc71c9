"""Load a trained model from the folder of its run, and classify new examples."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from lra.config import configure
from lra.config.values import parsed
from lra.core import code
from lra.core.errors import UserError
from lra.datasets.builder import TaskBuilder
from lra.datasets.task import Split, TaskSpec
from lra.init.weights import weights_of_run
from lra.network.architecture import Architecture
from lra.records.names import RECORD, TOKENIZER, WEIGHTS
from lra.records.record import RunRecord
from lra.runs.build import architecture
from lra.training.batches import cuts, predict, read

Document = str | Sequence[int] | np.ndarray
"""A text, or its token ids without padding."""
Example = Document | Sequence[Document]
"""A document, or a sequence of documents if each example of the task has several documents."""


@dataclass(frozen=True)
class Prediction:
    """The predicted class of an example and its probability, and the probabilities of all classes by name."""

    label: str
    probability: float
    probabilities: dict[str, float]


class TrainedModel:
    """A trained classifier, with the weights for which its run reports the test score.

    Attributes:
        record: the record of its run.
        module: the PyTorch module, in evaluation mode on the CPU.
        classes: names of the classes.
    """

    def __init__(self, folder: Path, packages: Sequence[str]) -> None:
        if not (folder / RECORD).exists():
            run = next((path.parent for path in sorted(folder.rglob(RECORD))), "runs/.../seed1")
            raise UserError(f"{folder}: no {RECORD} there; expected the folder of one run, such as {run}")
        self.record = RunRecord.read(folder / RECORD)
        config = self.record.config
        if not (folder / WEIGHTS).exists():
            raise UserError(f"{folder}: no {WEIGHTS} there; train the run with checkpoint.keep=true")
        self._spec = TaskSpec(**self.record.spec)
        if self._spec.objective != "classify":
            raise UserError(f"{folder}: {self._spec.name} is no classification task; lra.model loads classifiers only")
        self.classes = self.record.classes
        configure.refuse_untrusted(config, packages)
        self._builder: TaskBuilder = configure.build(config["task"], "task", kind=TaskBuilder)()
        self.module = architecture(config["attention"], parsed(Architecture, config["model"], "model."))(self._spec)
        # This check follows the build, which imports the user's modules, so that it compares the imported code.
        for file, sha256 in code.fingerprints(*code.targets(config)).items():
            if config.get("code", {}).get(file) != sha256:
                raise UserError(f"{folder}: the code in {file} has changed since the run; restore it, or train again")
        self.module.load_state_dict(weights_of_run(folder / WEIGHTS))  # checks their SHA-256 against the record
        self.module.eval()
        self._tokenizer = folder / TOKENIZER

    def predict(self, examples: Iterable[Example] | str, *, batch: int = 32) -> list[Prediction]:
        """Return the predicted class of each example, with probabilities.

        Args:
            examples: texts or token ids; pairs of them for tasks with two documents. Texts are cut as in
                training. A single text is read as one example.
            batch: number of examples computed together.

        Returns:
            One prediction per example, in the order of `examples`.

        Raises:
            UserError: an example does not fit the task, or an output is not finite.
        """
        if isinstance(examples, str):
            examples = [examples]
        documents, wanted = [], self._spec.documents
        for example in examples:
            if wanted > 1 and (isinstance(example, str) or len(example) != wanted):
                raise UserError(f"{example!r:.80}: expected {wanted} documents in each example of {self._spec.name}")
            documents += [self._ids(document) for document in ([example] if wanted == 1 else example)]  # type: ignore
        if not documents:
            return []
        count = len(documents) // self._spec.documents
        split = Split(
            tokens=np.concatenate(documents),
            offsets=np.cumsum([0, *map(len, documents)]),
            index=np.arange(len(documents), dtype=np.int32),
            labels=np.zeros(count, np.uint8),  # unknown; `read` needs one for each example
        )
        probabilities, precision = np.empty((count, self._spec.classes)), self.record.config["precision"]
        with torch.inference_mode():
            for piece in cuts(self.module, split, np.arange(count), batch, precision):
                part = read(split, np.arange(count), *piece)
                logits, _ = predict(self.module, part, precision)  # [m, classes]
                if not (finite := logits.isfinite().all(dim=-1)).all():
                    numbers = part.indices[~finite.cpu().numpy()].tolist()
                    raise UserError(f"examples {numbers} (numbered from 0): outputs of the model are NaN or infinite")
                probabilities[part.indices] = logits.double().softmax(dim=-1).cpu().numpy()
        by_name = [dict(zip(self.classes, row, strict=True)) for row in probabilities.tolist()]
        labels = [self.classes[best] for best in probabilities.argmax(axis=1)]
        return [Prediction(label, named[label], named) for label, named in zip(labels, by_name, strict=True)]

    def _ids(self, document: Document) -> np.ndarray:
        """Return the token ids [L] uint16 of a document. Raises UserError if they do not fit the task."""
        if isinstance(document, str):
            ids = self._builder.encode(document, self._tokenizer)
        else:
            ids = self._builder.stored_ids(np.asarray(document))
        max_len, last = self._spec.max_len, self._spec.vocab_size - 1
        if isinstance(document, str) and not len(ids):
            raise UserError(f"{document!r:.80}: expected a text of at least one token")
        if (
            ids.ndim != 1
            or ids.dtype.kind not in "iu"
            or not 1 <= len(ids) <= max_len
            or ids.min() < 1
            or ids.max() > last
        ):
            raise UserError(f"{document!r:.80}: expected 1 to {max_len} token ids from 1 to {last}")
        return ids.astype(np.uint16)

    def __repr__(self) -> str:
        return f"{self.record.attention}/{self.record.variant} on {self.record.task}, classes {', '.join(self.classes)}"


def model(folder: str | Path, *, packages: Sequence[str] = ()) -> TrainedModel:
    """Load the model of a finished run.

    Args:
        folder: folder of the run, with `weights.safetensors`.
        packages: trusted packages besides lra that define the run's attention or task, as in `packages=[...]`.

    Raises:
        UserError: the weights were not kept or are not those of the record, or the code has changed since the run.
    """
    return TrainedModel(Path(folder), packages)
