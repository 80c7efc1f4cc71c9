"""A page for each study: the README of its report, then figures and sortable tables from the same data frames."""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from lra.records.names import README, RUNS, SEEDS_FIGURE
from lra.reports import Report
from lra.reports.figures import COLOURS, CROSS, DOT, LINE, RULE, SEEDS, WIDTH, drawn, rows, styled, svg
from lra.reports.published import Published
from lra.reports.render import escape, html, seed_rows
from lra.reports.render import section as render_section

FOLDER = "results"
TASKS = {"text": "Text", "matching": "Matching", "listops": "ListOps"}  # of Table 1


@cache
def reports(top: Path) -> dict[str, Report]:
    """Return the report of each folder with kept runs by its name."""
    return {path.parent.name: Report(path.parent) for path in sorted((top / FOLDER).glob(f"*/{RUNS}"))}


@cache
def titles(top: Path) -> dict[str, str]:
    """Return the title of each study by folder, as results/README.md links it."""
    links = re.findall(r"\[(.+?)\]\((\w+)/README\.md\)", (top / FOLDER / README).read_text())
    return {folder: title for title, folder in links}


@cache
def overview(top: Path) -> dict[str, str]:
    """Return one SVG for each task of Table 1: published numbers and ours by system."""
    from matplotlib.figure import Figure

    source, cells = Published().sources[0], reports(top)["table1_narrow"].cells
    panels = {}
    with styled():
        for task, title in TASKS.items():
            ours = cells[cells.task == task].set_index("system")
            names = [name for name in (*source.best, "Convolution") if source.number(name, task) or name in ours.index]
            figure = Figure(figsize=(WIDTH, LINE * len(names) + 0.7), layout="constrained")
            axis = figure.subplots()
            for y, name in enumerate(names):
                for which, marker, colour in (("best", "x", CROSS), ("mean", "D", COLOURS[1])):
                    if (number := source.number(name, task, which)) is not None:
                        axis.scatter([number], [y], marker=marker, s=18, color=colour, zorder=2)
                if name in ours.index:
                    mean, sd = ours.loc[name, ["mean", "sd"]]
                    axis.errorbar([mean], [y], xerr=[sd], fmt="o", color=DOT, capsize=2, zorder=3)
            if len(ours):
                axis.axvline(ours[ours.kind == "baseline"]["mean"].max(), color=RULE, linestyle="--")
            rows(axis, names)
            axis.set_title(title)
            axis.set_xlabel("test accuracy (%)")
            panels[f"assets/overview-{task}.svg"] = svg(figure)
    return panels


def pages(top: Path) -> dict[str, str]:
    """Return page and figures of each study by path; panels of a figure stand in a row if there is room."""
    files = {}
    for name, report in reports(top).items():
        parts = {}
        for title, panels in drawn(report.columns)[1].items():
            slug = title.lower().replace(" ", "-")
            places = {f"{slug}-{number}.svg": panel for number, panel in enumerate(panels, start=1)}
            files |= {f"{FOLDER}/{name}/{place}": panel for place, panel in places.items()}
            parts[title] = " ".join(f"![{title}]({place})" for place in places)
        text = (top / FOLDER / name / README).read_text().replace(f"# Results: {name}", f"# {titles(top)[name]}", 1)
        text = text.replace(f"![{SEEDS}]({SEEDS_FIGURE})", parts.pop(SEEDS))
        figures = [f"\n## {title}\n\n{panels}" for title, panels in parts.items()]
        files[f"{FOLDER}/{name}/{README}"] = "\n".join([text, *figures, *_tables(report)]) + "\n"
    return files


def _tables(report: Report) -> Iterator[str]:
    yield "\n## Tables to sort {data-search-exclude}\n"
    yield "A click on a column header sorts a table. The columns are those of"
    yield "[`lra.load`](../../docs/api.md#load) and of [reports](../../docs/reports.md#reports)."
    for section in map(render_section, report.columns):
        yield f"\n### {escape(section['name'])} {{data-search-exclude}}\n"
        yield f"{escape(section['note'])}\n\n{_scrolled(section['table'])}\n"
        yield from (f"- {escape(caveat)}" for caveat in section["caveats"])
    yield "\n### Every seed {data-search-exclude}\n"
    yield f"<details><summary>{len(report.frame)} runs</summary>"
    yield f"{_scrolled(html(seed_rows(report.frame)))}\n</details>"


def _scrolled(table: str) -> str:
    return f'<div class="wide">\n{table}\n</div>'
