"""Write the report of a results folder.

Runs become a DataFrame with one row per run, then columns of cells, then README.md, CSV, LaTeX, HTML and figures:

records/runs.py   reads runs from a folder or from a runs.jsonl
frame.py          builds the DataFrame
statistics.py     computes confidence intervals and tests with SciPy and statsmodels
cells.py          groups runs into columns and cells, with statistics over seeds, comparisons and footnotes
tables.py         formats the tables of README.md: a row per system, a column per task
published.py      reads published numbers, and the names and order of rows and columns
figures.py        draws results by seed, learning curves, cost, accuracy by depth and length
render.py         formats numbers, texts and DataFrames as Markdown, CSV, LaTeX and HTML
report.py         combines all of these into the files of a report
verify.py         checks that a report matches its runs
"""

from lra.reports.report import Report, show, write_report

__all__ = ["Report", "show", "write_report"]
