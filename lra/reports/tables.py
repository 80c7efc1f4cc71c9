"""Format the tables of a report as text, with one row per system, one column per task, and footnotes."""

from collections.abc import Iterable
from statistics import multimode
from string import ascii_lowercase

import pandas as pd

from lra.reports.cells import SIGNIFICANT, Cell, Column
from lra.reports.render import mean_sd, number
from lra.reports.statistics import ALPHA

MARK = "*"  # marks a difference that is significant after Holm's correction


class Footnotes:
    """Letters of footnotes, assigned in the order in which the footnotes are first marked."""

    def __init__(self) -> None:
        self.letters: dict[str, str] = {}

    def mark(self, texts: list[str]) -> str:
        """Return the letters of these footnotes as superscript, or an empty string if there are none."""
        for text in texts:
            count = len(self.letters)  # the letter after z is aa, then bb
            self.letters.setdefault(text, ascii_lowercase[count % 26] * (count // 26 + 1))
        return f"<sup>{','.join(sorted(self.letters[text] for text in texts))}</sup>" if texts else ""


class Tables:
    """The tables of a report.

    Attributes:
        results: test results by system and task; the last `trivial` rows are trivial baselines.
        solved: number of seeds that reached the goal of each task; empty if no task has a goal.
        steps: median steps to the goal; empty if there are no medians.
        notes: texts of the footnotes by letter.
    """

    def __init__(self, columns: list[Column]) -> None:
        cells = sorted((cell for column in columns for cell in column.cells), key=lambda cell: cell.order)
        systems = {cell.system: cell.complexity for cell in cells}
        trivial = list(dict.fromkeys(name for column in columns for name in column.baselines))
        results = {
            "system": [*systems, *(f"*baseline: {name}*" for name in trivial)],
            "complexity": [*systems.values(), *([""] * len(trivial))],
        }
        notes = Footnotes()
        for column in columns:
            results |= _results(column, [*systems], trivial, notes)
        self.results, self.trivial = pd.DataFrame(results), len(trivial)
        self.solved, self.steps = _goals(columns, systems)
        self.notes = {letter: text for text, letter in notes.letters.items()}


def _results(column: Column, systems: list[str], trivial: list[str], notes: Footnotes) -> dict[str, list[str]]:
    """Return a task's text columns by header: results of systems and trivial baselines; published results, if any."""
    cells = {cell.system: cell for cell in column.cells}
    # the header states the most common number of seeds; cells with another number get a footnote
    count = min(multimode(cell.summary.n for cell in column.cells))
    # a caveat that applies to all cells with results is marked once, in the header, and not in each cell
    first, *others = [list(cell.caveats()) for cell in column.cells if cell.scores] or [[]]
    shared = [text for text in first if others and all(text in other for other in others)]
    title = f"{column.name} (n = {count})" + ", perplexity" * column.lower_is_better
    title += notes.mark([*shared, *column.notes])

    def text(cell: Cell) -> str:
        caveats = [text for text in cell.caveats() if text not in shared]
        if cell.summary.n not in (0, count):
            caveats.append(f"n = {cell.summary.n}")
        mark = MARK if cell.verdict in SIGNIFICANT else ""
        return mean_sd(cell.summary.mean, cell.summary.sd) + mark + notes.mark(caveats)

    texts = {title: [text(cells[name]) if name in cells else "" for name in systems]}
    texts[title] += [number(column.baselines.get(name)) for name in trivial]
    if any(cell.published is not None for cell in column.cells):
        known = [number(cells[name].published) if name in cells else "" for name in systems]
        texts[f"{column.name}, published"] = [*known, *([""] * len(trivial))]
    return texts


def _goals(columns: list[Column], systems: Iterable[str]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return two tables with a row per system: seeds that reached the goal of each task, and median steps to it."""
    solved, steps = pd.DataFrame(index=systems), pd.DataFrame(index=systems)
    for column in columns:
        for cell in column.cells:
            if cell.goal is not None:
                header = f"{column.name}, {cell.goal:g} %"
                solved.loc[cell.system, header] = f"{cell.solved} of {cell.ran}"
                steps.loc[cell.system, header] = number(cell.median_steps, ",.0f")
    solved, steps = (frame.dropna(how="all").fillna("").reset_index(names="system") for frame in (solved, steps))
    return solved, steps if steps.drop(columns="system").any(axis=None) else pd.DataFrame()


def unbeaten(columns: list[Column]) -> str:
    """Return a sentence listing the columns in which no system beats the best trivial baseline; empty if none."""
    found = []
    for column in columns:
        means = [cell.summary.mean for cell in column.cells if cell.summary.mean is not None]
        if column.best_baseline and means:
            name, bar = column.best_baseline
            if min(means) >= bar if column.lower_is_better else max(means) <= bar:
                found.append(f"{column.name} ({name}, {bar:.2f})")
    return f"No system beats the best trivial baseline on {'; '.join(found)}." if found else ""


def significance(columns: list[Column]) -> str:
    """Return the legend of `MARK`, with the number of significant differences; empty if no difference is tested."""
    tested = [cell for column in columns for cell in column.cells if cell.p_holm is not None]
    if not tested:
        return ""
    references = {cell.reference.base for cell in tested if cell.reference}
    name = references.pop() if len(references) == 1 else "its reference in table.csv"
    test = f"(Welch's t-test, Holm-corrected, p < {ALPHA})"
    count = sum(cell.verdict in SIGNIFICANT for cell in tested)
    if not count:
        return f"No difference from {name} is significant {test}"
    return f"{MARK} differs significantly from {name} {test}: {count} of {len(tested)} differences"
