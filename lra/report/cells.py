"""The table of every cell in a page: what stands in its columns, and its rows in HTML."""

from collections.abc import Sequence
from html import escape
from statistics import fmean
from typing import Any

from lra.report import dots, formats
from lra.report.table import FULL_PATTERN, Column, TableRow

FILTERS = ("task", "protocol", "attention", "variant")
MEAN = "mean ± sd"


def facts(column: Column, row: TableRow) -> dict[str, tuple[float | None, str]]:
    """What the table shows of a cell: by heading, the number that sorts it, if one does, and the text."""
    summary, key = row.summary, row.cell.key
    runs = [row.cell.runs[seed] for seed in row.cell.scores()]
    strongest = (min if column.metric == "perplexity" else max)(column.baselines.values(), default=None)
    parameters = next((run["parameters"] for run in runs if "parameters" in run), None)
    minutes = fmean(sum(run["seconds"].values()) for run in runs) / 60 if runs else None
    return {
        "task": (None, column.short),
        MEAN: (summary.mean, formats.mean_sd(summary) or "missing"),
        "95 % interval": (summary.interval and summary.interval[0], formats.interval(summary.interval)),
        "to the reference": _verdict(row),
        "caveats": (None, " ".join(badge.code for badge in row.badges)),
        "best": (summary.best, formats.decimals(summary.best)),
        "seeds": (summary.done, formats.count(summary)),
        "published": (summary.published_best, formats.decimals(summary.published_best)),
        "mean − published": (summary.mean_minus_published, formats.signed(summary.mean_minus_published)),
        "window, block or rank": (None, FULL_PATTERN if row.full_pattern else row.sizes),
        "best baseline": (strongest, formats.decimals(strongest)),
        "parameters": (parameters, "" if parameters is None else f"{parameters:,}"),
        "minutes a run": (minutes, "" if minutes is None else f"{minutes:.1f}"),
        "protocol": (None, f"{key.protocol}, {key.selection}"),
    }


def _verdict(row: TableRow) -> tuple[float | None, str]:
    if row.verdict is None:
        return None, "reference"
    return row.verdict.estimate, f"{formats.signed(row.verdict.estimate)} {row.verdict.word}".strip()


def table(cells: list[dict[str, Any]], rows: Sequence[tuple[int, Column, TableRow]]) -> tuple[str, str]:
    """Headings and rows in HTML, without the columns that say nothing: empty, or a filter with one choice."""
    lines = [facts(column, row) for _, column, row in rows]
    texts = {name: {line[name][1] for line in lines} for name in lines[0]}
    kept = [name for name, shown in texts.items() if len(shown) > 1 or not (shown == {""} or name in FILTERS)]
    headings = "\n".join(_heading(name) for name in ("system", *kept))
    shown = (
        _row(number, cell, {name: line[name] for name in kept}, column, row)
        for number, (cell, line, (_, column, row)) in enumerate(zip(cells, lines, rows, strict=True))
    )
    return headings, "\n".join(shown)


def _heading(name: str) -> str:
    return f'<th scope="col"{_kind(name)}><button type="button">{name}</button></th>'


def _kind(name: str) -> str:
    """On a narrow screen the task stands under the system's name; what loses to a baseline has a colour of its own."""
    return {"task": ' class="wide"', MEAN: ' class="mean"'}.get(name, "")


def _row(
    number: int, cell: dict[str, Any], columns: dict[str, tuple[float | None, str]], column: Column, row: TableRow
) -> str:
    name = f"<strong>{escape(cell['name'])}</strong>" if cell["bold"] else escape(cell["name"])
    label = escape(f"compare {cell['name']}, {cell['task']}, {cell['protocol']}")
    task = f'<small class="narrow">{escape(column.short)}</small>' if "task" in columns else ""
    values = []
    for heading, (value, text) in columns.items():
        sorted_by = "" if value is None else f' data-value="{value!r}"'
        picture = dots.svg(column, row) if heading == MEAN and row.summary.mean is not None else ""
        values.append(f"<td{_kind(heading)}{sorted_by}>{picture}{escape(text)}</td>")
    return (
        f'<tr data-cell="{number}" class="{" ".join(dots.kinds(row))}"><td>'
        f'<input type="checkbox" value="{number}" aria-label="{label}"></td>'
        f'<th scope="row"><i class="s{cell["colour"]}"></i><a href="#cell/{number}">{name}</a>{task}</th>'
        f"{''.join(values)}</tr>"
    )
