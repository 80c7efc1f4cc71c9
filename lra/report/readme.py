"""README.md of a results folder: the answer, the matrix of all tasks, one picture, and where the rest is."""

from collections import Counter
from collections.abc import Iterator

from lra.core.errors import printable
from lra.records.names import DETAILS, PAGE, RECEIPTS, VERDICTS
from lra.report import formats, matrix
from lra.report.across import Across
from lra.report.markdown import RULES, escape, link, markdown, receipts
from lra.report.records import RecordedCell
from lra.report.table import Column, Section

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


def page(
    title: str,
    sections: list[Section],
    cells: list[RecordedCell],
    across: dict[str, list[Across]],
    *,
    picture: bool,
    tables: bool,
    left_out: int,
) -> Iterator[str]:
    """The lines of the page, at most 80. `picture`, `tables`: whether those lie beside it; `left_out`: how many files
    could not be read."""
    columns = [column for section in sections for column in section.columns]
    names = matrix.headings(sections)
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
    yield markdown(matrix.matrix(columns, names, MOST))
    yield from _hidden(columns)
    yield f"{matrix.legend(columns)}.\n"
    yield escape(matrix.tasks(columns, TASKS))
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
