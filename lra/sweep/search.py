"""Compute the objective and the best settings of a search by a sweeper other than lra's, such as Optuna's."""

import json
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from statistics import mean
from typing import Any

import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser

from lra.config.cell import names_a_cell, typed_keys
from lra.config.rates import SYSTEM, System
from lra.core.console import plural, say
from lra.core.errors import UserError
from lra.core.files import write_atomic
from lra.records.names import ERRORS, RECORD
from lra.records.record import RunRecord
from lra.records.runs import Run, read_runs
from lra.runs.build import Job
from lra.runs.run_folder import Status
from lra.sweep.launch import exit_code

BEST = "best.yaml"  # file in the results folder with the best settings of each system


def check(job: Job) -> None:
    """Raise UserError if the run would not train, or if the search would select on the test split of the task."""
    if job.settings.describe:
        raise UserError("describe=true: a search has to train; omit it, or describe one run")
    builder = job.components.builder
    if builder.validates_on_test:
        raise UserError(
            f"{builder.spec.name} validates on its test split, which a search must not use; set task.validation=holdout"
        )


def objective(record: RunRecord) -> float:
    """Return the value to maximise: the best validation accuracy in percent, or -perplexity for a language model."""
    best = record.validation["best"]
    if record.metric == "accuracy":
        return best.accuracy
    return -best.perplexity if best.perplexity is not None else float("-inf")


def best_settings(runs: list[Run], overrides: Iterable[str]) -> list[dict[str, Any]]:
    """Return the entries of best.yaml: for each system on each task, the settings with the best mean objective.

    Returns:
        Dictionaries with the keys `settings`, `validation` (mean objective), `n` (number of runs), and those in
        `SYSTEM`.
    """
    values: dict[str, set[str]] = {}
    for key in {key for run in runs for key in run.record.settings}:
        values[key] = {json.dumps(run.record.settings.get(key)) for run in runs}
    parsed = OverridesParser.create().parse_overrides(list(overrides))
    # A swept key belongs to the settings even if all finished trials have the same value.
    swept = typed_keys(override.input_line for override in parsed if override.is_sweep_override())
    searched = {*filter(names_a_cell, swept)} | {key for key in values if len(values[key]) > 1}
    found: dict[System, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        system = (Path(run.name).parts[0], *(getattr(run.record, name) for name in SYSTEM[1:]))
        settings = {key: value for key, value in run.record.settings.items() if key in searched}
        found[system][json.dumps(settings)].append(objective(run.record))
    rows = []
    for system, results in sorted(found.items()):
        chosen, best = max(results.items(), key=lambda item: mean(item[1]))
        row = dict(zip(SYSTEM, system, strict=True))
        rows.append({**row, "settings": json.loads(chosen), "validation": mean(best), "n": len(best)})
    return rows


def conclude(out: Path, overrides: Iterable[str]) -> None:
    """Print the best settings of each system on each task; list the runs that did not finish; write best.yaml.

    Raises:
        UserError: no run is finished.
        SystemExit: a run failed, was refused or is paused. A diverged run is a valid result of a search.
    """
    runs = read_runs(out) if any(out.rglob(RECORD)) else []
    names: dict[str, list[str]] = defaultdict(list)
    for run in runs:
        names[run.record.status].append(run.name)
    with_error = {path.parent.relative_to(out).as_posix() for path in out.rglob(ERRORS)}
    names[Status.REFUSED] = sorted(with_error - {*names[Status.FAILED]})
    if finished := [run for run in runs if run.record.status == Status.FINISHED]:
        import pandas as pd

        rows = best_settings(finished, overrides)
        table = pd.DataFrame([{**row, **row["settings"]} for row in rows])
        table = table[[*SYSTEM, *table.columns.difference([*SYSTEM, "settings", "validation", "n"]), "validation", "n"]]
        say(f"best by validation in {out}:", to_stdout=True)
        say(table.to_string(index=False, float_format="{:g}".format, na_rep="-"), to_stdout=True)
        path = out / BEST
        text = yaml.safe_dump(rows, default_flow_style=None, sort_keys=False, allow_unicode=True)
        write_atomic(path, f"# Best settings by validation; rates={path} applies them.\n{text}".encode())
        say(f"rates={path} trains each system with its best settings", to_stdout=True)
    for status in (Status.DIVERGED, Status.FAILED, Status.REFUSED, Status.PAUSED):
        if names[status]:
            say(f"{plural(len(names[status]), 'run')} {status}: {', '.join(names[status])}")
    if not finished:
        raise UserError(f"{out}: no run of this search is finished")
    if code := exit_code({status for status in names if names[status]} - {Status.FINISHED, Status.DIVERGED}):
        raise SystemExit(code)
