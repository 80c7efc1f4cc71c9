"""Hyper-parameter search by other sweepers, as `hydra/sweeper=optuna`: its objective, and the best settings."""

from collections import defaultdict
from pathlib import Path
from statistics import fmean
from typing import Any

from omegaconf import DictConfig

from lra.cli.command import FAILED
from lra.config.cell import SWEEPER
from lra.core.console import say
from lra.core.errors import UserError
from lra.data import TaskBuilder
from lra.records.names import RECORD
from lra.records.record import RunRecord
from lra.records.runs import read_runs, recorded

Cell = tuple[str, str, str]
"""Task, attention and variant."""


def is_search(hydra_cfg: DictConfig) -> bool:
    """True if a sweeper other than ours starts the runs."""
    return hydra_cfg.runtime.choices.get("hydra/sweeper") != SWEEPER


def check(builder: TaskBuilder) -> None:
    """Raise UserError if the task validates on its test split: a search would select on it."""
    if getattr(builder, "validates_on_test", False):
        raise UserError(
            f"{builder.facts.name} validates on its test split, which a search must not use; "
            "set task.validation=holdout"
        )


def objective(folder: Path) -> float:
    """Return the best validation accuracy of a finished run in percent; of a language model the negative perplexity."""
    record = recorded(folder)
    if record is None:
        raise UserError(f"{folder}: no record of this run")
    return _value(record)


def _value(record: RunRecord) -> float:
    best = record.validation["best"]
    if record.metric == "accuracy":
        return best.accuracy
    return -best.perplexity if best.perplexity is not None else float("-inf")


def best_settings(out: Path) -> dict[Cell, list[tuple[float, int, dict[str, Any]]]]:
    """Rank the settings of each cell of a results folder by validation.

    Returns:
        by cell, the best first: (mean over seeds, number of seeds, settings that differ between the finished runs).
    """
    runs = read_runs(out) if any(out.rglob(RECORD)) else []
    finished = [run for run in runs if run.record.status == "finished"]
    values: dict[str, set[str]] = defaultdict(set)
    for run in finished:
        for key, value in run.record.settings.items():
            values[key].add(str(value))
    results: dict[Cell, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    settings: dict[str, dict[str, Any]] = {}
    for run in finished:
        record = run.record
        searched = {key: value for key, value in record.settings.items() if len(values[key]) > 1}
        settings[str(searched)] = searched
        results[_task(run.name), record.attention, record.variant][str(searched)].append(_value(record))
    return {
        cell: sorted(
            ((fmean(each), len(each), settings[text]) for text, each in by_settings.items()), key=lambda row: -row[0]
        )
        for cell, by_settings in sorted(results.items())
    }


def _task(name: str) -> str:
    """The option of `task=`: the first level of a run's path, up to the name of the user's data."""
    return Path(name).parts[0].partition("-")[0]


def conclude(out: Path) -> None:
    """Print the best settings of each system, and YAML lines for an option file.

    Raises:
        UserError: no run is finished.
        SystemExit: with exit code 1, after printing, if some runs failed.
    """
    best = best_settings(out) if out.is_dir() else {}
    if not best:
        raise UserError(f"{out}: no run of this search is finished")
    lines: dict[str, dict[str, dict[str, Any]]] = defaultdict(lambda: defaultdict(dict))
    say(f"best by validation in {out}:", to_stdout=True)
    for (task, attention, variant), rows in best.items():
        value, seeds, settings = rows[0]
        chosen = " ".join(f"{key}={setting}" for key, setting in settings.items())
        next_best = f", next {rows[1][0]:.2f}" if len(rows) > 1 else ""
        say(f"  {task} {attention}/{variant}  {chosen}  {value:.2f} (n={seeds}{next_best})", to_stdout=True)
        for key, setting in settings.items():
            lines[key][task].setdefault(attention, setting)
            if lines[key][task][attention] != setting:
                say(f"  # {attention}/{variant} differs: {key}={setting}", to_stdout=True)
    for key, by_task in lines.items():
        tasks = ", ".join(
            f"{task}:${{by_attention:{{{', '.join(f'{name}:{setting}' for name, setting in by_name.items())}}}}}"
            for task, by_name in by_task.items()
        )
        say(f"{key}: ${{by_task:{{{tasks}}}}}", to_stdout=True)
    if failed := [run.name for run in read_runs(out) if run.record.status == "failed"]:
        say(f"{len(failed)} runs failed: {', '.join(failed)}")
        raise SystemExit(FAILED)
