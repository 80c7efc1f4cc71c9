"""README.md and details.md of a results folder, and Markdown from tables."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from lra.core.errors import printable
from lra.records.names import DETAILS, PAGE, RECEIPTS, VERDICTS
from lra.report.read.published import Published
from lra.report.read.records import RecordedCell
from lra.report.render import layout
from lra.report.render.layout import DRAWS, Across, Grid, TableText, arena, captions
from lra.report.render.layout import across_table as tasks_table
from lra.report.statistics import formats
from lra.report.statistics.inference import ALPHA, ENOUGH, OUTLIERS, POINTS, POWER
from lra.report.statistics.table import FULL_PATTERN, Column, Section

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
PRETRAINING = """\
Hidden tokens, or next ones, of training inputs that the phase held out, at the step whose weights were taken; mean ± sd
over seeds.
"""
LEGEND = f"""\
- `best`, `mean`, `sd` (of the sample, n - 1), Student's t-interval: over the seeds. `seeds`: done/declared.
- Differences are row minus reference over the seeds that both have: the system that `sweep.reference` names, else the
  Transformer from scratch, else the first row; that of the row's own settings where there are several. Tests: Welch's
  two-sided t-test, which does not count on two systems with one seed being alike. `95 %, seeds`: for new seeds on this
  test set. `95 %, seeds and examples`: for new seeds and other examples of this kind (the variances of a two-way
  layout; where predictions are kept).
- Verdicts: `equivalent` where two one-sided tests at 5 % show that the difference is within `sweep.margin`; else
  `better` or `worse` where p < {ALPHA}; else `undecided`. `p (Holm)`: corrected over the rows of the column. Each row
  alone is called better or worse by chance in up to 6 % of cases, so see that column before you pick one of many.
- `seeds to decide`: so many seeds of each, with the sd found here, show a difference of the margin, and equivalence
  where there is none, with a power of {POWER:.0%} each. With few seeds this is rough.
- **Bold**: this mean is better than that of every other row of its column, baselines included: the largest p of the
  best mean against each of them is below {ALPHA} (an intersection-union test, which needs no correction inside the
  column) after Hochberg's correction over the columns of the table. In a column where a declared seed is not done
  nothing is bold. Two tied leaders are told apart by chance in 4 to 6 % of tables with five seeds or more. With three
  it is 3 % where both vary alike, since Welch's test then counts fewer degrees of freedom than there are, and up to
  7 % where one varies several times more. More than two tied leaders are told apart less often.
- `mean - published`: our mean minus the number that the source prints, which is often the best of its seeds; a mean is
  expected to be lower than that.
- `collapsed`: all predictions are one class, or, where none are kept, the accuracy is that of the majority class.
  `outlier`: by Grubbs's test, among {ENOUGH} seeds or more, which {OUTLIERS:.0%} of normal cells have by chance.
  Flagged runs stay in every number.
- `below baseline`: the whole interval of the mean is worse than the strongest trivial baseline; 2.5 % of systems that
  are exactly as good as it are called so by chance.
- `expected`: what the best of so many seeds gains over their mean by chance alone, if they are normal: sd times the
  mean of the largest of n standard normal values.
- `seeds to see {POINTS}`: so many seeds of each of two systems with this sd give a two-sided t-test at {ALPHA} a power
  of {POWER:.0%} for a difference of {POINTS}.
