"""Long Range Arena as papers print it: its tasks side by side, and their average, under one protocol.

First what needs no long range: the best trivial guess of each task, and systems that read neighbours alone.
"""

from collections.abc import Sequence
from statistics import fmean

from lra.report.formats import decimals
from lra.report.layout import Grid, TableText, texts
from lra.report.published import Published
from lra.report.table import Column, Section, TableRow


def arena(section: Section, published: Published) -> Grid | None:
    """Our means under this protocol, then the published numbers that were obtained under it; None where there are none.
    Only columns of the published data count."""
    sources = [source for source in published.sources if source.protocol == section.protocol]
    columns = {column.task: column for column in section.columns if column.task in published.arena}
    if not sources or not columns:
        return None
    local, others = [], []
    for rows in _by_system(columns).values():
        first = next(iter(rows.values()))
        numbers = [rows[task].summary.mean if task in rows else None for task in published.arena]
        is_local = published.is_local(first.cell.key)
        line = _line(f"{first.name}: no long range" if is_local else first.name, "here", numbers, italic=is_local)
        (local if is_local else others).append(line)
    trivial = [
        max(columns[task].baselines.values(), default=None) if task in columns else None for task in published.arena
    ]
    theirs = [
        _line(name, source.name, [source.number(name, task) for task in published.arena])
        for source in sources
        for name in source.best
        if any(source.number(name, task) is not None for task in published.arena)
    ]
    first = [_line("best trivial guess", "here", trivial, italic=True), *local]
    header = ["system", "whose", *map(published.title, published.arena), "average"]
    return Grid(header, [*first, *others, *theirs], numbers=2, baselines=len(first))


def _by_system(columns: dict[str, Column]) -> dict[tuple, dict[str, TableRow]]:
    """The rows of each system by task, in the order of tables."""
    found: dict[tuple, dict[str, TableRow]] = {}
    for task, column in columns.items():
        for row in column.rows:
            if row.summary.done:
                found.setdefault(row.order, {})[task] = row
    return dict(sorted(found.items()))


def _line(name: str, whose: str, numbers: Sequence[float | None], italic: bool = False) -> list[TableText]:
    """With the average of the numbers that are there, and how many these are where some are missing."""
    there = [number for number in numbers if number is not None]
    average = decimals(fmean(there)) if there else ""
    if there and len(there) < len(numbers):
        average += f" ({len(there)})"
    return [TableText(name, italic=italic), *texts(whose, *map(decimals, numbers), average)]
