"""README.md, details.md, table1.tex and index.html of a results folder; what a person reads there stands in their
templates."""

import base64
import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lra.core.console import plural
from lra.core.errors import printable
from lra.records import names
from lra.records.run_files import RunFiles
from lra.report.read import records
from lra.report.read.records import PROBES, Curve, Record, anchor, training_seconds
from lra.report.read.schema import RULES, cleaned
from lra.report.render import layout, pictures
from lra.report.render.figures import captions
from lra.report.render.layout import MEAN, facts
from lra.report.render.markup import data_block, rendered
from lra.report.render.pictures import colour_number
from lra.report.statistics import columns, inference, words
from lra.report.statistics.columns import Tables
from lra.report.statistics.comparison import DRAWS
from lra.report.statistics.table import FULL_PATTERN, Column, Section, TableRow, by_system

MOST = 28  # systems in the matrix and the pictures of README.md
TASKS = 8  # tasks and sections that are named one by one
SELECTION = {
    "best_val": "the checkpoint with the best validation accuracy is tested",
    "last": "the last step is tested; nothing is selected",
    "best_test": "the best of all looks at the test split, which this protocol also validates on",
}


def readme(tables: Tables, *, files: bool) -> dict[str, str]:
    """README.md, of at most 80 lines, and the pictures in it: of races, and of what was tested elsewhere. `files`:
    whether there are any for other programs."""
    states = Counter(cell.status(seed) for cell in tables.cells for seed in cell.seeds())
    untimed = [column for column in tables.columns if column.goal is None]
    drawings = {names.RACE: pictures.races(tables.columns, MOST), names.VERDICTS: pictures.verdicts(untimed, MOST)}
    drawn = {name: rendered(f"{name}.j2", **picture) for name, picture in drawings.items() if picture}
    text = rendered(
        "readme.md.j2",
        of=tables,
        done=states["finished"],
        declared=states.total(),
        not_done=[f"{number} {state}" for state, number in sorted(states.items()) if state != "finished"],
        summed=list(_summed(tables)),
        rules=list(dict.fromkeys(section.selection for section in tables.sections)),
        matrix=layout.matrix(tables.columns, MOST),
        hidden=len(by_system(tables.columns)) - MOST,
        pictures=drawn,
        files=files,
        packed=any(run["packed"] for run in tables.runs),
        made=_made(tables.runs),
        names=names,
        RULES=SELECTION,
        TASKS=TASKS,
    )
    return {names.README: text, **drawn}


def details(tables: Tables, figures: Sequence[Path]) -> str:
    """details.md, which lies beside `figures`."""
    by_task: dict[str, list[Column]] = {}
    for column in tables.columns:
        if column.source:
            by_task.setdefault(column.task, []).append(column)
    published, drawn = tables.published, captions(tables.columns, figures)
    return rendered(
        "details.md.j2",
        of=tables,
        other_rules=_other_rules,
        field=[
            (published.title(task), layout.field(by_task[task], published))
            for task in sorted(by_task, key=published.task_order)
        ],
        sources=[source for source in published.sources if any(source.covers(task) for task in by_task)],
        figures=[(layout.address(path.as_posix()), caption) for path, caption in drawn.items()],
        made=_made(tables.runs),
        RULES=SELECTION,
        FULL_PATTERN=FULL_PATTERN,
        DRAWS=DRAWS,
        inference=inference,
    )


def _summed(tables: Tables) -> Iterator[str]:
    """A sentence on all tasks of a table together."""
    races = {section.name for section in tables.sections if any(column.goal is not None for column in section.columns)}
    for protocol, systems in tables.across.items():
        if systems and protocol not in races:  # accuracies there are those at which trainings ended
            best = min(systems, key=lambda known: known.rank[0])
            low, high = best.rank[1]
            yield (
                f"Over the tasks of {printable(protocol)}: {best.system} has the best mean rank, {best.rank[0]:.1f} of "
                f"{len(systems)} [{low:.1f}, {high:.1f}]."
            )


def _other_rules(section: Section) -> list[str]:
    """The runs' own rules of selection that are not the section's."""
    return sorted({run["selection"] for column in section.columns for run in column.runs} - {section.selection})


