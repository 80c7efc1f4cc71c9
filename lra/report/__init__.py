"""lra-report: from the records below a folder to its README.md, details.md, table1.*, seeds.csv, pairs.csv,
figures and page.

    read: records, what they must hold, published numbers -> statistics: columns of rows, verdicts, caveats
    -> render: Markdown, LaTeX, CSV, JSON, HTML, figures; check: do the pages say what the records say?
"""

from lra.report.report import Report, show, write_cards, write_pages, write_report

__all__ = ["Report", "show", "write_cards", "write_pages", "write_report"]
