r"""table1.tex: the tables for a paper, to be \input where the packages booktabs and graphicx are loaded."""

import re

from lra.report.render import layout
from lra.report.render.templates import rendered
from lra.report.statistics.table import FULL_PATTERN, Column, Section

NOTE = (
    "Intervals: Student's t; seeds: done/declared. Bold: better than every other row, baselines included (Welch's "
    "t-tests of the best mean against each other row, the largest p < 0.05 after Hochberg's correction over columns)."
)
FULL = f"{FULL_PATTERN}: at this length the mechanism leaves out no pair of positions."


def table_tex(sections: list[Section]) -> str:
    """The text of the file."""
    tables = []
    for section in sections:
        where = f"protocol {section.protocol}, selection {section.selection}"
        place = _label(f"{section.protocol}-{section.selection}")
        if len(section.columns) > 1:
            tables.append((layout.overview(section), _of_all(section, where), f"tab:{place}"))
        for column in section.columns:
            label = f"tab:{_label(column.task)}-{place}"
            tables.append((layout.table(column, column.shared), _of_one(column, where), label))
    return rendered("table1.tex.j2", tables=tables)


def _of_all(section: Section, where: str) -> str:
    """The caption of the table of all tasks."""
    sentences = [
        f"Test accuracy in percent, mean ± sd over the seeds (done/declared); {where}.",
        NOTE,
        f"{layout.legend(section.columns)}.".replace("`", ""),
        layout.tasks(section.columns),
        FULL * any(row.full_pattern for column in section.columns for row in column.rows),
    ]
    return " ".join(filter(None, sentences))


def _of_one(column: Column, where: str) -> str:
    """That of one task; caveats that all rows have are said here alone."""
    metric = "test perplexity" if column.metric == "perplexity" else "test accuracy in percent"
    sentences = [
        f"{column.title}: {metric}; {where}.",
        layout.shared(column),
        column.answer,
        NOTE,
        FULL * any(row.full_pattern for row in column.rows),
        column.published,
    ]
    return " ".join(filter(None, sentences))


def _label(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9]+", "-", text).strip("-")
