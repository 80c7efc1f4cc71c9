"""Check a sweep of lra's own sweeper, launch its runs and write its report."""

import multiprocessing
import os
import signal
import warnings
from collections import Counter
from contextlib import nullcontext, suppress
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Any

from hydra.core.plugins import Plugins
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, read_write

from lra.config.compose import as_value
from lra.config.configure import first_line
from lra.core.console import plural, say
from lra.core.errors import CONFIG_ERROR, FAILED, UserError
from lra.core.files import holder
from lra.core.signals import PAUSED, Paused, StopFlag, keep_worker
from lra.records.names import LOCK
from lra.records.runs import declared
from lra.runs.build import check_attention
from lra.runs.loggers import log_finished
from lra.runs.run_folder import RunFolder, Status
from lra.runs.sweep_time import training_tokens
from lra.sweep.plan import Plan, PlannedRun, check_data, declare, planned
from lra.sweep.reuse import refuse_conflicts, reuse_kept_runs

ELSEWHERE = ("submitit_slurm", "ray")  # launchers whose jobs may run on other machines


class Forwarding(StopFlag):
    """Stop flag that passes a signal on to joblib's workers, which then save their runs.

    The parent waits for them: an exception in the parent would make joblib kill the workers.
    """

    def _set(self, number: int, frame: FrameType | None) -> None:
        super()._set(number, frame)
        warnings.filterwarnings("ignore", "A worker stopped while some jobs were given", UserWarning)  # of joblib
        for worker in multiprocessing.active_children():
            with suppress(ProcessLookupError):
                os.kill(worker.pid, signal.SIGTERM)  # type: ignore[arg-type]


def run(context: HydraContext, task: TaskFunction, config: DictConfig) -> None:
    """Plan, launch and report the sweep of a composed configuration, which includes Hydra's node.

    All cells are checked and listed in `sweep.json`; then the launcher gets the runs that remain to train. The
    outcomes of the runs are read from their folders, so they do not depend on the launcher.

    Raises:
        UserError: a mistake, found before the first run.
        SystemExit: at the end, if not all runs are finished.
    """
    _check_launch(config)
    plan = planned(config, context.config_loader)
    if plan.rows[0].settings.describe:
        from lra.runs.describe import print_summary

        for row in plan.rows:
            print_summary(row.runs[0], measured=False)  # one per cell, because its seeds have the same settings
        return
    _check_reference(plan)
    with read_write(config):
        config.out = str(plan.out)  # resolved once, so that all jobs and the launcher use the same folder
    reuse_kept_runs(plan)  # before the calls of `to_do`, which return False for reused runs
    to_do = [(row, [run for run in row.runs if run.to_do()]) for row in plan.rows]
    if _launcher(config) not in ELSEWHERE:  # other machines may have data that this one lacks
        waiting = [row for row, runs in to_do if runs]
        check_data(waiting)
        for row in waiting:
            check_attention(row.settings, row.components)
    refused = refuse_conflicts(plan, to_do)
    for reason in dict.fromkeys(refused.values()):
        say(f"lra-train: error: {reason}")
    to_do = [(row, [run for run in runs if run.folder not in refused]) for row, runs in to_do]
    declare(plan)  # after all checks, so that a refused sweep leaves no rows in the report
    tokens = sum(training_tokens(row.components) * len(runs) for row, runs in to_do)
    runs = [run for _, runs in to_do for run in runs]
    everything = [run for row in plan.rows for run in row.runs]
    for run in everything:  # loggers also show runs that need no training
        if run.settings.logger and RunFolder.of(run).status()[0] == Status.FINISHED:
            log_finished(run)
    say(f"{plural(len(everything), 'run')}, {len(runs)} to train, in {plan.out}")
    broken, code = "", 0
    try:
        if runs:
            _launch(context, task, config, plan, runs, tokens)
    except Paused as pause:
        say(pause.line)
        code = pause.code
    except Exception as error:  # from the launcher: joblib raises an exception when a worker is killed
        broken = f"{type(error).__name__}: {error}"
    _conclude(plan, refused, broken, code)


def _check_launch(config: DictConfig) -> None:
    """Raise UserError for `rerun=...`, a sweep under torchrun, or a launcher that is not installed."""
    from lra.training import distributed

    if config.rerun is not None:
        raise UserError(f"rerun={config.rerun}: one run at a time; omit --multirun")

    processes = distributed.started_with()
    if processes > 1:
        raise UserError(
            f"--multirun in each of {processes} processes would run the sweep {processes} times: start it once, "
            "without torchrun"
        )
    space, plugin, *_ = config.hydra.launcher._target_.split(".")
    if find_spec(space) is None or find_spec(f"{space}.{plugin}") is None:
        name = _launcher(config)
        raise UserError(f"hydra/launcher={name}: not installed; pip install hydra-{name.split('_')[0]}-launcher")


