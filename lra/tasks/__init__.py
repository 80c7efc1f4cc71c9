"""Tasks, one file or folder each. This module exports what a new task imports from `lra.datasets`."""

from lra.datasets.builder import TaskBuilder
from lra.datasets.task import PADDING, DataConfig, Progress, Split, Task, TaskSpec, no_op_progress, titled

__all__ = ["PADDING", "DataConfig", "Progress", "Split", "Task", "TaskBuilder", "TaskSpec", "no_op_progress", "titled"]
