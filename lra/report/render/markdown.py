"""README.md and details.md of a results folder; what a person reads there stands in their templates."""

from collections import Counter
from collections.abc import Iterator, Sequence, Set
from pathlib import Path
from typing import Any

from lra.core.errors import printable
from lra.records import names
from lra.report.read.published import Published
from lra.report.read.records import RecordedCell
from lra.report.render import layout
from lra.report.render.layout import Across, captions
from lra.report.render.templates import rendered
from lra.report.statistics.inference import ALPHA, ENOUGH, OUTLIERS, POINTS, POWER
from lra.report.statistics.table import FULL_PATTERN, Column, Section

MOST = 28  # systems in the matrix and the picture
TASKS = 8  # tasks and sections that are named one by one
RULES = {
    "best_val": "the checkpoint with the best validation accuracy is tested",
    "last": "the last step is tested; nothing is selected",
    "best_test": "the best of all looks at the test split, which this protocol also validates on",
}


def readme(
    title: str,
    sections: list[Section],
    cells: list[RecordedCell],
    across: dict[str, list[Across]],
    *,
    pictures: Set[str],
    tables: bool,
    left_out: int,
) -> str:
    """README.md, of at most 80 lines. `pictures`: the names of those beside it; `tables`: whether there are any;
    `left_out`: how many files could not be read."""
    columns = [column for section in sections for column in section.columns]
    headings = layout.headings(sections)
    states = Counter(cell.status(seed) for cell in cells for seed in cell.seeds())
    return rendered(
        "readme.md.j2",
        title=title,
        left_out=left_out,
        done=states["finished"],
        declared=states.total(),
        not_done=[f"{number} {state}" for state, number in sorted(states.items()) if state != "finished"],
        columns=columns,
        named=list(zip(headings, columns, strict=True)),
        summed=list(_summed(across)),
        rules=list(dict.fromkeys(section.selection for section in sections)),
        matrix=layout.matrix(columns, headings, MOST),
        hidden=len({row.order for column in columns for row in column.rows}) - MOST,
        pictures=pictures,
        tables=tables,
        packed=any(run["packed"] for cell in cells for run in cell.runs.values()),
        made=_made(cells),
        names=names,
        RULES=RULES,
        TASKS=TASKS,
    )


def details(
    name: str,
    sections: list[Section],
    cells: list[RecordedCell],
    published: Published,
    across: dict[str, list[Across]],
    figures: Sequence[Path],
    left_out: int,
) -> str:
    """details.md, which lies beside `figures`. `across`: of each section, by its name; `left_out`: how many files
    could not be read."""
    by_task: dict[str, list[Column]] = {}
    for section in sections:
        for column in section.columns:
            if column.source:
                by_task.setdefault(column.task, []).append(column)
    drawn = captions(sections, [path for path in figures if path.suffix == ".svg"])
    return rendered(
        "details.md.j2",
        name=name,
        left_out=left_out,
        sections=sections,
        published=published,
        across=across,
        other_rules=_other_rules,
        field=[
            (published.title(task), layout.field(by_task[task], published))
            for task in sorted(by_task, key=published.task_order)
        ],
        sources=[source for source in published.sources if any(source.covers(task) for task in by_task)],
        figures=[(layout.address(path.as_posix()), caption) for path, caption in drawn.items()],
        made=_made(cells),
        RULES=RULES,
        **{"FULL_PATTERN": FULL_PATTERN, "ALPHA": ALPHA, "POWER": POWER},
        **{"POINTS": POINTS, "ENOUGH": ENOUGH, "OUTLIERS": OUTLIERS},
    )


def _summed(across: dict[str, list[Across]]) -> Iterator[str]:
    """A sentence on all tasks of a table together."""
    for protocol, found in across.items():
        if found:
            best = min(found, key=lambda known: known.rank[0])
            low, high = best.rank[1]
            yield (
                f"Over the tasks of {printable(protocol)}: {best.system} has the best mean rank, {best.rank[0]:.1f} of "
                f"{len(found)} [{low:.1f}, {high:.1f}]."
            )


def _other_rules(section: Section) -> list[str]:
    """The runs' own rule of selection, in a list, where it is not the section's."""
    runs = [run for column in section.columns for row in column.rows for run in row.cell.runs.values()]
    rules = sorted({run["selection"] for run in runs} - {section.selection})
    return ["`, `".join(rules)] if rules else []


def _made(cells: list[RecordedCell]) -> dict[str, Any]:
    """What made the numbers."""
    runs = [run for cell in cells for run in cell.runs.values()]
    made = [run["provenance"] for run in runs]

    def distinct(*keys: str) -> list[str]:
        return sorted({" ".join(str(each[key]) for key in keys) for each in made})

    return {
        "runs": len(runs),
        "minutes": sum(sum(run.get("seconds", {}).values()) for run in runs) / 60,
        "ends": Counter(run.get("ended") for run in runs),
        "commits": sorted({f"{each['commit']}{' (with uncommitted changes)' * bool(each['dirty'])}" for each in made}),
        "digests": sorted({f"{run['task']} {run['provenance']['data_sha256']}" for run in runs}),
        "versions": sorted({f"torch {each['packages']['torch']}, Python {each['python']}" for each in made}),
        "hardware": distinct("device", "cpu"),
        "threads": distinct("threads"),
        "precisions": distinct("precision"),
    }
