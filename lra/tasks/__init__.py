"""One file for each task. What one imports to write another is here: the shape every task has, which stands in
`lra.data`."""

from lra.data import PADDING, Builder, Facts, Place, Progress, Split, Task, titled, unheard

__all__ = ["PADDING", "Builder", "Facts", "Place", "Progress", "Split", "Task", "titled", "unheard"]
