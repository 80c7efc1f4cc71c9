"""A page for each study: the README of its report, then figures and sortable tables from the same data frames."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path

from lra.records.names import README, RUNS, SEEDS_FIGURE
from lra.report import Report
from lra.report.figures import SEEDS, drawn
from lra.report.render import escape, html, sections, seed_rows

FOLDER = "results"


@cache
def reports(top: Path) -> dict[str, Report]:
    """Return the report of each folder with kept runs by its name."""
    return {path.parent.name: Report(path.parent) for path in sorted((top / FOLDER).glob(f"*/{RUNS}"))}


def pages(top: Path) -> dict[str, str]:
    """Return page and figures of each study by path; panels of a figure stand in a row if there is room."""
    files = {}
    for name, report in reports(top).items():
        parts = {}
        for title, panels in drawn(report)[1].items():
            slug = title.lower().replace(" ", "-")
            places = {f"{slug}-{number}.svg": panel for number, panel in enumerate(panels, start=1)}
            files |= {f"{FOLDER}/{name}/{place}": panel for place, panel in places.items()}
            parts[title] = " ".join(f"![{title}]({place})" for place in places)
        text = (top / FOLDER / name / README).read_text().replace(f"![{SEEDS}]({SEEDS_FIGURE})", parts.pop(SEEDS))
        figures = [f"\n## {title}\n\n{panels}" for title, panels in parts.items()]
        files[f"{FOLDER}/{name}/{README}"] = "\n".join([text, *figures, *_tables(report)]) + "\n"
    return files


def _tables(report: Report) -> Iterator[str]:
    yield "\n## Tables to sort {data-search-exclude}\n"
    yield "A click on a column header sorts a table. The columns are those of"
    yield "[`lra.load`](../../docs/api.md#load) and of [reports](../../docs/reports.md#reports)."
    for section in sections(report):
        yield f"\n### {escape(section['name'])} {{data-search-exclude}}\n"
        yield f"{escape(section['note'])}\n\n{_scrolled(section['table'])}\n"
        yield from (f"- {escape(caveat)}" for caveat in section["caveats"])
    yield "\n### Every seed {data-search-exclude}\n"
    yield f"<details><summary>{len(report.frame)} runs</summary>"
    yield f"{_scrolled(html(seed_rows(report.frame)))}\n</details>"


def _scrolled(table: str) -> str:
    return f'<div class="wide">\n{table}\n</div>'
