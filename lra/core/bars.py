"""Progress bars in a terminal, imported if there is one: rich takes a tenth of a second."""

from collections.abc import Iterable

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column
from rich.text import Text


class TerminalBar(Progress):
    """One bar that fits its terminal, with a note below it; both texts are cut if they are too long."""

    note = ""

    def __init__(self, title: str, total: int, done: float) -> None:
        super().__init__(
            TextColumn(
                "{task.description}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis", ratio=3)
            ),
            BarColumn(None, table_column=Column(ratio=2)),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
            expand=True,
            speed_estimate_period=600,
        )
        self.add_task(title, total=total, completed=done)

    def get_renderables(self) -> Iterable[RenderableType]:
        yield self.make_tasks_table(self.tasks)
        if self.note:
            yield Text(self.note, no_wrap=True, overflow="ellipsis")
