"""One file for each task. What one imports to write another is here: the shape every task has, which stands in
`lra.data`."""

from lra.data import PADDING, Place, Progress, Split, Task, TaskBuilder, TaskSpec, no_op_progress, titled

__all__ = ["PADDING", "Place", "Progress", "Split", "Task", "TaskBuilder", "TaskSpec", "no_op_progress", "titled"]
