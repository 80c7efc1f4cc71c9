"""The numbers of a report for other programs: table1.csv, table1.json, seeds.csv and pairs.csv.

Numbers have ten significant digits, which is what two machines agree about.
"""

import csv
import hashlib
import io
import json
from collections.abc import Sequence
from typing import Any

from lra.records.run_files import RunFiles
from lra.report.read.records import training_seconds
from lra.report.read.schema import RULES
from lra.report.statistics.columns import Tables
from lra.report.statistics.table import Column, Comparison, TableRow, Verdict

SCHEMA = 4  # 3 had no races, 2 no verdicts, and tests paired by seed; 1 no title, and only the names of the figures
PAIRS = (
    *("protocol", "selection", "task", "metric", "system", "other", "seeds", "mean_difference", "error", "low", "high"),
    *("p", "seeds_needed", "only_system_right", "only_other_right", "mcnemar_p"),
)

Values = dict[str, Any]
"""A line, by column."""


def cells(tables: Tables) -> list[Values]:
    """A line for each cell, all protocols."""
    return [_cell(column, row) for column, row in tables.rows]


def seeds(tables: Tables) -> list[Values]:
    """A line for each run, declared ones included."""
    return [
        names(column, row) | _seed(tables.run_files, row, seed)
        for column, row in tables.rows
        for seed in row.cell.seeds()
    ]


def pairs_csv(tables: Tables) -> str:
    """One line per pair of systems of a column; McNemar's p by seed."""
    lines = [
        _pair(column, pair)
        | {
            "only_system_right": sum(test.only_first for test in pair.discordant.values()) if pair.discordant else None,
            "only_other_right": sum(test.only_second for test in pair.discordant.values()) if pair.discordant else None,
            "mcnemar_p": " ".join(f"{seed}:{number(test.p)}" for seed, test in pair.discordant.items()),
        }
        for column in tables.columns
        for pair in column.pairs
    ]
    return as_csv(lines, PAIRS)


def table_json(tables: Tables, how: Values) -> str:
    """Everything. `how` the report was built: its title, what --selection asked for, or null, and the SHA-256 of each
    figure by its path."""
    value = {
        "schema": SCHEMA,
        **how,
        "sources": [source.model_dump(include={"name", "reference", "numbers"}) for source in tables.published.sources],
        "columns": [
            _place(column)
            | {name: getattr(column, name) for name in ("title", "short", "baselines", "answer", "verdict")}
            for column in tables.columns
        ],
        "cells": [
            _cell(column, row) | {"seeds": [_seed(tables.run_files, row, seed) for seed in row.cell.seeds()]}
            for column, row in tables.rows
        ],
        "pairs": [
            _pair(column, pair)
            | {
                "mcnemar": [
                    {"seed": seed, "only_system": test.only_first, "only_other": test.only_second, "p": number(test.p)}
                    for seed, test in pair.discordant.items()
                ]
            }
            for column in tables.columns
            for pair in column.pairs
        ],
    }
    return json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def number(value: Any) -> Any:
    return float(f"{value:.10g}") if isinstance(value, float) else value


def _place(column: Column) -> Values:
    protocol, selection, task = column.key
    return {"protocol": protocol, "selection": selection, "task": task, "metric": column.metric}


def names(column: Column, row: TableRow) -> Values:
    """What tells the row of a table from all others."""
    key = row.cell.key
    return _place(column) | {
        "system": row.name,
        "attention": key.attention,
        "variant": key.variant,
        "settings": key.settings,
    }


def _cell(column: Column, row: TableRow) -> Values:
    summary = row.summary
    low, high = summary.interval or (None, None)
    values = {
        "complexity": row.complexity,
        "best": summary.best,
        "mean": summary.mean,
        "sd": summary.sd,
        "low": low,
        "high": high,
        "minimum": summary.minimum,
        "maximum": summary.maximum,
        "done": summary.done,
        "declared": summary.declared,
        "problems": " ".join(f"{count} {state}" for state, count in summary.problems.items()),
        "bold": row.name == column.bold,
        "caveats": "; ".join(badge.label for badge in row.badges),
        "goal": row.race and row.race.goal,
        "solved": row.race and len(row.race.solved),
        "median_steps": row.race and row.race.median,
        **_verdict(row.verdict),
        "best_minus_mean": summary.gain_of_best,
        "expected_best_minus_mean": summary.expected_gain,
        "seeds_needed": summary.seeds_needed,
        "published_source": column.source and column.source.name,
        "published_best": summary.published_best,
        "published_mean": summary.published_mean,
        "mean_minus_published": summary.mean_minus_published,
    }
    return names(column, row) | {name: number(value) for name, value in values.items()}


def _verdict(verdict: Verdict | None) -> Values:
    """A row beside its reference; nothing of the reference itself."""
    low, high = (verdict and verdict.interval) or (None, None)
    crossed_low, crossed_high = (verdict and verdict.crossed) or (None, None)
    return {
        "reference": verdict and verdict.reference,
        "verdict": verdict and verdict.word,
        "margin": verdict and verdict.margin,
        "common_seeds": verdict and verdict.seeds,
        "difference": verdict and verdict.estimate,
        "difference_low": low,
        "difference_high": high,
        "crossed_low": crossed_low,
        "crossed_high": crossed_high,
        "p": verdict and verdict.p,
        "p_holm": verdict and verdict.holm,
        "p_equivalent": verdict and verdict.equivalence,
        "seeds_to_decide": verdict and verdict.needed,
    }


def _seed(files: RunFiles, row: TableRow, seed: int) -> Values:
    cell, run = row.cell, row.cell.runs.get(seed, {})
    best = run.get("validation", {}).get("best", {})
    provenance, reached = run.get("provenance", {}), run.get("reached", {})
    return {
        "seed": seed,
        "status": cell.status(seed),
        "flags": " ".join(row.flags.get(seed, [])),
        **{f"test_{rule}": run.get("test", {}).get(rule, {}).get(cell.metric) for rule in RULES},
        "best_val": best.get(cell.metric),
        "best_val_step": best.get("step"),
        "steps": run.get("steps"),
        "ended": run.get("ended"),
        **{f"steps_to_{percent}": reached.get(percent, {}).get("step") for percent in ("50", "90", "99")},
        "train_seconds": training_seconds(run),
        "tokens_per_second": run.get("tokens_per_second"),
        "commit": provenance.get("commit"),
        "dirty": provenance.get("dirty"),
        "record": run.get("path"),
        "record_sha256": hashlib.sha256(files.read(run["path"])).hexdigest() if run else None,
    }


def _pair(column: Column, pair: Comparison) -> Values:
    difference = pair.difference
    low, high = difference.interval or (None, None)
    values = {
        "system": pair.first,
        "other": pair.other,
        "seeds": difference.seeds,
        "mean_difference": difference.mean,
        "error": difference.error,
        "low": low,
        "high": high,
        "p": difference.p,
        "seeds_needed": pair.seeds_needed,
    }
    return _place(column) | {name: number(value) for name, value in values.items()}


def as_csv(lines: list[Values], names: Sequence[str] = ()) -> str:
    """`names`: the columns, where there may be no line to read them from. A text that a spreadsheet would compute
    stands behind an apostrophe."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=names or list(lines[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _no_formula(value) for name, value in line.items()} for line in lines)
    return text.getvalue()


def _no_formula(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@")) else value
