"""Build a DataFrame with one row per run of a results folder, and check that tables can compare these runs.

A run is missing if a sweep declared it but no such run exists. Missing runs have rows, too.
"""

from collections.abc import Iterable, Mapping
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import pandas as pd

from lra.config.cell import ROUNDING
from lra.core.errors import UserError, printable
from lra.core.files import read_yaml
from lra.core.paths import conf_dir
from lra.records import record
from lra.records.record import RULES, DeclaredCell, RunRecord, without_paths
from lra.records.runs import Run, declared
from lra.reports.published import Published
from lra.reports.statistics import not_above

MAJORITY = "majority class"  # name of the majority-class baseline in records
LARGEST = 1e15  # a perplexity above this is treated as infinite
COLUMN = ["protocol", "selection", "task"]  # keys that identify a column of a table
CELL = [*COLUMN, "attention", "variant", "settings"]  # keys that identify a cell
# Runs of a cell may differ in the seed, in initial weights, and in settings that change only rounding, since another
# processor changes rounding, too.
FREE = {"config.seed", "config.init.sha256", *(f"config.{key}" for key in ROUNDING)}
INTERNAL = ["run", "cell", "column", "declared", "reference", "margin"]  # columns of the DataFrame that seeds.csv omits


def runs_frame(folder: Path, runs: list[Run], published: Published, selection: str | None = None) -> pd.DataFrame:
    """Return a DataFrame with one row per run, in the order of table columns, then of table rows.

    The column `run` holds the `Run`, or None for a missing run. `score` is the test result by the rule `selection`, or
    by the rule in the run's recipe if `selection` is None; it is NaN if the run is not finished, or if this result is
    missing or not finite.

    Raises:
        UserError: if no run has a test result by the rule `selection`, or if runs of a cell or a column differ in
            settings that no table shows.
    """
    if selection and not any(selection in run.record.test for run in runs):
        raise UserError(f"--selection {selection}: no run below {folder} has this result; leave the option out")
    announced = {cell.folder: cell for cell in declared(folder).cells}
    rows = [_of_run(run, selection) for run in runs]
    for row in rows:
        published.add(row["attention"], row["variant"], row["run"].record.row)
    # a missing run gets a row without a score
    known = {(row["cell"], row["seed"]) for row in rows}
    rows += [_missing(cell, seed, selection) for cell in announced.values() for seed in cell.seeds
             if (cell.folder, seed) not in known]  # fmt: skip
    for row in rows:
        cell = announced.get(row["cell"])
        row |= {"declared": bool(cell), "reference": cell and cell.reference, "margin": cell and cell.margin}
        row["system"] = published.name(row["attention"], row["variant"], row["settings"])
    names = [*rows[0]]  # from a run that exists, since missing runs have fewer keys

    def place(row: dict[str, Any]) -> tuple:
        system = published.order(row["attention"], row["variant"], row["settings"])
        return row["protocol"], row["selection"], published.task_order(row["task"]), system, row["seed"]

    frame = pd.DataFrame(sorted(rows, key=place), columns=names)
    # in table order, so that of several tasks with the same short name the first in the table gets no number
    titles = short_names(sorted(frame.task.unique(), key=published.task_order), published.tasks)
    frame = frame.assign(short=frame.task.map(titles), majority_class=frame.pop("at_majority"))
    refuse_hidden_differences(frame)
    # a column is named by its task, and by protocol and selection rule if these vary between columns
    columns = [frame.short]
    if frame.protocol.nunique() > 1:
        columns.append(frame.protocol)
    if len(frame[["protocol", "selection"]].drop_duplicates()) > frame.protocol.nunique():
        columns.append(frame.selection)
    return frame.assign(column=[", ".join(parts) for parts in zip(*columns, strict=True)])


def settings_text(settings: Mapping[str, Any]) -> str:
    """Return the settings of a cell as `KEY=VALUE KEY=VALUE`, as tables show them."""
    # sorted, because runs are grouped by this text
    return printable(" ".join(f"{name}={value}" for name, value in sorted(settings.items())))


def _of_run(run: Run, selection: str | None) -> dict[str, Any]:
    record = run.record
    rule = selection or record.selection
    best, tested = record.validation.get("best"), record.test.get(rule)  # type: ignore[call-overload]
    score = record.score(rule) if record.status == "finished" else None
    status: str = record.status
    # a finished run without a test result by this rule, or with one that cannot be averaged, has no score
    if status == "finished" and (score is None or score > LARGEST or tested.not_finite):
        status, score = (f"without {rule}" if rule not in record.test else "not finite"), None
    seconds, reached = record.seconds.get("train"), record.reached
    if seconds is not None and record.pretrain:
        seconds += record.pretrain["seconds"].get("train", 0.0)  # pretraining is a cost of the result, too
    majority = record.baselines.get(MAJORITY) if status == "finished" and record.metric == "accuracy" else None
    return {
        "run": run,
        "cell": run.cell.as_posix(),
        "protocol": record.protocol,
        "selection": rule,
        "task": printable(record.task),
        "attention": printable(record.attention),
        "variant": printable(record.variant),
        "settings": settings_text(record.settings),
        "seed": record.seed,
        "metric": record.metric,
        "status": status,
        "score": score,
        **{f"test_{each}": record.score(each) for each in RULES},
        "best_val": getattr(best, record.metric, None),
        "best_val_step": best and best.step,
        "steps": record.steps or None,  # 0 if the run failed before its first step
        "ended": record.ended,
        "lr": record.config.get("train", {}).get("lr"),
        "goal": record.goal,
        "solved": record.solved if record.goal is not None else None,
        **{f"steps_to_{goal}": reached[goal].step if goal in reached else None for goal in ("50", "90", "99")},
        "train_seconds": seconds,
        "tokens_per_second": record.tokens_per_second,
        "parameters": record.parameters or None,
        "device": record.provenance.device,
        "commit": record.provenance.commit,
        "dirty": record.provenance.dirty,
        # True if the 95 % interval of the test accuracy is not entirely above the accuracy of the majority class
        "at_majority": majority is not None and not_above(tested.correct, tested.examples, majority),
    }


