"""Write the report of a results folder.

Runs become a DataFrame with one row per run (frame.py), then columns of cells with statistics over seeds (cells.py,
statistics.py), then texts (tables.py, render.py) and figures (figures.py). published.py has published numbers and the
order of rows; report.py combines all of these into files; verify.py checks that the files match the runs.
"""

from lra.reports.report import Report, show, write_report

__all__ = ["Report", "show", "write_report"]
