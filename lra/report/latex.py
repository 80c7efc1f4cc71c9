r"""table1.tex: the tables for a paper, to be \input where the packages booktabs and graphicx are loaded."""

import re
from collections.abc import Iterator

from lra.report import captions, layout, matrix
from lra.report.layout import Grid, TableText
from lra.report.table import FULL_PATTERN, Column, Section

SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "−": "$-$",
    "²": "$^2$",
    "³": "$^3$",
    "√": r"$\surd$",
    "–": "--",
    "—": "---",
    **{character: f"${character}$" for character in "<>|"},
    **{character: f"\\{character}" for character in "&%$#_{}"},
}
MATHS = {"²": "^2", "³": "^3", "√": r"\surd ", "log": r"\log"}
ORDER = re.compile(r"O\([A-Za-z0-9 ()+*/.,²³√-]*\)")  # set as a formula; anything else is text
FIT = r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%"  # smaller only where it is too wide
NOTE = (
    "Intervals: Student's t; seeds: done/declared. Bold: better than every other row, baselines included (Welch's "
    "t-tests of the best mean against each other row, the largest p < 0.05 after Hochberg's correction over columns)."
)
FULL = f"{FULL_PATTERN}: at this length the mechanism leaves out no pair of positions."


def document(sections: list[Section]) -> Iterator[str]:
    """The lines of the file."""
    yield r"% By lra-report from records; needs \usepackage{booktabs,graphicx}."
    for section in sections:
        where = f"protocol {section.protocol}, selection {section.selection}"
        place = _label(f"{section.protocol}-{section.selection}")
        if len(section.columns) > 1:
            yield from _table(matrix.overview(section), [*_of_all(section, where)], f"tab:{place}")
        for column in section.columns:
            yield from _table(
                layout.table(column, column.shared), [*_of_one(column, where)], f"tab:{_label(column.task)}-{place}"
            )


def _of_all(section: Section, where: str) -> Iterator[str]:
    """The sentences of the caption of the table of all tasks."""
    yield f"Test accuracy in percent, mean ± sd over the seeds (done/declared); {where}."
    yield NOTE
    yield f"{matrix.legend(section.columns)}.".replace("`", "")
    yield matrix.tasks(section.columns)
    yield FULL * any(row.full_pattern for column in section.columns for row in column.rows)


def _of_one(column: Column, where: str) -> Iterator[str]:
    """Those of one task; caveats that all rows have are said here alone."""
    metric = "test perplexity" if column.metric == "perplexity" else "test accuracy in percent"
    yield f"{column.title}: {metric}; {where}."
    yield captions.shared(column)
    yield column.answer
    yield NOTE
    yield FULL * any(row.full_pattern for row in column.rows)
    yield column.published


def _table(grid: Grid, caption: list[str], label: str) -> Iterator[str]:
    columns = "".join(grid.sides)
    yield ""
    yield r"\begin{table}"
    yield r"\centering\footnotesize\setlength{\tabcolsep}{3pt}"
    yield f"\\caption{{{escape(' '.join(filter(None, caption)))}}}"
    yield f"\\label{{{label}}}\\smallskip"
    yield FIT
    yield f"\\begin{{tabular}}{{@{{}}{columns}@{{}}}}"
    yield r"\toprule"
    yield " & ".join(map(escape, grid.header)) + r" \\"
    yield r"\midrule"
    for number, row in enumerate(grid.rows):
        if 0 < number == grid.baselines:
            yield r"\midrule"
        yield " & ".join(map(_text, row)) + r" \\"
    yield r"\bottomrule"
    yield r"\end{tabular}}"
    yield r"\end{table}"


def _text(text: TableText) -> str:
    if ORDER.fullmatch(text.text):
        return _order(text.text)
    shown = re.sub(r"^\+(?=\d)", "$+$", escape(text.text))
    command = r"\textbf" if text.bold else r"\textit" if text.italic else ""
    if command:
        return f"{command}{{{shown}}}"
    return f"{{{shown}}}" if shown.startswith(("[", "*")) else shown  # else the \\ before takes it for its option


def _order(text: str) -> str:
    """A complexity, as in O(L log L)."""
    shown = re.sub("|".join(MATHS), lambda match: MATHS[match[0]], text.removeprefix("O"))
    return f"$\\mathcal{{O}}{shown}$"


def escape(text: str) -> str:
    """Text for LaTeX; what its default fonts do not have is named by its code point."""
    shown = "".join(SPECIAL.get(character) or _plain(character) for character in text)
    return re.sub(r"(?<![\w-])-(?=\d)", "$-$", shown.replace(" - ", " $-$ "))


def _plain(character: str) -> str:
    known = character.isascii() or ("À" <= character <= "ÿ" and character not in "ÐÞðþ")
    return character if known else f"U+{ord(character):04X}"


def _label(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9]+", "-", text).strip("-")