def _made(runs: Sequence[Record]) -> dict[str, Any]:
    """What made the numbers."""
    made = [run["provenance"] for run in runs]

    def distinct(*keys: str) -> list[str]:
        return sorted({" ".join(str(each[key]) for key in keys) for each in made})

    return {
        "runs": len(runs),
        "minutes": sum(sum(run.get("seconds", {}).values()) for run in runs) / 60,
        "ends": Counter(run.get("ended", "steps") for run in runs if run["status"] == "finished"),
        "commits": sorted({f"{each['commit']}{' (with uncommitted changes)' * bool(each['dirty'])}" for each in made}),
        "digests": sorted({f"{run['task']} {run['provenance']['data_sha256']}" for run in runs}),
        "versions": sorted({f"torch {each['packages']['torch']}, Python {each['python']}" for each in made}),
        "hardware": distinct("device", "cpu"),
        "threads": distinct("threads"),
        "precisions": distinct("precision"),
    }


def table_tex(sections: Sequence[Section]) -> str:
    """table1.tex: the tables for a paper, to be \\input where the packages booktabs and graphicx are loaded."""
    return rendered("table1.tex.j2", sections=sections, FULL_PATTERN=FULL_PATTERN)


# index.html: one page of a results folder, for reading and comparing; it needs no network and no server.


FILTERS = ("task", "protocol", "attention", "variant")
POINTS_OF_A_CURVE = 60  # as many as a small chart can show
DIGITS = 5  # of a number in a curve
CURVES = ("val_accuracy", "val_perplexity", "val_loss", "train_loss", *PROBES)

Steps = dict[tuple[int, ...], int]
"""Each list of steps with its number; most runs share one."""


def kept_headings(lines: list[dict[str, tuple[float | None, str]]]) -> list[str]:
    """Without the columns that say nothing: empty, or a filter with one choice."""
    texts = {name: {line[name][1] for line in lines} for name in lines[0]}
    return [name for name, shown in texts.items() if len(shown) > 1 or not (shown == {""} or name in FILTERS)]


def page(tables: Tables, figures: Sequence[Path], *, files: bool = True) -> str:
    """The text of the page; `figures` are paths below the folder; `files`: whether table1.csv and .tex lie beside it.
    Raises UserError."""
    steps: Steps = {}
    numbers = {column.key: number for number, column in enumerate(tables.columns)}
    facts_of = [facts(column, row) for column, row in tables.rows]
    cells = [
        {"column": numbers[column.key], **_cell(tables.run_files, column, row, row_facts, steps)}
        for (column, row), row_facts in zip(tables.rows, facts_of, strict=True)
    ]
    choices = {name: sorted({cell[name] for cell in cells}) for name in FILTERS}
    common = [f"{name}: {values[0]}" for name, values in choices.items() if len(values) == 1]
    kept = kept_headings(facts_of)
    return rendered(
        "page.html.j2",
        of=tables,
        facts="; ".join([f"{plural(len(cells), 'cell')}, {plural(len(tables.runs), 'run')}", *common]),
        systems=_systems(tables),
        files=files,
        filters=[(name, values) for name, values in choices.items() if len(values) > 1],
        headings=["system", *kept],
        lines=[
            (cell, column, row, {name: row_facts[name] for name in kept})
            for cell, (column, row), row_facts in zip(cells, tables.rows, facts_of, strict=True)
        ],
        notes=[
            *dict.fromkeys(f"{each.task}: {each.published}" for each in tables.columns if each.published),
            *filter(None, [layout.notes(tables.columns)]),
        ],
        arenas=[
            (section.protocol, grid) for section in tables.sections if (grid := layout.arena(section, tables.published))
        ],
        packed=list(_packed(tables)),
        figures=[
            (path.as_posix(), path.with_suffix(".png").as_posix(), caption)
            for path, caption in captions(tables.columns, figures).items()
        ],
        data=data_block(
            {
                "cells": cells,
                "probes": PROBES,
                "verdicts": [f"{column.verdict} {column.published}".rstrip() for column in tables.columns],
                "steps": list(steps),
                "quantiles": _quantiles(max(len(cell["runs"]) for cell in cells)),
            }
        ),
        MEAN=MEAN,
    )


