"""index.html: one page of a results folder, for reading and comparing; it needs no network and no server."""

import base64
import hashlib
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from lra.records.run_files import RunFiles
from lra.report.read import records
from lra.report.read.published import Published
from lra.report.read.records import PROBES, Record, anchor
from lra.report.read.schema import RULES, cleaned
from lra.report.render import layout
from lra.report.render.drawing import colour_number
from lra.report.render.layout import arena, captions
from lra.report.render.templates import data_block, rendered
from lra.report.statistics import columns, formats
from lra.report.statistics.inference import LEVEL
from lra.report.statistics.table import FULL_PATTERN, Column, Section, TableRow

FILTERS = ("task", "protocol", "attention", "variant")
MEAN = "mean ± sd"
POINTS = 60  # of a curve: as many as a small chart can show
DIGITS = 5  # of a number in a curve
CURVES = ("val_accuracy", "val_perplexity", "val_loss", "train_loss", *PROBES)

Steps = dict[tuple[int, ...], int]
"""Each list of steps with its number; most runs share one."""


def facts(column: Column, row: TableRow) -> dict[str, tuple[float | None, str]]:
    """What the table shows of a cell: by heading, the number that sorts it, if one does, and the text."""
    summary, key = row.summary, row.cell.key
    runs = [row.cell.runs[seed] for seed in row.scores]
    strongest = column.strongest[1] if column.strongest else None
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


def kept_headings(lines: list[dict[str, tuple[float | None, str]]]) -> list[str]:
    """Without the columns that say nothing: empty, or a filter with one choice."""
    texts = {name: {line[name][1] for line in lines} for name in lines[0]}
    return [name for name, shown in texts.items() if len(shown) > 1 or not (shown == {""} or name in FILTERS)]


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
    choices = {name: sorted({cell[name] for cell in cells}) for name in FILTERS}
    common = [f"{name}: {values[0]}" for name, values in choices.items() if len(values) == 1]
    runs = sum("path" in run for cell in cells for run in cell["runs"])
    facts_of = [facts(column, row) for _, column, row in rows]
    kept = kept_headings(facts_of)
    drawn = captions(sections, [path for path in figures if path.suffix == ".svg"])
    return rendered(
        "page.html.j2",
        name=title,
        facts="; ".join([f"{formats.plural(len(cells), 'cell')}, {formats.plural(runs, 'run')}", *common]),
        columns=columns,
        named=list(zip(layout.headings(sections), columns, strict=True)),
        systems=_systems(columns),
        tables=tables,
        filters=[(name, values) for name, values in choices.items() if len(values) > 1],
        headings=["system", *kept],
        lines=[
            (cell, column, row, {name: known[name] for name in kept})
            for cell, (_, column, row), known in zip(cells, rows, facts_of, strict=True)
        ],
        notes=_notes(columns),
        arenas=[(section.protocol, grid) for section in sections if (grid := arena(section, published))],
        packed=_packed(files, rows),
        figures=[(path.as_posix(), path.with_suffix(".png").as_posix(), each) for path, each in drawn.items()],
        data=data_block(_data(cells, columns, steps)),
        MEAN=MEAN,
    )


def _data(cells: list[dict[str, Any]], columns: Sequence[Column], steps: Steps) -> dict[str, Any]:
    """What the page's script reads."""
    return {
        "cells": cells,
        "probes": PROBES,
        "verdicts": [f"{column.verdict} {column.published}".rstrip() for column in columns],
        "steps": list(steps),
        "quantiles": _quantiles(max(len(cell["runs"]) for cell in cells)),
    }


def _systems(columns: Sequence[Column]) -> list[tuple[TableRow, list[tuple[Column, TableRow | None, int]]]]:
    """A line for each system: one of its rows, and for each column its row and the number of its cell."""
    numbers = {id(row): number for number, row in enumerate(row for column in columns for row in column.rows)}
    orders = {row.order: row for column in columns for row in column.rows}
    lines = []
    for order in sorted(orders):
        found = [next((row for row in column.rows if row.order == order), None) for column in columns]
        cells = [(column, row, numbers.get(id(row), -1)) for column, row in zip(columns, found, strict=True)]
        lines.append((orders[order], cells))
    return lines


def _notes(columns: Sequence[Column]) -> list[str]:
    """What the published numbers of each task are."""
    return list(dict.fromkeys(f"{column.task}: {column.published}" for column in columns if column.published))


def _quantiles(seeds: int) -> list[float]:
    """Student's t of a two-sided interval for 1, 2, ... degrees of freedom."""
    from scipy.stats import t

    return [float(t.ppf((1 + LEVEL) / 2, freedom)) for freedom in range(1, seeds)]


def _cell(files: RunFiles, column: Column, row: TableRow, steps: Steps) -> dict[str, Any]:
    """A cell; what all its runs share stands once."""
    key = row.cell.key
    runs = list(row.cell.runs.values())
    finished = [row.cell.runs[seed] for seed in row.scores]
    shared = _shared([run["provenance"] for run in runs])
    baselines = {f"baseline: {name}": formats.decimals(value) for name, value in sorted(column.baselines.items())}
    return {
        "name": row.name,
        "short": column.short,
        "colour": colour_number(row),
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
        "score": row.scores.get(seed),
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


def _packed(files: RunFiles, rows: Sequence[tuple[int, Column, TableRow]]) -> list[dict[str, Any]]:
    """Where each packed record lies, in a line that links lead to."""
    return [
        _record(files, number, row, seed, run)
        for number, _, row in rows
        for seed, run in row.cell.runs.items()
        if run["packed"]
    ]


def _record(files: RunFiles, number: int, row: TableRow, seed: int, run: Record) -> dict[str, Any]:
    receipts, member = files.member(run["path"])
    return {
        "anchor": anchor(run),
        "cell": number,
        "system": row.name,
        "seed": seed,
        "status": row.cell.status(seed),
        "address": layout.address(receipts),
        "receipts": receipts,
        "member": member,
        "sha256": hashlib.sha256(files.read(run["path"])).hexdigest(),
    }
