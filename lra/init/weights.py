"""Load initial weights by name from a file, for example from the weights of another run."""

import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from lra.core.errors import UserError
from lra.core.files import sha256
from lra.core.paths import expanded
from lra.network.architecture import Group, belongs
from lra.records import record, tensors
from lra.records.names import WEIGHTS

if TYPE_CHECKING:  # torch takes seconds to import, and a finished run is skipped without it
    from torch import Tensor

    from lra.datasets.task import Task
    from lra.network.model import Model

NOT_THERE, NOT_WANTED = "not in the file", "not in init.take"  # reasons not to load a weight


class InitialWeights(ABC):
    """Base class of initial weights from a file; the constructor's keywords are the options in `conf/init/`.

    Args:
        folder: folder with the file of weights.
        take: groups of weights to load, all of which must be in the file with the right shape; None loads all weights
            that fit.
    """

    file: ClassVar[str]
    hint: ClassVar[str]

    def __init__(self, *, folder: str, take: list[Group] | None) -> None:
        self.folder = folder
        self.take = take

    @cached_property
    def path(self) -> Path:
        """Path of the file of weights."""
        return expanded(self.folder, "init.folder") / self.file

    @cached_property
    def sha256(self) -> str:
        """SHA-256 of the file; it is part of the configuration that identifies a run."""
        if not self.path.is_file():
            raise UserError(f"init.folder: {self.path}: no such file; {self.hint}")
        return sha256(self.path)

    @abstractmethod
    def tensors(self, model: "Model", task: "Task") -> "dict[str, Tensor]":
        """Return the weights from the file by their names in `model`, which need not have all of them."""

    def load(self, model: "Model", task: "Task") -> dict[str, Any]:
        """Load the weights into the model.

        Returns:
            Dict with the SHA-256 of the file (`sha256`), the number of loaded parameters (`parameters_taken`), and
            counts of weights by name: weights loaded from the file (`taken`), weights of the model that keep their
            random values, by reason (`left`), and weights of `tensors` that the model does not have (`unused`).

        Raises:
            UserError: if weights in `take` are missing or have another shape, a frozen weight is not loaded, or no
                weight fits.
        """
        stored, wanted = self.tensors(model, task), model.state_dict()
        frozen = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
        taken, left = {}, {}
        for name, value in wanted.items():
            if self.take is not None and not belongs(name, self.take):
                reason = NOT_WANTED
            elif name not in stored:
                reason = NOT_THERE
            elif stored[name].shape != value.shape:
                reason = f"shape {[*stored[name].shape]} in the file, {[*value.shape]} in the model"
            else:
                taken[name] = stored[name]
                continue
            left[name] = reason
            if self.take is not None and reason != NOT_WANTED:
                raise UserError(f"init.take=[{','.join(self.take)}]: {self.path}: {name}: {reason}")
            if name in frozen:
                raise UserError(f"train.freeze: {name} would keep its random values: {self.path}: {reason}")
        if not taken:
            raise UserError(f"init: {self.path} has no weight that fits the model, by name and shape")
        model.load_state_dict(taken, strict=False)  # not strict: weights in `left` keep their random values
        return {
            "sha256": self.sha256,
            "parameters_taken": sum(wanted[name].numel() for name in taken),
            "taken": _summary(taken),
            "left": {reason: _summary(name for name in left if left[name] == reason) for reason in left.values()},
            "unused": _summary(name for name in stored if name not in wanted),
        }


class Checkpoint(InitialWeights):
    """Initial weights from another run; a weight is loaded if its name and shape are the same in both models."""

    file = WEIGHTS
    hint = "train the run in this folder with checkpoint.keep=true"

    def tensors(self, model: "Model", task: "Task") -> "dict[str, Tensor]":
        return weights_of_run(self.path)


def weights_of_run(path: Path) -> "dict[str, Tensor]":
    """Return the weights of a run. Raises UserError if their SHA-256 is not the one in the run's record."""
    known = path.with_name(record.NAME)
    if known.exists():
        files, digest = record.read(known).get("files") or {}, sha256(path)
        if files.get(path.name) != digest:
            raise UserError(
                f"{path}: its SHA-256 is {digest}, not that in {known}: these are not the weights of that run"
            )
    return tensors.read(path)


def _summary(names: Iterable[str]) -> dict[str, int]:
    """Return a dict from name to count, with `blocks.*` in place of `blocks.0`, `blocks.1`, ..."""
    return dict(Counter(re.sub(r"^blocks\.\d+", "blocks.*", name) for name in names))
