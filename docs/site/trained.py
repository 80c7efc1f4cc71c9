"""Where an attention was trained, with what result, and how it learned: from the kept results."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader

from lra.report import Report
from lra.report.check.overview import results_folders
from lra.report.render.markup import escape
from lra.report.render.site import plain_rows
from lra.report.statistics import words
from lra.report.statistics.table import Column, TableRow
from lra.report.statistics.words import firm

WIDTH, HEIGHT = 170, 110  # of a panel
LEFT, SPACE, ABOVE, BELOW = 28, 12, 18, 16  # around its curves
ACROSS = 4


@dataclass(frozen=True)
class Trained:
    """A system in a column of a results folder; `reference`: what it is held against there."""

    folder: str
    column: Column
    row: TableRow
    reference: TableRow | None


def trained(top: Path) -> dict[str, list[Trained]]:
    """By attention, the systems without settings of their own."""
    known: dict[str, list[Trained]] = defaultdict(list)
    for folder in results_folders(top / "results"):
        for column in Report(folder).columns:
            rows = {row.name: row for row in plain_rows(column)}
            for row in rows.values():
                reference = rows.get(row.verdict.reference) if row.verdict else None
                known[row.cell.key.attention].append(Trained(folder.name, column, row, reference))
    return known


def section(runs: Sequence[Trained]) -> Iterator[str]:
    """Lines of Markdown; none where it was not trained."""
    if not runs:
        return
    yield "## Where it was trained\n"
    folder, columns = _most(runs)
    metric = runs[0].column.metric
    where = f"[{folder}](../results/{folder}/README.md)"
    yield f"How it learned in {where}: validation {metric}, a line for each seed; in grey the reference.\n"
    yield _figure(columns)
    yield '<details markdown="1"><summary>All results: test split, mean ± sd over seeds, small models</summary>\n'
    yield "| results | task | system | result | seeds | |\n|---|---|---|---:|---:|---|"
    for run in runs:
        cells = [f"[{run.folder}](../results/{run.folder}/README.md)", escape(_task(run.column)), escape(run.row.name)]
        cells += [words.mean_sd(run.row.summary), str(run.row.summary.done), _said(run.row)]
        yield f"| {' | '.join(cells)} |"
    yield "\n</details>\n"


def _most(runs: Sequence[Trained]) -> tuple[str, dict[str, list[Trained]]]:
    """The folder in which it was trained in most races, else in most columns; and these, by what they are called."""
    folders: dict[str, dict[str, list[Trained]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        folders[run.folder][_task(run.column)].append(run)

    def weight(item: tuple[str, dict[str, list[Trained]]]) -> tuple[int, int]:
        return sum(alike[0].row.race is not None for alike in item[1].values()), len(item[1])

    return max(folders.items(), key=weight)


def _task(column: Column) -> str:
    return f"{column.short}, {column.key[0]}"


def _said(row: TableRow) -> str:
    """Its verdict: of a race who got to the goal, else beside the reference, after Holm's correction."""
    if row.race is not None:
        return row.race.word
    return "the reference" if row.verdict is None else f"{firm(row)} ({escape(row.verdict.reference)})"


@dataclass(frozen=True)
class Line:
    """The validation of a seed, in units of the picture. `kind`: whose it is, `it` or `reference`."""

    kind: str
    points: list[tuple[float, float]]


@dataclass(frozen=True)
class Panel:
    """A task. `left`, `above`: where it stands; `right`, `bottom`: where its axes end, at `last` steps and at 0;
    `top`: the value at their upper end."""

    title: str
    left: float
    above: float
    right: float
    bottom: float
    last: int
    top: float
    lines: list[Line]


def _figure(columns: dict[str, list[Trained]]) -> str:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    panels = [_panel(place, title, runs) for place, (title, runs) in enumerate(columns.items())]
    shape = {"across": min(len(panels), ACROSS), "down": -(-len(panels) // ACROSS), "WIDTH": WIDTH, "HEIGHT": HEIGHT}
    return environment.get_template("curves.svg.j2").render(panels=panels, **shape)


def _panel(place: int, title: str, runs: list[Trained]) -> Panel:
    metric = runs[0].column.metric
    curves = [("reference", curve) for run in runs if run.reference for curve in run.reference.curves.values()]
    curves += [("it", curve) for run in runs for curve in run.row.curves.values()]
    values = [
        (kind, list(zip(curve["step"], curve[f"val_{metric}"], strict=True)))
        for kind, curve in curves
        if f"val_{metric}" in curve
    ]
    last = max((step for _, curve in values for step, _ in curve), default=1)
    top = 100 if metric == "accuracy" else max((value for _, curve in values for _, value in curve), default=1)
    right, bottom = WIDTH - LEFT - SPACE, HEIGHT - ABOVE - BELOW
    lines = [
        Line(kind, [(right * step / last, bottom * (1 - value / top)) for step, value in curve])
        for kind, curve in values
    ]
    left, above = LEFT + WIDTH * (place % ACROSS), ABOVE + HEIGHT * (place // ACROSS)
    return Panel(title, left, above, right, bottom, last, top, lines)