- `McNemar`: in so many seeds, of those with predictions, the two systems get different test examples right (exact
  test, p < {ALPHA} after Holm's correction over the seeds).
- Over the tasks: the score is 0 for the strongest baseline and 1 for all examples right; intervals by {DRAWS:,}
  bootstrap draws of the runs inside each task, too narrow with few seeds.
"""
FILES = """\
- Files: `table1.csv`, `table1.json` and `table1.tex` (the tables), `seeds.csv` (every run), `pairs.csv` (every pair of
  systems), `index.html` (to sort, filter and compare). `lra-report --verify DIR` recomputes this page and the tables.
"""


def details(
    name: str,
    sections: list[Section],
    cells: list[RecordedCell],
    published: Published,
    across: dict[str, list[Across]],
    figures: Sequence[Path],
    left_out: int,
) -> Iterator[str]:
    """The lines of details.md, which lies beside `figures`. `across`: of each section, by its name; `left_out`: how
    many files could not be read."""
    yield f"# Details: {escape(name)}\n"
    yield "Test accuracy in percent (perplexity where it says so), by `lra-report` from the records in this folder.\n"
    if left_out:
        yield f"**Left out: {formats.plural(left_out, 'damaged file')}; `lra-report --verify DIR` gives the names.**\n"
    for section in sections:
        yield f"## Protocol {_code(section.protocol)}, selection `{section.selection}`\n"
        yield f"Selection: {RULES[section.selection]}.{_asked_for(section)}\n"
        if len(section.columns) > 1:
            yield "### Table 1\n"
            yield markdown(layout.overview(section))
            yield f"Mean ± sd over the seeds (done/declared). {layout.legend(section.columns)}\n"
            yield f"{escape(layout.tasks(section.columns))}\n"
        if any(row.full_pattern for column in section.columns for row in column.rows):
            yield FULL
        for column in section.columns:
            yield from _column(column)
        beside = arena(section, published)
        if beside is not None:
            yield "### Long Range Arena\n"
            yield markdown(beside)
            yield "Averages of the numbers that stand in a row (how many, where some are missing).\n"
        if across.get(section.name):
            yield "### Over the tasks\n"
            yield markdown(tasks_table(across[section.name]))
        for column in section.columns:
            yield from _every_seed(column)
    yield from _field(sections, published)
    yield from _figures(sections, figures)
    yield "## How to read this\n"
    yield LEGEND + FILES
    yield "## Receipts\n"
    yield from receipts([run for cell in cells for run in cell.runs.values()])


def _column(column: Column) -> Iterator[str]:
    """A table, what it answers, and what is published beside it."""
    yield f"### {escape(column.title)}\n"
    yield markdown(layout.table(column))
    yield f"{escape(column.answer)}\n"
    yield f"{escape(column.verdict)}\n"
    yield f"{escape(column.published) or 'No published figure is for this data, so none stands beside it.'}\n"


def _figures(sections: list[Section], paths: Sequence[Path]) -> Iterator[str]:
    if not paths:
        return
    yield "## Figures\n"
    for path, caption in captions(sections, [path for path in paths if path.suffix == ".svg"]).items():
        yield f"!{link(escape(caption.title), layout.address(path.as_posix()))}\n"
        yield f"{escape(f'{caption.title}. {caption.caveats}'.rstrip())}\n"


def _every_seed(column: Column) -> Iterator[str]:
    yield f"### Every seed: {escape(column.title)}\n"
    yield markdown(layout.every_seed(column))
    yield markdown(layout.spread(column))
    if any(row.verdict for row in column.rows):
        yield markdown(layout.verdicts(column))
    if column.against:
        yield markdown(layout.differences(column))
    yield from _further(column)


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
    reached = layout.pretraining_table(column)
    if reached:
        yield f"### What pretraining reached: {escape(column.title)}\n"
        yield PRETRAINING
        yield markdown(reached)
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


def receipts(runs: list[dict]) -> Iterator[str]:
    """What made the numbers."""

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
    yield f"- {formats.plural(len(runs), 'run')}, {seconds / 60:.1f} minutes"
    early = sum(run.get("ended") == "no progress" for run in runs)
    if early:
        yield f"- ended before all steps, since the validation got no better: {formats.plural(early, 'run')}"
    yield f"- commit: {escape(', '.join(sorted(commits)))}"
    yield f"- data (SHA-256): {'; '.join(sorted(map(escape, digests)))}"
    yield f"- software: {escape('; '.join(sorted(versions)))}"
    yield f"- hardware: {distinct('device', 'cpu')}, threads {distinct('threads')}"
    yield f"- precision: {distinct('precision')}\n"


def markdown(grid: Grid) -> str:
    ruler = ["---" if side == "l" else "---:" for side in grid.sides]
    lines = [list(map(escape, grid.header)), ruler, *([_text(text) for text in row] for row in grid.rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _text(text: TableText) -> str:
    mark = "**" if text.bold else "*" if text.italic else ""
    shown = f"{mark}{escape(text.text)}{mark}" if text.text else ""
    return link(shown, text.link) if text.link else shown


def escape(text: str) -> str:
    """Names that come from records and files are text, not markup: neither code, emphasis, cells, tags and entities,
    nor the links `[a](b)`, `[a][b]`, `[a]: b` and `http://b`. A `_` inside of a word is none, and stays as it is."""
    return re.sub(r"([\\`*|~]|(?<!\w)_|_(?!\w)|<(?=[A-Za-z/!?])|&(?=#?\w+;)|\](?=[\[(:])|:(?=//))", r"\\\1", text)


def _code(text: str) -> str:
    """In a fence that is longer than any in the text."""
    fence = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence} {text} {fence}" if "`" in text else f"{fence}{text}{fence}"


def link(shown: str, address: str) -> str:
    """`shown`: Markdown; `address`: as `layout.address` gives it."""
    return f"[{shown}]({address})"


# README.md of a results folder: the answer, the matrix of all tasks, one picture, and where the rest is.


MOST = 30  # systems in the matrix and the picture
TASKS = 8  # tasks and sections that are named one by one
INTERVALS = """\
Dots: row minus reference over the seeds that both have. Thick: 95 % interval over seeds, for this test set; the
verdicts rest on it. Thin: over seeds and examples, for other examples of this kind, too. Grey: the margin. Below a
task: the caveats of all its rows; the table has those of some.
"""
BY_RULE = """\
By rule: better or worse, where Welch's t-test has p < 0.05; equivalent, where two one-sided tests have p < 0.05 for the
margin; else undecided. Bold: better than every other row and baseline, corrected over columns (Hochberg).
"""
TABLES = f"[{DETAILS}]({DETAILS}): all tables; for programs `table1.csv`, `.json`, `.tex`, `seeds.csv`, `pairs.csv`"


def readme(
    title: str,
    sections: list[Section],
    cells: list[RecordedCell],
    across: dict[str, list[Across]],
    *,
    picture: bool,
    tables: bool,
    left_out: int,
) -> Iterator[str]:
    """The lines of README.md, at most 80. `picture`, `tables`: whether those lie beside it; `left_out`: how many files
    could not be read."""
    columns = [column for section in sections for column in section.columns]
    names = layout.headings(sections)
    yield f"# Results: {escape(title)}\n"
    if left_out:
        yield f"**Left out: {formats.plural(left_out, 'damaged file')}; `lra-report --verify DIR` gives the names.**\n"
    yield from _not_done(cells)
    for column, name in list(zip(columns, names, strict=True))[:TASKS]:
        yield f"- **{escape(name)}**: {escape(column.answer)}"
    yield from (f"- {escape(line)}" for line in summed(across))
    if len(columns) > TASKS:
        yield f"- {len(columns) - TASKS} more in the table"
    yield "\n## All tasks\n"
    yield f"Test accuracy in percent{_perplexity(columns)}, mean ± sd over seeds (done/declared)."
    yield f"{_selections(sections)}\n"
    yield markdown(layout.matrix(columns, names, MOST))
    yield from _hidden(columns)
    yield f"{layout.legend(columns)}.\n"
    yield escape(layout.tasks(columns, TASKS))
    if picture:
        yield f"\n![Differences to the reference, with intervals]({VERDICTS})\n"
        yield INTERVALS
    yield BY_RULE
    yield "## More\n"
    yield f"- {link(PAGE, PAGE)}: sort, filter, compare, every seed"
    yield f"- {TABLES}" if tables else "- `lra-report DIR` writes the tables, as text and for programs, and the figures"
    yield f"- `lra-report --verify DIR` recomputes all of it from the records{_packed(cells)}"
    yield from receipts([run for cell in cells for run in cell.runs.values()])


def _not_done(cells: list[RecordedCell]) -> Iterator[str]:
    """How many of the declared runs are done, and what became of the others, where there are any."""
    states = Counter(cell.status(seed) for cell in cells for seed in cell.seeds())
    others = [f"{number} {state}" for state, number in sorted(states.items()) if state != "finished"]
    if others:
        yield f"**{states['finished']}/{states.total()} runs are done; {', '.join(others)}.**\n"


def _perplexity(columns: list[Column]) -> str:
    return " (perplexity where it says so)" if any(column.metric == "perplexity" for column in columns) else ""


def _selections(sections: list[Section]) -> str:
    rules = dict.fromkeys(f"`{section.selection}`: {RULES[section.selection]}" for section in sections)
    return "; ".join(rules) + "."


def _hidden(columns: list[Column]) -> Iterator[str]:
    number = len({row.order for column in columns for row in column.rows}) - MOST
    if number > 0:
        yield f"{formats.plural(number, 'more system')} in the page.\n"


def _packed(cells: list[RecordedCell]) -> str:
    packed = any(run["packed"] for cell in cells for run in cell.runs.values())
    return f", which lie in {link(RECEIPTS, RECEIPTS)}" if packed else ""


def summed(across: dict[str, list[Across]]) -> Iterator[str]:
    """A sentence on all tasks of a table together."""
    for protocol, found in across.items():
        if found:
            best = min(found, key=lambda known: known.rank[0])
            low, high = best.rank[1]
            yield (
                f"Over the tasks of {printable(protocol)}: {best.system} has the best mean rank, {best.rank[0]:.1f} of "
                f"{len(found)} [{low:.1f}, {high:.1f}]."
            )
