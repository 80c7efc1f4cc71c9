"""README.md of a results folder."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from lra.report import layout
from lra.report.layout import Grid, TableText
from lra.report.published import Published
from lra.report.records import RecordedCell
from lra.report.statistics import ENOUGH, OUTLIER, POINTS
from lra.report.table import FULL_PATTERN, Column, Section

RULES = {
    "best_val": "the checkpoint with the best validation accuracy is tested",
    "last": "the last step is tested; nothing is selected",
    "best_test": "the best of all looks at the test split, which this protocol also validates on",
}
FULL = f"""\
`{FULL_PATTERN}`: at this length the mechanism leaves out no pair of positions, so that the row compares softmax
attention with itself (Reformer's has queries that are keys, Nyströmformer's a convolution beside it).
"""
STEPS = """\
The first evaluation at which a run was as good as the Transformer of the same seed, trained from scratch, at its end /
at its best (in its own row: how good that was).
"""
LEGEND = f"""\
- `best`, `mean`, `sd` (of the sample, n - 1), Student's t-interval: over the seeds. `seeds`: done/declared.
- **Bold**: this mean is better than that of every other row of its column, baselines included. Tests: two-sided paired
  t-tests over the seeds (a seed fixes the order of the data for all systems), the best mean against each other row, all
  with p < 0.05 after Holm's correction over all these tests under one protocol and selection rule. In a column where a
  declared seed is not done nothing is tested, and nothing is bold.
- `mean - published`: our mean minus the number that the source prints, which is often the best of its seeds; a mean is
  expected to be lower than that.
- `collapsed`: the accuracy is that of the majority class to two decimals, or all predictions are one class. `outlier`:
  modified z-score above {OUTLIER}, among {ENOUGH} seeds or more. Flagged runs stay in every number.
- `expected`: what the best of so many seeds gains over their mean by chance alone, if they are normal: sd times the
  mean of the largest of n standard normal values.
- `seeds to see {POINTS}`: so many seeds give a two-sided t-test at 0.05 a power of 80 % for a difference of {POINTS}:
  seeds of each of two systems with this sd, or, in a table of differences, pairs of runs with the same seed.