def _check_reference(plan: Plan) -> None:
    """Raise UserError if `sweep.reference` is not the name of a row of the report."""
    name = plan.rows[0].settings.sweep.reference
    if name is None:
        return
    from lra.reports.frame import settings_text
    from lra.reports.published import Published

    published = Published(plan.out)
    for row in plan.rows:
        published.add(row.cell.attention, row.cell.variant, row.components.row)
    cells: list[Any] = [*(row.cell for row in plan.rows), *declared(plan.out).cells]
    known = {
        published.name(cell.attention, cell.variant, settings)
        for cell in cells
        for settings in (settings_text(cell.settings), "")
    }
    if name not in known:
        raise UserError(f"sweep.reference={name}: expected a row of this sweep, one of {', '.join(sorted(known))}")


def _launcher(config: DictConfig) -> str:
    return config.hydra.runtime.choices["hydra/launcher"]


def _launch(
    context: HydraContext, task: TaskFunction, config: DictConfig, plan: Plan, runs: list[PlannedRun], tokens: int
) -> None:
    """Pass the runs to the launcher: one by one to `basic`, which trains them in this process, else all at once."""
    launcher = Plugins.instance().instantiate_launcher(hydra_context=context, task_function=task, config=config)
    shared = [
        f"sweep.varied=[{','.join(plan.varied)}]",
        f"sweep.jobs={len(runs)}",
        f"sweep.tokens={tokens}",
        f"out={as_value(str(plan.out))}",
    ]
    if _launcher(config) == "basic":
        # Several processes may share a sweep: skip the runs that another process trains, or has trained by now.
        waiting, number = list(runs), 0
        while free := next((run for run in waiting if holder(run.folder / LOCK) is None), None):
            waiting.remove(free)
            if free.to_do():
                [result] = launcher.launch([[*free.overrides, *shared]], initial_job_idx=number)
                _ = result.return_value  # raises the exception of a job that failed
                number += 1
        return
    # Launch all runs at once, because the other launchers have queues.
    flag, by_joblib = Forwarding(), _launcher(config) == "joblib"
    if by_joblib:
        launcher.joblib["initializer"] = keep_worker
    try:
        with flag if by_joblib else nullcontext():  # other launchers handle signals themselves
            results = launcher.launch([[*run.overrides, *shared] for run in runs], initial_job_idx=0)
    finally:
        if pause := flag.signalled():  # also instead of an exception that the signal caused in the launcher
            raise pause
    for result in results:
        _ = result.return_value


def _conclude(plan: Plan, refused: dict[Path, str], broken: str, code: int) -> None:
    """Print the outcomes of a sweep, write its report, and raise SystemExit if not all of its runs are finished.

    `refused` has the reason for each refused run, by folder; `broken` is an error of the launcher, or empty. `code` is
    not 0 if the sweep was stopped; waiting runs are then not listed.
    """
    from lra.reports import show, write_report  # here, because it imports pandas and statsmodels

    runs = [run for row in plan.rows for run in row.runs]
    outcomes = {run.folder: RunFolder.of(run).status() for run in runs}
    outcomes |= {folder: (Status.REFUSED, reason) for folder, reason in refused.items()}
    counts: Counter[str] = Counter(status for status, _ in outcomes.values())
    try:
        page = write_report(plan.out)
        show(page)
        say(f"report: {page}")
    except Exception as error:  # without a report, the outcomes of the runs are still printed
        say(f"lra-train: error: no report: {first_line(error)}")
        counts["no report"] = 1
    if broken:
        say(f"lra-train: the launcher failed: {broken.splitlines()[0]}")
    others = [f", {number} {status}" for status, number in sorted(counts.items()) if status != Status.FINISHED]
    say(f"{counts[Status.FINISHED]} of {len(outcomes)} runs finished{''.join(others)}")
    for folder, (status, reason) in outcomes.items():
        if status == Status.RUNNING:
            say(f"{folder}: another process trains it")
        elif status != Status.FINISHED and not (code and status == Status.WAITING):
            say(f"{folder}: {status}: {reason}{' (error.log has the traceback)' if status == Status.FAILED else ''}")
    code = code or exit_code({*counts} - {Status.FINISHED}) or (FAILED if broken else 0)
    if code:
        raise SystemExit(code)


def exit_code(bad: set[str]) -> int:
    """Return the exit code of a sweep, given the set `bad` of the statuses of its unfinished runs."""
    if bad & {Status.PAUSED, Status.RUNNING}:
        return PAUSED
    if bad <= {Status.REFUSED}:
        return CONFIG_ERROR if bad else 0
    return FAILED
