"""Weights that another run was tested with."""

from typing import TYPE_CHECKING

from lra.init import Start, read_of_run
from lra.records.names import WEIGHTS

if TYPE_CHECKING:
    from torch import Tensor

    from lra.data import Task
    from lra.model.model import Model


class Checkpoint(Start):
    """Weights of a run; models share those with equal names and shapes.

    Args:
        folder: of the run.
        take: see `Start`.

    Raises:
        UserError: a record beside the weights names another SHA-256.
    """

    file = WEIGHTS
    hint = "train that run with checkpoint.keep=true"

    def tensors(self, model: "Model", task: "Task") -> "dict[str, Tensor]":
        return read_of_run(self.path)