def _systems(tables: Tables) -> list[tuple[TableRow, list[tuple[Column, TableRow | None, int]]]]:
    """A line for each system: one of its rows, and for each column its row and the number of its cell."""
    numbers = {id(row): number for number, (_, row) in enumerate(tables.rows)}
    lines = []
    for order, [(_, first), *_] in by_system(tables.columns).items():
        cells = [(column, column.by_order.get(order)) for column in tables.columns]
        lines.append((first, [(column, row, numbers.get(id(row), -1)) for column, row in cells]))
    return lines


def _quantiles(seeds: int) -> list[float]:
    """Student's t of a two-sided interval for 1, 2, ... degrees of freedom."""
    from scipy.stats import t

    return [float(t.ppf((1 + inference.LEVEL) / 2, freedom)) for freedom in range(1, seeds)]


def _cell(
    files: RunFiles, column: Column, row: TableRow, row_facts: dict[str, tuple[float | None, str]], steps: Steps
) -> dict[str, Any]:
    """What opens when a cell is chosen, with the `row_facts` of its row; what all its runs share stands once."""
    key = row.cell.key
    config = next((run["config"] for run in row.runs), {})
    first, *others = [run["provenance"] for run in row.runs] or [{}]
    shared = {name: value for name, value in first.items() if all(other.get(name) == value for other in others)}
    baselines = {f"baseline: {name}": words.decimals(value) for name, value in sorted(column.baselines.items())}
    return {
        "name": row.name,
        "colour": colour_number(row),
        "caveats": [f"{badge.label}: {badge.meaning}" for badge in row.badges],
        "task": key.task,
        "protocol": f"{key.protocol}, {key.selection}",
        "selection": key.selection,
        "attention": key.attention,
        "variant": key.variant,
        "metric": column.metric,
        "facts": {name: text for name, (_, text) in row_facts.items() if name not in FILTERS}
        | {"complexity": row.complexity, **baselines},
        "diagnostics": columns.accuracy_by(row.finished),
        "calibration": columns.reliability(row.finished),
        "config": {name: value for name, value in cleaned(config).items() if name != "seed"},
        "provenance": shared,
        "runs": [_run(files, row, seed, shared, steps) for seed in row.cell.seeds()],
    }


def _run(files: RunFiles, row: TableRow, seed: int, shared: dict[str, Any], steps: Steps) -> dict[str, Any]:
    """One seed; a declared one that never ran has no `path`. `right`: a bit for each test example, packed."""
    shown: dict[str, Any] = {"seed": seed, "status": row.cell.status(seed), "flags": row.flags.get(seed, [])}
    run = row.cell.runs.get(seed)
    if run is None:
        return shown
    if seed in row.predictions and row.independent:
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
        **{name: run.get(name) for name in ("steps", "tokens_per_second", "peak_memory_bytes")},
        "training_seconds": training_seconds(run),
        "provenance": {name: value for name, value in run["provenance"].items() if name not in shared},
        "curve": _curve(row.curves.get(seed) or records.read_curve(files, run), steps),
    }


def _curve(curve: Curve | None, steps: Steps) -> dict[str, Any]:
    """No more than POINTS_OF_A_CURVE of the evaluations: each, or every second, fourth, ..., so that runs that ended at
    different steps have theirs in common; and the last."""
    if not curve:
        return {}
    count = len(curve["step"])
    stride = 1
    while len(kept := sorted({*range(0, count, stride), count - 1})) > POINTS_OF_A_CURVE:
        stride *= 2
    shown: dict[str, Any] = {"step": steps.setdefault(tuple(curve["step"][place] for place in kept), len(steps))}
    return shown | {name: [_rounded(curve[name][place]) for place in kept] for name in CURVES if name in curve}


def _rounded(value: Any) -> Any:
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def _packed(tables: Tables) -> Iterator[dict[str, Any]]:
    """Where each packed record lies, in a line that links lead to."""
    for number, (_, row) in enumerate(tables.rows):
        for seed, run in row.cell.runs.items():
            if run["packed"]:
                receipts, member = tables.run_files.member(run["path"])
                yield {
                    "anchor": anchor(run),
                    "cell": number,
                    "system": row.name,
                    "seed": seed,
                    "status": row.cell.status(seed),
                    "address": layout.address(receipts),
                    "receipts": receipts,
                    "member": member,
                    "sha256": hashlib.sha256(tables.run_files.read(run["path"])).hexdigest(),
                }
