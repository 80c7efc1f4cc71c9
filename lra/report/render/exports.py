"""The numbers of a report for other programs: table1.csv, table1.json, seeds.csv and pairs.csv.

Numbers have ten significant digits, which is what two machines agree about.
"""

import csv
import hashlib
import io
import json
from collections.abc import Iterator, Sequence
from typing import Any

from lra.records.run_files import RunFiles
from lra.report.read.published import Published
from lra.report.read.records import training_seconds
from lra.report.read.schema import RULES
from lra.report.statistics.table import Column, Comparison, Section, TableRow, Verdict

SCHEMA = 4  # 3 had no races, 2 no verdicts, and tests paired by seed; 1 no title, and only the names of the figures
PAIRS = (
    *("protocol", "selection", "task", "metric", "system", "other", "seeds", "mean_difference", "error", "low", "high"),
    *("p", "seeds_needed", "only_system_right", "only_other_right", "mcnemar_p"),
)


def table_csv(sections: list[Section]) -> str:
    """One line per cell, all protocols."""
    return as_csv(cell_lines(sections))


def seeds_csv(files: RunFiles, sections: list[Section]) -> str:
    """One line per run, declared ones included."""
    return as_csv(seed_lines(files, sections))


def cell_lines(sections: list[Section]) -> list[dict[str, Any]]:
    return [_cell(column, row) for column, row in rows_of(sections)]


def seed_lines(files: RunFiles, sections: list[Section]) -> list[dict[str, Any]]:
    return [
        names(column, row) | _seed(files, row, seed) for column, row in rows_of(sections) for seed in row.cell.seeds()
    ]


def pairs_csv(sections: list[Section]) -> str:
    """One line per pair of systems of a column; McNemar's p by seed."""
    lines = [
        _pair(column, pair)
        | {
            "only_system_right": sum(test.only_first for test in pair.discordant.values()) if pair.discordant else None,
            "only_other_right": sum(test.only_second for test in pair.discordant.values()) if pair.discordant else None,
            "mcnemar_p": " ".join(f"{seed}:{number(test.p)}" for seed, test in pair.discordant.items()),
        }
        for section in sections
        for column in section.columns
        for pair in column.pairs
    ]
    return as_csv(lines, PAIRS)


def table_json(files: RunFiles, sections: list[Section], published: Published, how: dict[str, Any]) -> str:
    """Everything. `how` the report was built: its title, what --selection asked for, or null, and the SHA-256 of each
    figure by its path."""
    columns = [column for section in sections for column in section.columns]
    value = {
        "schema": SCHEMA,
        **how,
        "sources": [source.model_dump(include={"name", "reference", "numbers"}) for source in published.sources],
        "columns": [
            _place(column)
            | {"title": column.title, "short": column.short, "baselines": column.baselines}
            | {"answer": column.answer, "verdict": column.verdict}
            for column in columns
        ],
        "cells": [
            _cell(column, row) | {"seeds": [_seed(files, row, seed) for seed in row.cell.seeds()]}
            for column, row in rows_of(sections)
        ],
        "pairs": [
            _pair(column, pair)
            | {
                "mcnemar": [
                    {"seed": seed, "only_system": test.only_first, "only_other": test.only_second, "p": number(test.p)}
                    for seed, test in pair.discordant.items()
                ]
            }
            for column in columns
            for pair in column.pairs
        ],
    }
    return json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def number(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.10g}")


def rows_of(sections: list[Section]) -> Iterator[tuple[Column, TableRow]]:
    return ((column, row) for section in sections for column in section.columns for row in column.rows)


def _place(column: Column) -> dict[str, Any]:
    protocol, selection, task = column.key
    return {"protocol": protocol, "selection": selection, "task": task, "metric": column.metric}


def names(column: Column, row: TableRow) -> dict[str, Any]:
    """What tells the row of a table from all others."""
    key = row.cell.key
    return _place(column) | {
        "system": row.name,
        "attention": key.attention,
        "variant": key.variant,
        "settings": key.settings,
    }


def _cell(column: Column, row: TableRow) -> dict[str, Any]:
    summary = row.summary
    low, high = summary.interval or (None, None)
    return names(column, row) | {
        "complexity": row.complexity,
        "best": number(summary.best),
        "mean": number(summary.mean),
        "sd": number(summary.sd),
        "low": number(low),
        "high": number(high),
        "minimum": number(summary.minimum),
        "maximum": number(summary.maximum),
        "done": summary.done,
        "declared": summary.declared,
        "problems": " ".join(f"{count} {state}" for state, count in summary.problems.items()),
        "bold": row.name == column.bold,
        "caveats": "; ".join(badge.label for badge in row.badges),
        "goal": row.race and row.race.goal,
        "solved": row.race and len(row.race.solved),
        "median_steps": row.race and row.race.median,
        **_verdict(row.verdict),
        "best_minus_mean": number(summary.gain_of_best),
        "expected_best_minus_mean": number(summary.expected_gain),
        "seeds_needed": summary.seeds_needed,
        "published_source": column.source.name if column.source else None,
        "published_best": summary.published_best,
        "published_mean": summary.published_mean,
        "mean_minus_published": number(summary.mean_minus_published),
    }


def _verdict(known: Verdict | None) -> dict[str, Any]:
    """A row beside its reference; nothing of the reference itself."""
    low, high = known.interval or (None, None) if known else (None, None)
    crossed_low, crossed_high = known.crossed or (None, None) if known else (None, None)
    return {
        "reference": known and known.reference,
        "verdict": known and known.word,
        "margin": known and known.margin,
        "common_seeds": known and known.seeds,
        "difference": number(known and known.estimate),
        "difference_low": number(low),
        "difference_high": number(high),
        "crossed_low": number(crossed_low),
        "crossed_high": number(crossed_high),
        "p": number(known and known.p),
        "p_holm": number(known and known.holm),
        "p_equivalent": number(known and known.equivalence),
        "seeds_to_decide": known and known.needed,
    }


def _seed(files: RunFiles, row: TableRow, seed: int) -> dict[str, Any]:
    cell, run = row.cell, row.cell.runs.get(seed, {})
    best = run.get("validation", {}).get("best", {})
    provenance, reached = run.get("provenance", {}), run.get("reached", {})
    test = {rule: run.get("test", {}).get(rule, {}).get(cell.metric) for rule in RULES}
    return {
        "seed": seed,
        "status": cell.status(seed),
        "flags": " ".join(row.flags.get(seed, [])),
        **{f"test_{rule}": value for rule, value in test.items()},
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


def _pair(column: Column, pair: Comparison) -> dict[str, Any]:
    difference = pair.difference
    low, high = difference.interval or (None, None)
    return _place(column) | {
        "system": pair.first,
        "other": pair.other,
        "seeds": difference.seeds,
        "mean_difference": number(difference.mean),
        "error": number(difference.error),
        "low": number(low),
        "high": number(high),
        "p": number(difference.p),
        "seeds_needed": pair.seeds_needed,
    }


def as_csv(lines: list[dict[str, Any]], names: Sequence[str] = ()) -> str:
    """`names`: the columns, where there may be no line to read them from. A text that a spreadsheet would compute
    stands behind an apostrophe."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=names or list(lines[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _no_formula(value) for name, value in line.items()} for line in lines)
    return text.getvalue()


def _no_formula(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@")) else value
