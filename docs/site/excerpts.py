"""Tables of kept results for blocks of cog in Markdown pages."""

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import cache
from itertools import count
from math import prod
from pathlib import Path
from statistics import median
from typing import Any

import pandas as pd

import lra
from lra.config.compose import options
from lra.core.files import read_yaml
from lra.core.paths import conf_dir
from lra.records.runs import Run, read_runs
from lra.reports.published import Published
from lra.reports.render import markdown, p_value

RESULTS = Path(__file__).resolve().parents[2] / "results"
SOURCE = "SimpleTRON v4"
MISSING = "–"

Filter = Mapping[str, Any]
"""Values by column of `lra.load(folder).table`; also `row` (system without settings), `folder` and `show`."""


def crosstab(rows: Mapping[str, Filter], columns: Mapping[str, Filter], corner: str = "system") -> str:
    """Return a Markdown table with a cell for each row and column.

    Args:
        rows, columns: a filter by label; a cell prints the one line of a results table that matches both.
        corner: the header of the labels.

    Raises:
        ValueError: no line, or several lines, match a cell; `optional=True` in a filter allows none.
    """
    notes: dict[str, str] = {}
    cells = [[label, *(_cell({**column, **row}, notes) for column in columns.values())] for label, row in rows.items()]
    table = markdown(pd.DataFrame(cells, columns=[corner, *columns]), left=1)
    footnotes = "  \n".join(f"{letter}: {note}." for note, letter in notes.items())
    return "\n".join(["", table, "", *([footnotes, ""] if notes else [])])


def baselines(folder: str, **columns: Filter) -> dict[str, dict[str, float]]:
    """Return the trivial baselines by name and column."""
    from lra.reports import Report

    cells = Report(RESULTS / folder).cells
    known = cells[cells.kind == "baseline"]
    found: dict[str, dict[str, float]] = {}
    for column, wanted in columns.items():
        for line in _matching(known, wanted).to_dict("records"):
            found.setdefault(line["system"].removeprefix("baseline: "), {})[column] = line["mean"]
    return found


PAPER = ("Transformer", "Linear ELU", "Simple", "Simple-Res", "Simple-ResL")
PROBES = ("Recall, 12 pairs", "Copy, 12 of 48", "Parity, 16 bits", "Compose, 6 of S3", "Compose, 16 of S3")
OLDER = (*PAPER, "S4D", "Convolution")
NEWER = ("Transformer", "RoFormer", "Mega", "Mamba-2", "GLA", "Gated DeltaNet", "RWKV-7", "mLSTM", "Based", "Hyena")


def solved(folder: str, systems: Iterable[str], tasks: Iterable[str] = PROBES) -> str:
    """Return a table of the seeds that reached the goal, by system and task."""
    rows = {name: {"system": name, "folder": folder} for name in systems}
    return crosstab(rows, {task: {"short": task, "show": "solved"} for task in tasks})


def table1(folder: str = "table1_narrow", extra: Iterable[str] = ("Convolution",), protocol: str = "strict") -> str:
    """Return Table 1: published and own accuracies by system, and below them `extra` systems and trivial baselines."""
    published = next(source for source in Published().sources if source.name == SOURCE)
    titles = {"text": "text", "matching": "matching", "listops": "ListOps"}
    table = _table(folder)
    trained = [task for task in titles if (table.task == task).any()]
    notes: dict[str, str] = {}
    header = ["system"]
    shown = {}
    for task, title in titles.items():
        header.append(f"{title}, published")
        if task in trained:
            seeds = table[(table.task == task) & (table.protocol == protocol)].n
            same = seeds.nunique() == 1
            shown[task] = "mean_sd" if same else "mean_sd_n"
            header.append(f"{title}, ours (n = {seeds.iloc[0]:.0f})" if same else f"{title}, ours")
    lines = []
    for system in (*PAPER, *extra):
        line = [system]
        for task in titles:
            number = published.number(system, task)
            line.append(MISSING if number is None else f"{number:.2f}")
            if task in trained:
                wanted = {"folder": folder, "task": task, "protocol": protocol, "system": system, "optional": True}
                line.append(_cell({**wanted, "show": shown[task]}, notes))
        lines.append(line)
    found = baselines(folder, **{task: {"task": task, "protocol": protocol} for task in trained})
    for name, values in found.items():
        if name == "root operator":  # weaker than the first three tokens
            continue
        line = [f"*baseline: {name}*"]
        for task in titles:
            line += [MISSING, *([f"{values[task]:.2f}" if task in values else MISSING] if task in trained else [])]
        lines.append(line)
    footnotes = [f"{letter}: {note}.  " for note, letter in notes.items()]
    means = ", ".join(f"{titles[task]} {published.number('Simple', task, 'mean'):.2f}" for task in titles)
    footnotes.append(f"Published means of Simple over five seeds: {means}.")
    return "\n".join(["", markdown(pd.DataFrame(lines, columns=header), left=1), "", *footnotes, ""])


def trivial(folder: str = "table1_narrow") -> str:
    """Return how many published rows of Table 1 the best trivial baselines beat."""
    published = next(source for source in Published().sources if source.name == SOURCE)
    beaten = {}
    for task, name in (("listops", "first three tokens"), ("text", "bag of words")):
        score = baselines(folder, own={"task": task})[name]["own"]
        rows = [numbers[task] for system, numbers in published.best.items() if task in numbers and system != "Random"]
        beaten[task] = f"{sum(number < score for number in rows)} of {len(rows)} published systems"
    return (
        f"\nA lookup table on the first three tokens beats {beaten['listops']} on ListOps, and a bag of words "
        f"{beaten['text']} on text.\n"
    )


