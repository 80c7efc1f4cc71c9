"""Write tables and sentences with kept results: cog puts them into Markdown pages, hooks.py into the site."""

import json
from collections.abc import Mapping
from fractions import Fraction
from functools import cache
from math import prod
from pathlib import Path
from statistics import fmean, median
from typing import Any

import pandas as pd

from lra.config.compose import options
from lra.core.files import read_yaml
from lra.core.paths import conf_dir
from lra.reports import Report
from lra.reports.published import Published
from lra.reports.render import markdown, mean_sd, number, template
from lra.reports.tables import Footnotes

RESULTS = Path(__file__).resolve().parents[2] / "results"
TEMPLATES = Path(__file__).with_name("templates")
SHOW = {  # formats of a cell; without `show`, a cell is mean ± sd
    "difference": "{difference:+.2f} [{difference_low:.2f}, {difference_high:.2f}]",
    "solved": "{solved:.0f} of {n:.0f}",
    "parameters": "{parameters:,.0f}",
}
MISSING = "–"
TASKS = {"text": "text", "matching": "matching", "listops": "ListOps"}  # tasks of Table 1, with their titles
PAPER = ("Transformer", "Linear ELU", "Simple", "Simple-Res", "Simple-ResL")  # rows of Table 1 in README.md

Filter = Mapping[str, Any]
"""Values by key: column of `Report.cells`, `folder`, `row` (system without settings), `show`, `optional`, `texts`."""


def crosstab(rows: Mapping[str, Filter], columns: Mapping[str, Filter], corner: str = "system", note: str = "") -> str:
    """Return a Markdown table with a cell for each row and column.

    Args:
        rows, columns: filters by label. A cell shows the one row of `Report.cells` that matches both filters, and `–`
            if none does and a filter has `optional=True`. A column whose filter has the key `texts` shows these texts
            by system instead.
        corner: header of the column of labels.
        note: sentence below the footnotes.
    """
    notes = Footnotes()
    cells = [[label, *(_cell({**column, **row}, notes) for column in columns.values())] for label, row in rows.items()]
    table = markdown(pd.DataFrame(cells, columns=[corner, *columns]), left=1)
    below = [*(f"{letter}: {text}." for text, letter in notes.letters.items()), *filter(None, [note])]
    return "\n".join(["", table, "", *(["  \n".join(below), ""] if below else [])])


def table1() -> str:
    """Return Table 1 with published accuracies and ours by system; the last rows are a convolution and baselines."""
    ours = report("table1_narrow").cells
    columns: dict[str, Filter] = {}
    for task, title in TASKS.items():
        columns[f"{title}, published"] = {"texts": _published(task)}
        if (trained := ours[(ours.task == task) & (ours.kind == "system")]).size:
            [seeds] = trained.n.unique()
            columns[f"{title}, ours (n = {seeds:.0f})"] = {"folder": "table1_narrow", "task": task, "optional": True}
    # of the two lookup tables on ListOps, show only the better one, that of the first three tokens
    trivial = ours[(ours.kind == "baseline") & (ours.system != "root operator")].system
    rows = {name: {"system": name} for name in (*PAPER, "Convolution")}
    rows |= {f"*baseline: {name}*": {"system": name} for name in trivial}
    means = ", ".join(f"{title} {_published(task, 'mean')['Simple']}" for task, title in TASKS.items())
    return crosstab(rows, columns, note=f"Published means of Simple over five seeds: {means}.")


def ranking() -> str:
    """Return Table 1 with our results, sorted by the mean of the three published accuracies."""
    best = Published().sources[0].best
    means = {system: fmean(map(scores.get, TASKS)) for system, scores in best.items() if {*TASKS} <= {*scores}}
    columns: dict[str, Filter] = {"mean, published": {"texts": {name: number(mean) for name, mean in means.items()}}}
    columns |= {f"{title}, published": {"texts": _published(task)} for task, title in TASKS.items()}
    narrow = {"folder": "table1_narrow", "optional": True}
    columns |= {f"{short}, ours": {**narrow, "short": short} for short in ("Text", "ListOps")}
    small = {"folder": "table1_small", "protocol": "paper", "optional": True}
    columns |= {f"{short}, ours": {**small, "short": short} for short in ("Text-short", "ACL pairs", "ListOps-short")}
    systems = [*sorted(means, key=means.__getitem__, reverse=True), "Convolution"]
    return crosstab({system: {"system": system} for system in systems}, columns)


def solved() -> str:
    """Return a table of how many seeds of each system reach the goal of each small task, best system first."""
    hour, present = (report(folder).tables.solved for folder in ("hour", "present"))
    # of a system in both studies, keep the row of `hour`, which has more seeds
    counts = pd.concat([hour, present], ignore_index=True).drop_duplicates("system")
    shares = counts[present.columns[1:]].map(lambda text: float(Fraction(text.replace(" of ", "/"))))
    counts.insert(1, "tasks solved by most seeds", (shares > 0.5).sum(axis=1))
    order = shares.sum(axis=1).sort_values(ascending=False, kind="stable").index
    return markdown(counts.loc[order].fillna(MISSING).rename(columns=lambda name: name.removesuffix(", 99 %")), left=1)