def _missing(cell: DeclaredCell, seed: int, selection: str | None) -> dict[str, Any]:
    return {
        **cell.model_dump(include={"protocol", "attention", "variant"}),
        "run": None,
        "cell": cell.folder,
        "selection": selection or cell.selection,
        "task": printable(cell.task_name),
        "settings": settings_text(cell.settings),
        "seed": seed,
        "status": "missing",
        "at_majority": False,
    }


def short_names(tasks: Iterable[str], titles: Mapping[str, str]) -> dict[str, str]:
    """Return a short name for each task, by task.

    The short name is the task's title in `titles`, else the title of the task without options with the suffix `-short`
    for another length or `-small` for other options, else the task's name without options. If several tasks would get
    the same name, the second gets `NAME-2`, the third `NAME-3`.
    """
    names: dict[str, str] = {}
    for task in tasks:
        base, _, note = task.partition(" (")
        suffix = "-short" if "length" in note else "-small" if note else ""
        name = titles.get(task) or (titles[base] + suffix if base in titles else base)
        candidates = (f"{name}-{number}" if number > 1 else name for number in count(1))
        names[task] = next(each for each in candidates if each not in names.values())
    return names


def present(frame: pd.DataFrame) -> list[Run]:
    """Return the runs in a DataFrame, without missing runs."""
    return [run for run in frame.run if run is not None]


@cache
def default_reference() -> tuple[str | None, float]:
    """Return the default reference system and margin, from `sweep` in conf/train.yaml."""
    sweep = read_yaml(conf_dir() / "train.yaml")["sweep"]
    return sweep["reference"], sweep["margin"]


def declared_reference(frame: pd.DataFrame) -> tuple[str | None, float]:
    """Return the reference and margin of a column's sweeps, or the defaults; raise UserError if the sweeps differ."""
    known = frame[["reference", "margin"]].dropna(subset="margin").drop_duplicates().values.tolist()
    pairs = [(name if isinstance(name, str) else None, margin) for name, margin in known] or [default_reference()]
    if len(pairs) > 1:
        words = " and ".join(sorted(f"{name or 'the default'} with margin {margin:g}" for name, margin in pairs))
        raise UserError(f"sweeps of one column have reference {words}: set sweep.reference and sweep.margin once")
    return pairs[0]


def refuse_hidden_differences(frame: pd.DataFrame) -> None:
    """Raise UserError if a table would pool or compare runs that differ in settings that the table does not show."""
    for _, cell in frame.groupby(CELL, sort=False):
        # a mean over both runs would count the seed twice
        if repeated := cell[cell.seed.duplicated(keep=False) & cell.run.notna()].run.tolist()[:2]:
            first, other = (run.name for run in repeated)
            raise UserError(f"{first} and {other} have the same seed of one cell; keep one of them")
    for shared, keys in (("a cell", CELL), ("a column", COLUMN)):
        for _, runs in frame.groupby(keys, sort=False):
            if fault := conflict(present(runs), shared):
                raise UserError(fault)


def conflict(runs: list[Run], shared: str) -> str:
    """Return a message if two runs differ in a setting that the table does not show, else an empty string.

    `shared` names what these runs share in the table: `a cell` or `a column`.
    """
    # runs are compared with the first one; runs without a digest of the data, which match any data, come last
    runs = sorted(runs, key=lambda run: run.record.provenance.data_sha256 is None)
    for run in runs[1:]:
        ignored = set(FREE)
        if shared == "a column":  # tables show `record.settings`, so cells of a column may differ in them
            ignored |= {f"config.{key}" for other in (runs[0], run) for key in other.record.settings}
        first, other = (_shared_values(each.record, shared) for each in (runs[0], run))
        for key, mine, theirs in record.differences(first, other):
            if key in ignored or (key == "data" and None in (mine, theirs)):
                continue
            fault = f"differ in {key}: {mine} and {theirs}"
            if key.startswith("config.code."):
                fault = f"were trained by different code: {key.removeprefix('config.code.')} was edited between them"
            return f"{runs[0].name} and {run.name} would share {shared} of the table but {fault}"
    return ""


def _shared_values(record: RunRecord, shared: str) -> dict[str, Any]:
    """Return values that all runs of `a cell` or `a column` must have in common; `conflict` ignores those in `FREE`."""
    config = without_paths(record.config)
    if shared == "a column":
        # runs notice the goal only when they evaluate, so the number of steps to it depends on `eval_every`
        keys = ["goal"] if record.goal is None else ["goal", "eval_every"]
        train = config.get("train", {})
        config = {"protocol": config.get("protocol"), "train": {key: train.get(key) for key in keys}}
    data = record.provenance.data_sha256
    return {"data": data, "task_version": record.task_version, "metric": record.metric, "config": config}
