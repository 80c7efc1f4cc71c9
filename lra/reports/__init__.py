"""Reports: runs -> one DataFrame with a row a run -> columns of cells -> README.md, CSV, LaTeX, HTML and figures.

records/runs.py   runs below a folder, or in a runs.jsonl
frame.py          a row for each run
statistics.py     intervals and tests, on SciPy and statsmodels
cells.py          columns and cells: statistics over seeds, comparisons, footnotes
tables.py         systems by columns, as text
published.py      published numbers, names and order of rows and columns
figures.py        seeds, curves, cost, accuracy by depth and length
render.py         Markdown, LaTeX, HTML
report.py         all of a results folder
verify.py         does a report match its runs?
"""

from lra.reports.report import Report, show, write_report

__all__ = ["Report", "show", "write_report"]
