"""Tables of kept results for blocks of cog in Markdown pages."""

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
from lra.records.runs import Run
from lra.reports import Report
from lra.reports.published import Published
from lra.reports.render import markdown, mean_sd, number
from lra.reports.tables import Footnotes

RESULTS = Path(__file__).resolve().parents[2] / "results"
MISSING = "–"
TASKS = {"text": "text", "matching": "matching", "listops": "ListOps"}  # of Table 1
PAPER = ("Transformer", "Linear ELU", "Simple", "Simple-Res", "Simple-ResL")

Filter = Mapping[str, Any]
"""Values by column of a report's cells; also `row` (system without settings), `folder` and `show`, a key of SHOW."""


def crosstab(rows: Mapping[str, Filter], columns: Mapping[str, Filter], corner: str = "system", note: str = "") -> str:
    """Return a Markdown table with a cell for each row and column.

    Args:
        rows, columns: a filter by label; a cell shows the one line of a results table that matches both. A column with
            `texts` shows these texts by system instead.
        corner: the header of the labels.
        note: a sentence below the footnotes.

    Raises:
        ValueError: no line, or several lines, match a cell; `optional=True` in a filter allows none.
    """
    notes = Footnotes()
    cells = [[label, *(_cell({**column, **row}, notes) for column in columns.values())] for label, row in rows.items()]
    table = markdown(pd.DataFrame(cells, columns=[corner, *columns]), left=1)
    below = [*(f"{letter}: {text}." for text, letter in notes.letters.items()), *filter(None, [note])]
    return "\n".join(["", table, "", *(["  \n".join(below), ""] if below else [])])


def table1() -> str:
    """Return Table 1: published accuracies and ours by system, a convolution and trivial baselines below them."""
    ours = _cells("table1_narrow")
    columns: dict[str, Filter] = {}
    for task, title in TASKS.items():
        columns[f"{title}, published"] = {"texts": _published(task)}
        if (trained := ours[(ours.task == task) & (ours.kind == "system")]).size:
            [seeds] = trained.n.unique()
            columns[f"{title}, ours (n = {seeds:.0f})"] = {"folder": "table1_narrow", "task": task, "optional": True}
    # of the baselines of ListOps, the first three tokens score more than the root operator
    trivial = ours[(ours.kind == "baseline") & (ours.system != "root operator")].system
    rows = {name: {"system": name} for name in (*PAPER, "Convolution")}
    rows |= {f"*baseline: {name}*": {"system": name} for name in trivial}
    means = ", ".join(f"{title} {_published(task, 'mean')['Simple']}" for task, title in TASKS.items())
    return crosstab(rows, columns, note=f"Published means of Simple over five seeds: {means}.")


def ranking() -> str:
    """Return Table 1 with our results, in the order of the mean of the three published accuracies."""
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
    """Return how many seeds of each system reach the goal of each small task, with the most successful system first."""
    hour, present = (report(folder).tables.solved for folder in ("hour", "present"))
    counts = pd.concat([hour, present], ignore_index=True).drop_duplicates("system")  # keeps the study with more seeds
    shares = counts[present.columns[1:]].map(lambda text: float(Fraction(text.replace(" of ", "/"))))
    counts.insert(1, "tasks solved by most seeds", (shares > 0.5).sum(axis=1))
    order = shares.sum(axis=1).sort_values(ascending=False, kind="stable").index
    return markdown(counts.loc[order].fillna(MISSING).rename(columns=lambda name: name.removesuffix(", 99 %")), left=1)


def trivial() -> str:
    """Return how many published rows of Table 1 the best trivial baselines beat."""
    beaten, published = {}, Published().sources[0].best
    for column in report("table1_narrow").columns:
        (name, score), task = column.best_baseline, column.task
        rows = [numbers[task] for system, numbers in published.items() if task in numbers and system != "Random"]
        beaten[name] = f"{sum(value < score for value in rows)} of {len(rows)} published systems"
    return (
        f"\nA lookup table on the first three tokens beats {beaten['first three tokens']} on ListOps, "
        f"and a bag of words {beaten['bag of words']} on text.\n"
    )


def demo() -> str:
    """Return the lines that `scripts/demo.sh` prints below its table's command, and the origin of the numbers."""
    cells, [column] = report("demo").cells, report("demo").columns
    cells = cells[cells.kind == "system"][["system", "mean", "sd", "seeds", "p_holm"]]
    origin = report("demo").runs[0].record.provenance
    name, score = column.best_baseline
    table = cells.to_string(index=False, float_format="%.2f", na_rep="-")
    return (
        f"\n```text\n{table}\n```\n\nThese [runs](results/demo/README.md) used one {origin.cpu} "
        f"(family/model/stepping {origin.cpu_model}), commit {origin.commit[:8]}.\nAnother processor may round "
        f"differently. The best baseline, {name}, scores {score:.2f}.\n"
    )


