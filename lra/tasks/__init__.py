"""Define the tasks, one per module. This package exports the names of `lra.datasets` that a new task needs."""

from lra.datasets.builder import TaskBuilder
from lra.datasets.task import PADDING, DataConfig, Progress, Split, Task, TaskSpec, no_op_progress, titled

__all__ = ["PADDING", "DataConfig", "Progress", "Split", "Task", "TaskBuilder", "TaskSpec", "no_op_progress", "titled"]