def trivial() -> str:
    """Return a sentence on how many published rows of Table 1 the best trivial baselines beat."""
    beaten, published = {}, Published().sources[0].best
    for column in report("table1_narrow").columns:
        (name, score), task = column.best_baseline, column.task
        rows = [numbers[task] for system, numbers in published.items() if task in numbers and system != "Random"]
        beaten[name] = f"{sum(value < score for value in rows)} of {len(rows)}"
    return (
        f"\nA lookup table on the first three tokens beats {beaten['first three tokens']} systems of the paper "
        f"on ListOps, and a bag of words beats {beaten['bag of words']} on text.\n"
    )


def demo() -> str:
    """Return the table that `scripts/demo.sh` prints, and the processor and commit of its runs."""
    cells, [column], [run, *_] = report("demo").cells, report("demo").columns, report("demo").runs
    cells = cells[cells.kind == "system"][["system", "mean", "sd", "seeds", "p_holm"]]
    table = cells.to_string(index=False, float_format="%.2f", na_rep="-")
    return rendered("demo.md", table=table, origin=run.record.provenance, baseline=column.best_baseline)


def scales() -> str:
    """Return a table of the sweeps of Table 1 by scale: command, number of runs, and time of the runs in `results/`."""
    narrow = [run for run in report("table1_narrow").runs if "H200" in run.record.provenance.device]
    machines = pd.DataFrame([run.record.provenance.model_dump() for run in narrow])
    span = pd.to_datetime(machines.finished).max() - pd.to_datetime(machines.started).min()
    hours, minutes = sum(sum(run.record.seconds.values()) for run in narrow) / 3600, span.total_seconds() / 60
    small = report("table1_small").context
    return rendered("scales.md", small=small, narrow=narrow, hours=hours, minutes=minutes, planned=_planned)


def speed() -> str:
    """Return a sentence on the speed of a training step of Simple relative to plain PyTorch."""
    parts = []
    for precision in ("fp32", "bf16"):
        steps = [json.loads((RESULTS / f"bench/steps/{task}_{precision}.json").read_text()) for task in TASKS]
        times = sorted(1 / median(step["results"][1]["ratio"]) for step in steps)
        parts.append(f"{times[0]:.1f} to {times[-1]:.1f} ({precision})")
    cpu = " ".join(steps[0]["provenance"][key] for key in ("cpu", "cpu_model"))
    return (
        f"On one core ({cpu}), a training step of Simple is {' or '.join(parts)} times as fast as a "
        "straightforward PyTorch step ([bench](results/bench/README.md))."
    )


def _planned(experiment: str) -> int:
    """Return the number of runs of the sweep `experiment`."""
    swept = read_yaml(conf_dir() / "experiment" / f"{experiment}.yaml")["hydra"]["sweeper"]["params"]
    return prod(len(options(key) if value == "glob(*)" else str(value).split(",")) for key, value in swept.items())


@cache
def report(folder: str) -> Report:
    """Return the report of the folder results/`folder`."""
    return Report(RESULTS / folder)


def _published(task: str, which: str = "best") -> dict[str, str]:
    """Return the published accuracies of a task by system; `which` is `best` or `mean` over seeds."""
    numbers = getattr(Published().sources[0], which)
    return {system: number(scores[task]) for system, scores in numbers.items() if task in scores}


def _cell(wanted: dict[str, Any], notes: Footnotes) -> str:
    """Return the text of a cell, with a footnote if seeds are no better than the majority class."""
    if "texts" in wanted:
        return wanted["texts"].get(wanted["system"], MISSING)
    show, optional = wanted.pop("show", None), wanted.pop("optional", False)
    cells = report(wanted.pop("folder")).cells
    cells = cells.assign(row=cells.system.str.partition(" (")[0])
    for column, value in wanted.items():
        cells = cells[cells[column] == value]
    if optional and cells.empty:
        return MISSING
    if len(cells) != 1:
        raise ValueError(f"{len(cells)} rows match {wanted}")
    line = cells.iloc[0]
    at_majority = f"{line.majority_class:.0f} of {line.n:.0f} seeds no better than the majority class"
    text = SHOW[show].format(**line) if show in SHOW else mean_sd(line["mean"], line.sd)
    if show == "difference" and pd.isna(line.difference):
        text = "reference"
    return text + notes.mark([at_majority] if line.majority_class > 0 else [])


def rendered(name: str, /, **values: object) -> str:
    """Render a template of the folder `templates`."""
    return template(name, TEMPLATES).render(**values)
