"""Reports: runs -> a DataFrame with one row per run -> columns of cells -> README.md, CSV, LaTeX, HTML and figures.

records/runs.py   reads runs below a folder, or in a runs.jsonl
frame.py          a DataFrame with one row per run
statistics.py     intervals and tests, on SciPy and statsmodels
cells.py          columns and cells: statistics over seeds, comparisons, footnotes
tables.py         the tables of README.md as text: a row per system, a column per task
published.py      published numbers, names and order of rows and columns
figures.py        results by seed, learning curves, cost, accuracy by depth and length
render.py         numbers, texts and DataFrames as Markdown, CSV, LaTeX and HTML
report.py         the texts and the page of a results folder, from all of these
verify.py         checks that a report matches its runs
"""

from lra.reports.report import Report, show, write_report

__all__ = ["Report", "show", "write_report"]