- `McNemar`: in so many seeds, of those with predictions, the two systems get different test examples right (exact test,
  p < 0.05 after Holm's correction over the seeds).
"""
FILES = """\
- Files: `table1.csv`, `table1.json` and `table1.tex` (the tables), `seeds.csv` (every run), `pairs.csv` (every pair of
  systems), `index.html` (to sort, filter and compare). `lra-report --verify DIR` recomputes this page and the tables.
"""
PAGES = """\
- Files: `index.html` (to sort, filter and compare). `lra-report DIR` writes the tables for other programs and draws the
  figures. `lra-report --verify DIR` recomputes this page.
"""


def page(
    name: str,
    sections: list[Section],
    cells: list[RecordedCell],
    published: Published,
    figures: Sequence[Path],
    *,
    tables: bool,
    left_out: int,
) -> Iterator[str]:
    """The lines of the page, which lies beside `figures` and, where `tables`, beside tables for other programs.

    `left_out`: how many files could not be read.
    """
    yield f"# Results: {escape(name)}\n"
    yield "Test accuracy in percent (perplexity where it says so), by `lra-report` from the records in this folder.\n"
    if left_out:
        yield f"**Left out: {layout.plural(left_out, 'damaged file')}; `lra-report --verify DIR` gives the names.**\n"
    for section in sections:
        yield f"## Protocol {_code(section.protocol)}, selection `{section.selection}`\n"
        yield f"Selection: {RULES[section.selection]}.{_asked_for(section)}\n"
        if len(section.columns) > 1:
            yield "### Table 1\n"
            yield markdown(layout.overview(section))
            yield "Mean ± sd over the seeds (done/declared).\n"
        if any(row.full_pattern for column in section.columns for row in column.rows):
            yield FULL
        for column in section.columns:
            yield f"### {escape(column.title)}\n"
            yield markdown(layout.table(column))
            yield f"{escape(column.verdict)}\n"
            nothing = "No published figure is for this data, so none stands beside it."
            yield f"{escape(column.published) or nothing}\n"
        for column in section.columns:
            yield f"### Every seed: {escape(column.title)}\n"
            yield markdown(layout.every_seed(column))
            yield markdown(layout.spread(column))
            if column.against:
                yield markdown(layout.differences(column))
            yield from _further(column)
    yield from _field(sections, published)
    if figures:
        yield "## Figures\n"
        for path in figures:
            if path.suffix == ".svg":
                yield f"!{link(path.stem.replace('_', ' '), layout.address(path.as_posix()))}\n"
    yield "## How to read this\n"
    yield LEGEND + (FILES if tables else PAGES)
    yield from _receipts([run for cell in cells for run in cell.runs.values()])


def _further(column: Column) -> Iterator[str]:
    """What not every column has."""
    if column.by_depth:
        yield f"### By number of blocks: {escape(column.title)}\n"
        yield markdown(layout.by_depth(column))
    steps = layout.steps(column)
    if steps:
        yield f"### Steps to the Transformer's validation {column.metric}: {escape(column.title)}\n"
        yield STEPS
        yield markdown(steps)
    texts = [(row, *next(iter(row.texts.items()))) for row in column.rows if row.texts]
    if texts:
        yield f"### Generated texts: {escape(column.title)}\n"
        for row, seed, text in texts:
            yield f"{escape(row.name)}, seed {seed}:\n\n> {escape(text)}\n"


def _asked_for(section: Section) -> str:
    """Says so where the rule is not the runs' own."""
    runs = [run for column in section.columns for row in column.rows for run in row.cell.runs.values()]
    rules = sorted({run["selection"] for run in runs} - {section.selection})
    return f" Asked for with `--selection`; these runs' own rule is `{'`, `'.join(rules)}`." if rules else ""


def _field(sections: list[Section], published: Published) -> Iterator[str]:
    by_task: dict[str, list[Column]] = {}
    for section in sections:
        for column in section.columns:
            if column.source:
                by_task.setdefault(column.task, []).append(column)
    if not by_task:
        return
    yield "## The field\n"
    yield "Published numbers for the same data, beside the means of ours.\n"
    for task in sorted(by_task, key=published.task_order):
        yield f"### The field: {escape(published.title(task))}\n"
        yield markdown(layout.field(by_task[task], published))
    for source in published.sources:
        if any(source.covers(task) for task in by_task):
            yield f"- {escape(source.name)}: {escape(source.reference)} ({escape(source.numbers)})"
    yield ""


def _receipts(runs: list[dict]) -> Iterator[str]:
    def distinct(*keys: str) -> str:
        values = {" ".join(str(run["provenance"][key]) for key in keys) for run in runs}
        return escape(", ".join(sorted(values)))

    commits = {
        f"{run['provenance']['commit']}{' (with uncommitted changes)' * bool(run['provenance']['dirty'])}"
        for run in runs
    }
    versions = {f"torch {run['provenance']['packages']['torch']}, Python {run['provenance']['python']}" for run in runs}
    digests = {f"{run['task']} {run['provenance']['data_sha256']}" for run in runs}
    seconds = sum(sum(run.get("seconds", {}).values()) for run in runs)
    yield "## Receipts\n"
    yield f"- {layout.plural(len(runs), 'run')}, {seconds / 60:.1f} minutes; each seed's number links to its record"
    yield f"- commit: {escape(', '.join(sorted(commits)))}"
    yield f"- data (SHA-256): {'; '.join(sorted(map(escape, digests)))}"
    yield f"- software: {escape('; '.join(sorted(versions)))}"
    yield f"- hardware: {distinct('device', 'cpu')}, threads {distinct('threads')}"
    yield f"- precision: {distinct('precision')}\n"


def markdown(grid: Grid) -> str:
    ruler = ["---" if place < grid.numbers else "---:" for place in range(len(grid.header))]
    lines = [list(map(escape, grid.header)), ruler, *([_text(text) for text in row] for row in grid.rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _text(text: TableText) -> str:
    mark = "**" if text.bold else "*" if text.italic else ""
    shown = f"{mark}{escape(text.text)}{mark}" if text.text else ""
    return link(shown, text.link) if text.link else shown


def escape(text: str) -> str:
    """Names that come from records and files are text, not markup: neither code, emphasis, cells, tags and entities,
    nor the links `[a](b)`, `[a][b]`, `[a]: b` and `http://b`."""
    return re.sub(r"([\\`*|]|<(?=[A-Za-z/!?])|&(?=#?\w+;)|\](?=[\[(:])|:(?=//))", r"\\\1", text)


def _code(text: str) -> str:
    """In a fence that is longer than any in the text."""
    fence = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence} {text} {fence}" if "`" in text else f"{fence}{text}{fence}"


def link(shown: str, address: str) -> str:
    """`shown`: Markdown; `address`: as `layout.address` gives it."""
    return f"[{shown}]({address})"