def demo(folder: str = "demo") -> str:
    """Return the lines that `scripts/demo.sh` prints below its table's command, and the origin of the numbers."""
    columns = ["system", "mean", "sd", "seeds", "p_holm"]
    table = _table(folder)[columns].to_string(index=False, float_format="%.2f", na_rep="-")
    origin = read_runs(RESULTS / folder)[0].record.provenance
    name, best = max(
        ((name, each["demo"]) for name, each in baselines(folder, demo={}).items()), key=lambda each: each[1]
    )
    return (
        f"\n```text\n{table}\n```\n\nThese [runs](results/demo/README.md) used one {origin.cpu} "
        f"(family/model/stepping {origin.cpu_model}), commit {origin.commit[:8]}.\n"
        f"Another processor may round differently. The best baseline, {name}, scores {best:.2f}.\n"
    )


def scales() -> str:
    """Return the commands of Table 1 by scale, with the runs of each sweep and the times of the kept runs."""
    small = read_runs(RESULTS / "table1_small")
    narrow = [run for run in read_runs(RESULTS / "table1_narrow") if "H200" in run.record.provenance.device]
    started = min(datetime.fromisoformat(run.record.provenance.started) for run in narrow)
    finished = max(datetime.fromisoformat(run.record.provenance.finished) for run in narrow)
    minutes = (finished - started).total_seconds() / 60
    at_once = f"{len(narrow)} runs at once took {minutes:.0f} min on an H200, {_hours(narrow):.1f} h in sum"
    launcher = " hydra/launcher=joblib hydra.launcher.n_jobs=24"
    lines = (
        (
            "small: short inputs",
            "table1_small",
            "",
            "two cores",
            f"{len(small)} runs took {_hours(small):.1f} core hours",
        ),
        ("narrow: width 64", "table1_narrow", launcher, "GPU", at_once),
        ("published", "table1", "", "GPU", "[not trained yet](docs/clusters.md#table-1-on-a-rented-gpu)"),
    )
    table = ["", "| scale | command | runs | hardware | time of the kept runs |", "|---|---|---:|---|---|"]
    for scale, name, words, hardware, time in lines:
        known = f"[{scale}](results/{name}/README.md)" if (RESULTS / name).exists() else scale
        command = f"lra-train experiment={name}{words} max_hours=null"
        table.append(f"| {known} | `{command}` | {_planned(name)} | {hardware} | {time} |")
    return "\n".join([*table, ""])


def speed() -> str:
    """Return how many times as fast as plain PyTorch a step of Simple is, over text, matching and ListOps."""
    steps = json.loads((RESULTS / "bench" / "bench.json").read_text())["measurements"]
    ours = [steps[f"step_{task}"]["results"][1] for task in ("text", "matching", "listops")]
    times = sorted(1 / median(each["ratio"]) for each in ours)
    return f"On one core Simple trained {times[0]:.1f} to {times[-1]:.1f} times as fast per step as in plain PyTorch"


def _planned(experiment: str) -> int:
    """Return the number of runs of a sweep."""
    swept = read_yaml(conf_dir() / "experiment" / f"{experiment}.yaml")["hydra"]["sweeper"]["params"]
    return prod(len(options(key) if value == "glob(*)" else str(value).split(",")) for key, value in swept.items())


def _hours(runs: Sequence[Run]) -> float:
    return sum(sum(run.record.seconds.values()) for run in runs) / 3600


@cache
def _table(folder: str) -> pd.DataFrame:
    table = lra.load(str(RESULTS / folder)).table
    return table.assign(row=table.system.str.partition(" (")[0])


def _matching(table: pd.DataFrame, wanted: Filter) -> pd.DataFrame:
    for column, value in wanted.items():
        table = table[table[column] == value]
    return table


def _cell(wanted: dict[str, Any], notes: dict[str, str]) -> str:
    show, optional = wanted.pop("show", "mean_sd"), wanted.pop("optional", False)
    lines = _matching(_table(wanted.pop("folder")), wanted).to_dict("records")
    if optional and not lines:
        return MISSING
    if len(lines) != 1:
        raise ValueError(f"{len(lines)} lines match {wanted}")
    return SHOW[show](lines[0]) + _mark(lines[0], notes)


def _mark(line: dict[str, Any], notes: dict[str, str]) -> str:
    """Return the footnote mark of a cell with seeds at the majority class."""
    if not line["majority_class"]:
        return ""
    note = f"{line['majority_class']:.0f} of {line['n']:.0f} seeds no better than the majority class"
    letter = notes.setdefault(note, next(chr(97 + i) for i in count() if chr(97 + i) not in notes.values()))
    return f"<sup>{letter}</sup>"


def _difference(line: dict[str, Any]) -> str:
    if pd.isna(line["difference"]):
        return "reference"
    return f"{line['difference']:+.2f} [{line['difference_low']:.2f}, {line['difference_high']:.2f}]"


def _solved(line: dict[str, Any]) -> str:
    return f"{line['solved']:.0f} of {line['n']:.0f}"


SHOW = {
    "mean_sd": lambda line: f"{line['mean']:.2f} ± {line['sd']:.2f}",
    "mean_sd_n": lambda line: f"{line['mean']:.2f} ± {line['sd']:.2f} (n = {line['n']:.0f})",
    "difference": _difference,
    "p": lambda line: MISSING if pd.isna(line["p_holm"]) else p_value(line["p_holm"]),
    "solved": _solved,
    "parameters": lambda line: f"{line['parameters']:,.0f}",
}
