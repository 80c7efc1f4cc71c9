"""Format the tables of a report as text, with one row per system, one column per task, and footnotes."""

from statistics import multimode
from string import ascii_lowercase

import pandas as pd

from lra.reports.cells import SIGNIFICANT, Column
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
    """The tables of a report, with cells as text; a table without values is empty."""

    def __init__(self, columns: list[Column]) -> None:
        cells = sorted((cell for column in columns for cell in column.cells), key=lambda cell: cell.order)
        systems = {cell.system: cell.complexity for cell in cells}
        trivial = dict.fromkeys((f"*baseline: {name}*" for column in columns for name in column.baselines), "")
        results, notes = pd.DataFrame({"complexity": pd.Series(systems | trivial)}), Footnotes()
        # seeds that reached the goal of each task, and median steps to it
        solved, steps = pd.DataFrame(index=[*systems]), pd.DataFrame(index=[*systems])
        for column in columns:
            for header, texts in _texts(column, notes).items():
                results[header] = pd.Series(texts)  # aligned by system; systems that the task lacks become NaN
            for cell in column.cells:
                if cell.goal is not None:
                    header = f"{column.name}, {cell.goal:g} %"
                    solved.loc[cell.system, header] = f"{cell.solved} of {cell.ran}"
                    steps.loc[cell.system, header] = number(cell.median_steps, ",.0f")
        self.results = results.fillna("").reset_index(names="system")  # the last `trivial` rows are trivial baselines
        self.trivial = len(trivial)
        solved, steps = (frame.dropna(how="all").fillna("").reset_index(names="system") for frame in (solved, steps))
        self.solved, self.steps = solved, steps if steps.drop(columns="system").any(axis=None) else pd.DataFrame()
        self.notes = {letter: text for text, letter in notes.letters.items()}


def _texts(column: Column, notes: Footnotes) -> dict[str, dict[str, str]]:
    """Return texts by header and system: the results of a task and, if there are any, the published results."""
    # the header states the most common number of seeds; cells with another number get a footnote
    count = min(multimode(cell.summary.n for cell in column.cells))
    # a caveat that applies to all cells with results is marked once, in the header, and not in each cell
    first, *others = [list(cell.caveats()) for cell in column.cells if cell.scores] or [[]]
    shared = [text for text in first if others and all(text in other for other in others)]
    title = f"{column.name} (n = {count})" + ", perplexity" * column.lower_is_better
    title += notes.mark([*shared, *column.notes])
    texts = {}
    for cell in column.cells:
        caveats = [text for text in cell.caveats() if text not in shared]
        if cell.summary.n not in (0, count):
            caveats.append(f"n = {cell.summary.n}")
        mark = MARK if cell.verdict in SIGNIFICANT else ""
        texts[cell.system] = mean_sd(cell.summary.mean, cell.summary.sd) + mark + notes.mark(caveats)
    texts |= {f"*baseline: {name}*": number(value) for name, value in column.baselines.items()}
    published = {cell.system: number(cell.published) for cell in column.cells}
    return {title: texts} | ({f"{column.name}, published": published} if any(published.values()) else {})


def unbeaten(columns: list[Column]) -> str:
    """Return a sentence listing the columns in which no system beats the best trivial baseline; empty if none."""
    found = []
    for column in columns:
        means = [cell.summary.mean for cell in column.cells if cell.summary.mean is not None]
        name, bar = column.best_baseline or ("", None)
        if means and bar is not None and column.best([*means, bar]) == bar:
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
