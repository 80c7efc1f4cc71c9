"""The weights that another run of ours was tested with."""

from typing import TYPE_CHECKING

from lra.checkpoint import WEIGHTS
from lra.init import Start, read

if TYPE_CHECKING:
    from torch import Tensor

    from lra.model import Model
    from lra.tasks import Task


class Checkpoint(Start):
    """`folder`: of the run. Names are those of `Model`, so every model takes from every other what both have."""

    file = WEIGHTS
    hint = "a finished run leaves it where it was trained with checkpoint.keep=true"

    def tensors(self, model: "Model", task: "Task") -> "dict[str, Tensor]":
        return read(self.path)
