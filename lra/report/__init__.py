"""lra-report: from the records below a folder to its README.md, details.md, table1.*, seeds.csv, pairs.csv,
figures and page.

    read/records.py           runs, the cells that they make, their curves
    read/schema.py            what must stand in a record and in a sweep.json
    read/published.py         numbers of papers, names and order of rows
    read/pack.py              a finished sweep in one file
    statistics/inference.py   tests and intervals, numbers in and numbers out
    statistics/table.py       what is said: rows, columns, sections
    statistics/comparison.py  verdicts, caveats, systems over several tasks
    statistics/words.py       answers in words, numbers as text
    statistics/columns.py     Tables: from a folder to its columns
    render/layout.py          tables as rows of text
    render/pictures.py        what stands where in pictures that are templates
    render/markup.py          templates; text as Markdown, LaTeX, HTML
    render/figures.py         figures by matplotlib
    render/pages.py           README.md, details.md, table1.tex, index.html
    render/cards.py           cards.md
    render/site.py            the page over many results
    render/exports.py         CSV and JSON
    report.py                 Report: all files of a folder
    check/verify.py           do records and files say the same?
    check/numbers.py          do texts?
    check/overview.py         the pages over many folders, and boards
"""

from lra.report.report import Report, show, write_cards, write_pages, write_report

__all__ = ["Report", "show", "write_cards", "write_pages", "write_report"]
