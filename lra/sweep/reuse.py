"""Reuse kept runs in a sweep instead of training them again, and refuse runs that conflict with earlier ones."""

import json
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path

from lra.config.cell import ROUNDING
from lra.core.console import plural, say
from lra.core.errors import UserError
from lra.core.files import digest
from lra.core.paths import CHECKOUT
from lra.records.names import RECORD, RUNS
from lra.records.record import Provenance, RunRecord
from lra.records.runs import Run, read_runs, unpack
from lra.runs.run_folder import RunFolder, Status, config_differences
from lra.sweep.plan import Plan, PlannedCell, PlannedRun


def reuse_kept_runs(plan: Plan) -> None:
    """Copy kept runs that equal planned ones into the results folder, so that the sweep does not train them again.

    Kept runs are read from the `runs.jsonl` of the folder `kept` and from that of the results folder. A kept run equals
    a planned one if configuration, code, task version and data are equal; the data are compared only if other runs of
    the plan will train on them.
    """
    by_data = defaultdict(list)
    for row in plan.rows:
        by_data[digest(row.settings.task)].append(row)
    kept = plan.rows[0].settings.kept
    sources = [(plan.out, "")]
    if kept is not None:  # presets name folders of the checkout, from which a sweep need not be started
        sources.append((Path(kept) if Path(kept, RUNS).exists() else CHECKOUT / kept, kept))
    for folder, name in sources:
        if not (folder / RUNS).exists():
            continue
        known = {run.name: run for run in read_runs(folder / RUNS)}
        reused, reasons = 0, Counter[str]()
        for rows in by_data.values():
            equal, others = _equal(plan, rows, known)
            for run, found in equal:
                # The record names the folder of its origin, which a footnote of the report shows.
                record = found.record.model_copy(update={"kept": name} if name else {})
                unpack(replace(found, record=record), run.folder)
            reused += len(equal)
            reasons += others
        if reused and name:
            say(f"{plural(reused, 'run')} reused from {name}; kept=null trains them again")
        for reason, count in reasons.items():
            say(f"{plural(count, 'kept run')} in {name or folder} not reused: {reason}")


def _equal(
    plan: Plan, rows: list[PlannedCell], known: dict[str, Run]
) -> tuple[list[tuple[PlannedRun, Run]], Counter[str]]:
    """Return pairs (planned run, equal kept run), and the number of kept runs that are not equal, by reason.

    The planned cells `rows` share their data. `known` has the kept runs by name. Runs that have started are left out.
    """
    runs = [run for row in rows for run in row.runs]
    sources = {run.settings.start.path.parent.resolve() for run in runs if run.settings.start is not None}
    pairs, reasons = [], Counter[str]()
    for run in runs:
        found = known.get(run.folder.relative_to(plan.out).as_posix())
        if found is None or RunFolder.of(run).is_claimed:
            continue
        record = found.record
        if run.folder.resolve() in sources or run.settings.lacks_weights:
            reason = "kept runs have no weights, but in this sweep a run starts from the weights of another"
        elif record.status not in (Status.FINISHED, Status.DIVERGED):
            reason = record.status
        else:
            labels = [(key, getattr(record, key), run.labels[key]) for key in ("task", "task_version", "selection")]
            changes = [f"{key}: {there} there, {here} now" for key, there, here in labels if there != here]
            reason = "; ".join([*changes, *config_differences(record.config, run.settings, ROUNDING)])
        if reason:
            reasons[reason] += 1
        else:
            pairs.append((run, found))
    equal = []
    for run, found in pairs:
        # Comparing data means preparing them, which takes time: do it only if some of these runs will train on them.
        if len(pairs) < len(runs) and plan.data_digest(rows[0]) != found.record.provenance.data_sha256:
            reasons[f"{found.record.task}: the data here differ, or are not prepared on this machine"] += 1
        else:
            equal.append((run, found))
    return equal, reasons


def refuse_conflicts(plan: Plan, to_do: list[tuple[PlannedCell, list[PlannedRun]]]) -> dict[Path, str]:
    """Return, by folder, the reason why the report could not pool a planned run with earlier runs of its cell.

    Args:
        to_do: cells of the plan, each with its runs to train.

    Raises:
        UserError: runs to train would share a column of the report with earlier runs, but cannot be compared with them.
    """
    from lra.reports.frame import COLUMN, conflict

    there = read_runs(plan.out) if any(plan.out.rglob(RECORD)) or (plan.out / RUNS).exists() else []
    names = {run.folder.relative_to(plan.out).as_posix() for _, runs in to_do for run in runs}
    refused: dict[Path, str] = {}
    columns: dict[tuple[str, ...], list[Run]] = defaultdict(list)
    for run in there:
        if run.name not in names:  # a run that this sweep will train is not an earlier run
            columns[tuple(getattr(run.record, key) for key in COLUMN)].append(run)
    for row, runs in to_do:
        if not runs or runs[0].settings.lacks_weights:
            continue
        # Records of earlier runs are compared with the record that the first run of this cell will have.
        record = RunRecord.model_construct(**runs[0].labels, config=json.loads(json.dumps(runs[0].settings.config_key)))
        first = Run(runs[0].folder.relative_to(plan.out).as_posix(), record)
        column = columns[tuple(getattr(record, key) for key in COLUMN)]
        if not column:
            continue
        # Ask for the digest only when there are runs to compare with, because `data_digest` prepares the data.
        record.provenance = Provenance.model_construct(data_sha256=plan.data_digest(row))
        if fault := conflict([*(run for run in column if run.cell == first.cell), first], "a cell"):
            reason = f"{fault}; delete the runs of {plan.out / first.cell}, or choose another out=..."
            refused |= {run.folder: reason for run in runs}
        elif fault := conflict([*column, first], "a column"):
            raise UserError(f"no report could be written: {fault}; choose another out=..., or delete the earlier runs")
    return refused