def scales() -> str:
    """Return the commands of Table 1 by scale, with the runs of each sweep and the times of the kept runs."""
    small = report("table1_small").runs
    narrow = [run for run in report("table1_narrow").runs if "H200" in run.record.provenance.device]
    times = [pd.Timestamp(getattr(run.record.provenance, key)) for run in narrow for key in ("started", "finished")]
    minutes = (max(times) - min(times)).total_seconds() / 60
    small_time = f"{len(small)} runs took {_hours(small):.1f} core hours"
    narrow_time = f"{len(narrow)} runs at once took {minutes:.0f} min on an H200, {_hours(narrow):.1f} h in sum"
    lines = (
        ("[small: short inputs](results/table1_small/README.md)", "table1_small", "", "two cores", small_time),
        ("[narrow: width 64](results/table1_narrow/README.md)", "table1_narrow",
         " hydra/launcher=joblib hydra.launcher.n_jobs=24", "GPU", narrow_time),
        ("published", "table1", "", "GPU", "[not trained yet](docs/clusters.md#table-1-on-a-rented-gpu)"),
    )  # fmt: skip
    table = ["", "| scale | command | runs | hardware | time of the kept runs |", "|---|---|---:|---|---|"]
    for scale, name, words, hardware, time in lines:
        command = f"lra-train experiment={name}{words} max_hours=null"
        table.append(f"| {scale} | `{command}` | {_planned(name)} | {hardware} | {time} |")
    return "\n".join([*table, ""])


def speed() -> str:
    """Return how many times as fast as plain PyTorch a step of Simple is, by precision, with the processor's name."""
    parts = []
    for precision in ("fp32", "bf16"):
        steps = [json.loads((RESULTS / f"bench/steps/{task}_{precision}.json").read_text()) for task in TASKS]
        times = sorted(1 / median(step["results"][1]["ratio"]) for step in steps)
        parts.append(f"{times[0]:.1f} to {times[-1]:.1f} times as fast in {precision}")
    cpu = " ".join(steps[0]["provenance"][key] for key in ("cpu", "cpu_model"))
    return f"A step of Simple is {parts[0]} and {parts[1]} as a straightforward PyTorch step on one core ({cpu},"


def _planned(experiment: str) -> int:
    """Return the number of runs of a sweep."""
    swept = read_yaml(conf_dir() / "experiment" / f"{experiment}.yaml")["hydra"]["sweeper"]["params"]
    return prod(len(options(key) if value == "glob(*)" else str(value).split(",")) for key, value in swept.items())


def _hours(runs: list[Run]) -> float:
    return sum(sum(run.record.seconds.values()) for run in runs) / 3600


@cache
def report(folder: str) -> Report:
    """Return the report of a folder below results/."""
    return Report(RESULTS / folder)


def _cells(folder: str) -> pd.DataFrame:
    cells = report(folder).cells
    return cells.assign(row=cells.system.str.partition(" (")[0])


def _published(task: str, which: str = "best") -> dict[str, str]:
    """Return the published numbers of a task by system; `which` is `best` or `mean`, over seeds."""
    numbers = getattr(Published().sources[0], which)
    return {system: number(scores[task]) for system, scores in numbers.items() if task in scores}


def _cell(wanted: dict[str, Any], notes: Footnotes) -> str:
    """Return the text of a cell, with a mark if seeds are at the majority class."""
    if "texts" in wanted:
        return wanted["texts"].get(wanted["system"], MISSING)
    show, optional = wanted.pop("show", "mean_sd"), wanted.pop("optional", False)
    cells = _cells(wanted.pop("folder"))
    for column, value in wanted.items():
        cells = cells[cells[column] == value]
    if optional and cells.empty:
        return MISSING
    if len(cells) != 1:
        raise ValueError(f"{len(cells)} lines match {wanted}")
    line = cells.iloc[0]
    at_majority = f"{line.majority_class:.0f} of {line.n:.0f} seeds no better than the majority class"
    return SHOW[show](line) + notes.mark([at_majority] if line.majority_class > 0 else [])


SHOW = {
    "mean_sd": lambda line: mean_sd(line["mean"], line.sd),
    "difference": lambda line: (
        "reference"
        if pd.isna(line.difference)
        else (f"{line.difference:+.2f} [{line.difference_low:.2f}, {line.difference_high:.2f}]")
    ),
    "solved": lambda line: f"{line.solved:.0f} of {line.n:.0f}",
    "parameters": lambda line: f"{line.parameters:,.0f}",
}
