"""index.html: one page of a results folder, for reading and comparing; it needs no network and no server."""

import base64
import hashlib
import json
from collections.abc import Sequence
from functools import partial
from html import escape
from pathlib import Path
from statistics import fmean
from string import Template
from typing import Any

import numpy as np

from lra.records.run_files import RunFiles
from lra.report.read import records
from lra.report.read.published import Published
from lra.report.read.records import PROBES, Record, anchor
from lra.report.read.schema import RULES, cleaned
from lra.report.render import dots, layout
from lra.report.render.layout import Caption, arena, captions
from lra.report.statistics import columns, formats
from lra.report.statistics.inference import LEVEL
from lra.report.statistics.table import FULL_PATTERN, Column, Section, TableRow

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


def cell_table(cells: list[dict[str, Any]], rows: Sequence[tuple[int, Column, TableRow]]) -> tuple[str, str]:
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


# index.html: one page of a results folder, for reading and comparing; it needs no network and no server.


ASSETS = Path(__file__).parent.with_name("assets")
POINTS = 60  # of a curve: as many as a small chart can show
DIGITS = 5  # of a number in a curve
CURVES = ("val_accuracy", "val_perplexity", "val_loss", "train_loss", *PROBES)
TABLES = 'files: <a href="table1.csv">CSV</a> <a href="table1.tex">LaTeX</a> <a href="details.md">all tables</a>'

Steps = dict[tuple[int, ...], int]
"""Each list of steps with its number; most runs share one."""


def page(
    files: RunFiles,
    title: str,
    sections: Sequence[Section],
    published: Published,
    figures: Sequence[Path],
    *,
    tables: bool = True,
) -> str:
    """The text of the page; `figures` are paths below the folder; `tables`: whether table1.csv and .tex lie beside it.
    Raises UserError."""
    columns = [column for section in sections for column in section.columns]
    rows = [(number, column, row) for number, column in enumerate(columns) for row in column.rows]
    steps: Steps = {}
    cells = [{"column": number, **_cell(files, column, row, steps)} for number, column, row in rows]
    data = {
        "cells": cells,
        "probes": PROBES,
        "verdicts": [f"{column.verdict} {column.published}".rstrip() for column in columns],
        "steps": list(steps),
        "quantiles": _quantiles(max(len(cell["runs"]) for cell in cells)),
    }
    choices = {name: sorted({cell[name] for cell in cells}) for name in FILTERS}
    common = [f"{name}: {values[0]}" for name, values in choices.items() if len(values) == 1]
    runs = sum("path" in run for cell in cells for run in cell["runs"])
    headings, lines = cell_table(cells, rows)
    names = layout.headings(sections)
    named = list(zip(names, columns, strict=True))
    return Template(_asset("page.html")).substitute(
        name=escape(title),
        facts=escape("; ".join([f"{formats.plural(len(cells), 'cell')}, {formats.plural(runs, 'run')}", *common])),
        answers="".join(dots.answer(name, column) for name, column in named),
        matrix=dots.matrix(columns, names, partial(_leads_to, [row for _, _, row in rows])),
        legend=dots.legend(columns),
        tasks="".join(_task(name, column) for name, column in named),
        tables=TABLES if tables else "",
        style=_asset("uPlot.min.css") + _asset("page.css"),
        filters="\n".join(_filter(name, values) for name, values in choices.items() if len(values) > 1),
        headings=headings,
        rows=lines,
        notes="".join(f"<p>{escape(note)}</p>\n" for note in _notes(columns)),
        arena="".join(_arena(section, published) for section in sections),
        records=_records(files, rows),
        figures=_figures(captions(sections, [path for path in figures if path.suffix == ".svg"])),
        data=json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":")).replace("<", r"\u003c"),
        licence=_asset("uPlot.LICENSE"),
        uplot=_asset("uPlot.iife.min.js"),
        script=_asset("page.js"),
    )


def _leads_to(rows: list[TableRow], _column: Column, row: TableRow) -> str:
    return f"#cell/{next(place for place, other in enumerate(rows) if other is row)}"


