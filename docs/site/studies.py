"""A page for each study: the README of its report, then figures and sortable tables from the same data frames."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path

from lra.records.names import README, RUNS
from lra.report import Report
from lra.report.figures import drawn
from lra.report.render import escape, html, sections, seed_rows

FOLDER = "results"
IN_README = "Test result of each seed"  # a figure


@cache
def reports(top: Path) -> dict[str, Report]:
    """Return the report of each folder with kept runs by its name."""
    return {path.parent.name: Report(path.parent) for path in sorted((top / FOLDER).glob(f"*/{RUNS}"))}


def pages(top: Path) -> dict[str, str]:
    """Return page and figures of each study by path."""
    files = {}
    for name, report in reports(top).items():
        figures = {f"{_slug(title)}.svg": (title, svg) for title, svg in drawn(report).items() if title != IN_README}
        text = (top / FOLDER / name / README).read_text()
        lines = [text, *_figures(figures), *_tables(report)]
        files[f"{FOLDER}/{name}/{README}"] = "\n".join(lines) + "\n"
        files |= {f"{FOLDER}/{name}/{place}": svg for place, (_, svg) in figures.items()}
    return files


def _slug(title: str) -> str:
    return title.lower().replace(" ", "-")


def _figures(figures: dict[str, tuple[str, str]]) -> Iterator[str]:
    for place, (title, _) in figures.items():
        yield f"\n## {title}\n\n![{title}]({place})"


def _tables(report: Report) -> Iterator[str]:
    yield "\n## Tables to sort {data-search-exclude}\n"
    yield "A click on a column header sorts a table. The columns are those of"
    yield "[`lra.load`](../../docs/api.md#load) and of [reports](../../docs/reports.md#reports)."
    for section in sections(report):
        yield f"\n### {escape(section['name'])} {{data-search-exclude}}\n"
        yield f"{escape(section['unbeaten'])}\n\n{_scrolled(section['table'])}\n"
        yield from (f"- {escape(caveat)}" for caveat in section["caveats"])
    yield "\n### Every seed {data-search-exclude}\n"
    yield f"<details><summary>{len(report.frame)} runs</summary>"
    yield f"{_scrolled(html(seed_rows(report.frame)))}\n</details>"


def _scrolled(table: str) -> str:
    return f'<div class="wide">\n{table}\n</div>'
