"""The weights that another run of ours was tested with."""

from typing import TYPE_CHECKING

from lra.init import Start, read_of_run
from lra.records.names import WEIGHTS

if TYPE_CHECKING:
    from torch import Tensor

    from lra.data import Task
    from lra.model.model import Model


class Checkpoint(Start):
    """`folder`: of the run. Names are those of `Model`, so every model takes from every other what both have.

    Raises UserError where a record lies beside the weights that names others.
    """

    file = WEIGHTS
    hint = "a finished run leaves it where it was trained with checkpoint.keep=true"

    def tensors(self, model: "Model", task: "Task") -> "dict[str, Tensor]":
        return read_of_run(self.path)