def _task(name: str, column: Column) -> str:
    """What a column is, in full."""
    protocol, selection, task = column.key
    return (
        f"<dt>{escape(name)}</dt><dd>{escape(task)}; protocol {escape(protocol)}, selection {escape(selection)}</dd>\n"
    )


def _notes(columns: Sequence[Column]) -> list[str]:
    """What the published numbers of each task are."""
    return list(dict.fromkeys(f"{column.task}: {column.published}" for column in columns if column.published))


def _asset(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")


def _quantiles(seeds: int) -> list[float]:
    """Student's t of a two-sided interval for 1, 2, ... degrees of freedom."""
    from scipy.stats import t

    return [float(t.ppf((1 + LEVEL) / 2, freedom)) for freedom in range(1, seeds)]


# The data that the page's script reads.


def _cell(files: RunFiles, column: Column, row: TableRow, steps: Steps) -> dict[str, Any]:
    """A cell; what all its runs share stands once."""
    key = row.cell.key
    runs = list(row.cell.runs.values())
    finished = [row.cell.runs[seed] for seed in row.cell.scores()]
    shared = _shared([run["provenance"] for run in runs])
    baselines = {f"baseline: {name}": formats.decimals(value) for name, value in sorted(column.baselines.items())}
    return {
        "name": row.name,
        "short": column.short,
        "colour": dots.colour_number(row),
        "caveats": [f"{badge.label}: {badge.meaning}" for badge in row.badges],
        "bold": column.bold == row.name,
        "task": key.task,
        "protocol": f"{key.protocol}, {key.selection}",
        "selection": key.selection,
        "attention": key.attention,
        "variant": key.variant,
        "metric": column.metric,
        "facts": {name: text for name, (_, text) in facts(column, row).items() if name not in FILTERS}
        | {"complexity": row.complexity, **baselines},
        "diagnostics": columns.accuracy_by(finished),
        "calibration": columns.reliability(finished),
        "config": cleaned({name: value for name, value in runs[0]["config"].items() if name != "seed"}) if runs else {},
        "provenance": shared,
        "runs": [_run(files, row, seed, shared, steps) for seed in row.cell.seeds()],
    }


def _shared(provenance: list[dict[str, Any]]) -> dict[str, Any]:
    first, *others = provenance or [{}]
    return {name: value for name, value in first.items() if all(other.get(name) == value for other in others)}


def _run(files: RunFiles, row: TableRow, seed: int, shared: dict[str, Any], steps: Steps) -> dict[str, Any]:
    """One seed; a declared one that never ran has no `path`. `right`: a bit for each test example, packed."""
    shown: dict[str, Any] = {"seed": seed, "status": row.cell.status(seed), "flags": row.flags.get(seed, [])}
    run = row.cell.runs.get(seed)
    if run is None:
        return shown
    if seed in row.predictions:
        shown["right"] = base64.b64encode(np.packbits(row.correct(seed)).tobytes()).decode()
    best = run.get("validation", {}).get("best", {})
    return shown | {
        "path": run["path"],
        **({"packed": True} if run["packed"] else {}),
        "score": row.cell.scores().get(seed),
        "reason": run.get("reason"),
        "test": {rule: run["test"][rule][row.cell.metric] for rule in RULES if rule in run.get("test", {})},
        "best_val": best.get(row.cell.metric),
        "best_val_step": best.get("step"),
        **{name: run.get(name) for name in ("steps", "seconds", "tokens_per_second", "peak_memory_bytes", "resumes")},
        "provenance": {name: value for name, value in run["provenance"].items() if name not in shared},
        "curve": _curve(files, run, steps),
    }


def _curve(files: RunFiles, run: Record, steps: Steps) -> dict[str, Any]:
    """The curve of a run at no more than POINTS of its evaluations, the first and the last among them."""
    curve = records.read_curve(files, run)
    if not curve:
        return {}
    count = len(curve["step"])
    kept = np.unique(np.linspace(0, count - 1, min(count, POINTS)).round().astype(int)).tolist()
    shown: dict[str, Any] = {"step": steps.setdefault(tuple(curve["step"][place] for place in kept), len(steps))}
    return shown | {name: [_rounded(curve[name][place]) for place in kept] for name in CURVES if name in curve}


def _rounded(value: Any) -> Any:
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


# What stands around the table.


def _filter(name: str, values: list[str]) -> str:
    options = "".join(f"<option>{escape(value)}</option>" for value in values)
    return f'<label>{name} <select name="{name}"><option value="">all</option>{options}</select></label>'


def _records(files: RunFiles, rows: Sequence[tuple[int, Column, TableRow]]) -> str:
    """Where each packed record lies, in a line that links lead to; empty where none is packed."""
    lines = [
        _record(files, number, row, seed, run)
        for number, _, row in rows
        for seed, run in row.cell.runs.items()
        if run["packed"]
    ]
    if not lines:
        return ""
    headings = "".join(f'<th scope="col">{name}</th>' for name in ("system", "seed", "status", "record", "SHA-256"))
    caption = "Records that are packed; their metrics, configurations and predictions lie beside them there"
    return (
        f'<section class="scroll" aria-label="Records" tabindex="0"><table id="records"><caption>{caption}</caption>'
        f"<thead><tr>{headings}</tr></thead><tbody>\n{''.join(lines)}</tbody></table></section>"
    )


def _record(files: RunFiles, number: int, row: TableRow, seed: int, run: Record) -> str:
    receipts, member = files.member(run["path"])
    sha256 = hashlib.sha256(files.read(run["path"])).hexdigest()
    place = f'<a href="{escape(layout.address(receipts))}">{escape(receipts)}</a>: {escape(member)}'
    return (
        f'<tr id="{escape(anchor(run))}"><th scope="row"><a href="#cell/{number}">{escape(row.name)}</a></th>'
        f"<td>{seed}</td><td>{escape(row.cell.status(seed))}</td><td>{place}</td><td><code>{sha256}</code></td></tr>\n"
    )


def _arena(section: Section, published: Published) -> str:
    grid = arena(section, published)
    if grid is None:
        return ""
    caption = f"Long Range Arena, protocol {escape(section.protocol)}; averages of the numbers that stand in a row"
    headings = "".join(_cell_of("th", ' scope="col"', *pair) for pair in zip(grid.header, grid.sides, strict=True))
    lines = []
    for number, (name, *others) in enumerate(grid.rows):
        mark = ' class="baseline"' if number < grid.baselines else ""
        rest = "".join(_cell_of("td", "", each.text, side) for each, side in zip(others, grid.sides[1:], strict=True))
        lines.append(f'<tr{mark}><th scope="row">{escape(name.text)}</th>{rest}</tr>\n')
    return (
        f'<section class="scroll" aria-label="Long Range Arena" tabindex="0"><table class="matrix"><caption>{caption}'
        f"</caption><thead><tr>{headings}</tr></thead><tbody>\n{''.join(lines)}</tbody></table></section>\n"
    )


def _cell_of(tag: str, attributes: str, text: str, side: str) -> str:
    number = ' class="number"' if side == "r" else ""
    return f"<{tag}{attributes}{number}>{escape(text)}</{tag}>"


def _figures(shown: dict[Path, Caption]) -> str:
    if not shown:
        return ""
    shown = "\n".join(_figure(path, caption) for path, caption in shown.items())
    return f'<details id="figures"><summary>Figures</summary><div class="charts">\n{shown}\n</div></details>'


def _figure(path: Path, caption: Caption) -> str:
    title, svg, png = escape(caption.title), path.as_posix(), path.with_suffix(".png").as_posix()
    text = f'{title} (<a href="{svg}">SVG</a>, <a href="{png}">PNG</a>). {escape(caption.caveats)}'.rstrip()
    return f'<figure><img src="{svg}" alt="{title}" loading="lazy"><figcaption>{text}</figcaption></figure>'
