"""Sweeps: planned, launched, and what is said at the end."""

import os
from collections import Counter
from contextlib import nullcontext, suppress
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from hydra._internal.callbacks import Callbacks
from hydra.core.global_hydra import GlobalHydra
from hydra.core.plugins import Plugins
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, read_write

from lra.cli.command import FAILED
from lra.cli.workers import saved_first
from lra.config.configure import first_line
from lra.core import locks
from lra.core.console import say
from lra.core.errors import CONFIG_ERROR, UserError, did_you_mean
from lra.core.signals import PAUSED
from lra.core.subprocesses import die_with_parent
from lra.records.names import LOCK, SWEEP
from lra.records.record import read_declared
from lra.report import show, write_report
from lra.report.frame import settings_text
from lra.report.published import Published, files
from lra.runs.budget import ELSEWHERE, check_cost
from lra.runs.build import check_attention, check_memory
from lra.runs.plan import Plan, PlannedRun, check_folders, declare, planned
from lra.runs.status import outcome

_current: list[Plan] = []


def run(config: DictConfig, task: TaskFunction) -> None:
    """The sweep of a composed configuration, which has Hydra's own part; `task` is Hydra's function for each run.

    All cells are declared and checked; then the runs that are to be done are given to the launcher. The outcomes are
    read from the runs' folders, so it does not matter which launcher started them, and where. Raises UserError before
    the first run where anything is wrong, and SystemExit at the end where not all runs are finished.
    """
    _check_launch(config)
    plan = planned(config)
    full = [str(row.cell) for row in plan.rows if row.system.full_pattern]
    if full:
        say(f"equal to full softmax attention at this length, where nothing is left out: {'; '.join(full)}")
    if plan.rows[0].settings.describe:
        with TemporaryDirectory() as elsewhere, read_write(config.hydra.sweep):
            config.hydra.sweep.dir = elsewhere  # a folder that Hydra makes
            runs = [run for row in plan.rows for run in row.runs]
            _launch(config, task, plan, runs, f"hydra.sweep.dir={elsewhere}")
        return
    for row in plan.rows:
        check_memory(row.system)
    check_folders(plan)
    _check_reference(plan)
    to_do = [(row, [run for run in row.runs if run.to_do()]) for row in plan.rows]
    if _launcher(config) not in ELSEWHERE:
        for row in [row for row, runs in to_do if runs]:
            check_attention(row.settings, row.system)
    check_cost(_launcher(config), [(row.settings, row.system, [run.folder for run in runs]) for row, runs in to_do])
    declare(plan.out, [row.declared for row in plan.rows])
    if option := locks.of_one_host(plan.out):
        say(f"{plan.out}: other machines do not see its locks (mount option {option}); give it to one at a time")
    _current[:] = [plan]
    broken = _launch_all(config, task, plan, [run for _, runs in to_do for run in runs])
    conclude(broken=broken)


def _check_reference(plan: Plan) -> None:
    """Raises UserError where `sweep.reference` is no row of the report: no row would be held against anything."""
    name = plan.rows[0].settings.sweep["reference"]
    if name is None:
        return
    published = Published(*files(plan.out, ()))
    cells = [row.declared for row in plan.rows]
    for row in plan.rows:
        published.add(row.declared["attention"], row.declared["variant"], row.system.row)
    with suppress(ValueError):  # `declare` reports what is wrong with it
        cells += read_declared(plan.out / SWEEP) if (plan.out / SWEEP).exists() else []
    known = {
        published.name(cell["attention"], cell["variant"], settings)
        for cell in cells
        for settings in (settings_text(cell["settings"]), "")
    }
    if name not in known:
        raise UserError(f"sweep.reference={name}: no row of this sweep is called so; {did_you_mean(name, known)}")


def _launcher(config: DictConfig) -> str:
    return config.hydra.runtime.choices["hydra/launcher"]


def _launch_all(config: DictConfig, task: TaskFunction, plan: Plan, runs: list[PlannedRun]) -> str:
    """Launch the runs; why the launcher gave up, if it did.

    joblib gives up, and kills its other workers, when one is killed: what none of them had begun is launched again.
    """

    def states() -> list[tuple[str, str]]:
        return [outcome(run.folder, run.settings) for run in runs]

    broken = ""
    while runs:
        before = states()
        try:
            _launch(config, task, plan, runs)
            break
        except Exception as error:
            broken = f"{type(error).__name__}: {error}"
        same = zip(runs, before, states(), strict=True)
        left = [run for run, old, new in same if old == new and new[0] not in ("finished", "killed")]
        if len(left) == len(runs):
            break
        runs = left
    return broken


def _launch(config: DictConfig, task: TaskFunction, plan: Plan, runs: list[PlannedRun], *overrides: str) -> None:
    """Let the launcher do the runs, with these overrides besides their own: all at once, or one by one where it works
    in this process."""
    context = HydraContext(config_loader=GlobalHydra.instance().config_loader(), callbacks=Callbacks())
    launcher = Plugins.instance().instantiate_launcher(hydra_context=context, task_function=task, config=config)
    shared = [f"sweep.varied=[{','.join(plan.varied)}]", f"sweep.jobs={len(runs)}", *overrides]
    if _launcher(config) == "basic" and not runs[0].settings.describe:
        _one_by_one(launcher, runs, shared)
        return
    workers = nullcontext()
    if _launcher(config) == "joblib":
        workers = saved_first([run.folder for run in runs], LOCK)
        # also before a worker has a run
        launcher.joblib |= {"initializer": die_with_parent, "initargs": (os.getpid(),)}
    with workers:
        results = launcher.launch([[*run.overrides, *shared] for run in runs], initial_job_idx=0)
    for result in results:
        _ = result.return_value  # raises what broke the job


def _one_by_one(launcher: Launcher, runs: list[PlannedRun], shared: list[str]) -> None:
    """Each time the first run that is not at work elsewhere, so that several processes share a sweep."""
    waiting, number = list(runs), 0
    while free := next((run for run in waiting if locks.holder(run.folder / LOCK) is None), None):
        waiting.remove(free)
        if not free.to_do():  # another process was faster
            continue
        [result] = launcher.launch([[*free.overrides, *shared]], initial_job_idx=number)
        _ = result.return_value
        number += 1


def conclude(broken: str = "", code: int = 0) -> None:
    """Report the sweep under way, if there is one, and raise SystemExit where not all of its runs are finished.

    `broken`: why its launcher gave up; `code`: with which it was stopped. Every run that is not finished gets one line,
    but for those that wait where the sweep was stopped.
    """
    if not _current:
        return
    plan = _current.pop()
    runs = [run for row in plan.rows for run in row.runs]
    outcomes = {run.folder: outcome(run.folder, run.settings) for run in runs}
    counts = Counter(status for status, _ in outcomes.values()) + _report(plan.out)
    if broken:
        say(f"lra-train: the launcher gave up: {broken.splitlines()[0]}")
    others = [f", {number} {status}" for status, number in sorted(counts.items()) if status != "finished"]
    say(f"{counts['finished']} of {len(outcomes)} runs finished{''.join(others)}")
    for folder, (status, reason) in outcomes.items():
        if status == "running":
            say(f"{folder}: at work elsewhere ({reason})")
        elif status != "finished" and not (code and status == "waiting"):
            say(f"{folder}: {status}: {reason}{' (error.log has the traceback)' if status == 'failed' else ''}")
    code = code or _exit_code({status for status in counts if status != "finished"}) or (FAILED if broken else 0)
    if code:
        raise SystemExit(code)


def _report(out: Path) -> Counter[str]:
    """Write and print the report; returns how often it went wrong, and in what way."""
    wrong: Counter[str] = Counter()
    faults: list[str] = []
    try:
        page = write_report(out, tell=faults.append)
        show(page)
        say(f"report: {page}")
    except Exception as error:  # whatever it is, the outcomes of the runs are still said
        say(f"lra-train: error: no report: {first_line(error)}")
        wrong["no report"] += 1
    for fault in faults:
        say(f"lra-train: error: {fault}; the report leaves it out")
        wrong["left out of the report"] += 1
    return wrong


def _exit_code(bad: set[str]) -> int:
    if bad & {"paused", "running"}:
        return PAUSED
    if bad <= {"refused"}:
        return CONFIG_ERROR if bad else 0
    return FAILED


def _check_launch(config: DictConfig) -> None:
    """Raises UserError where the sweep could not be started."""
    from lra.training import distributed

    if config.rerun is not None:
        raise UserError(f"rerun={config.rerun}: one run at a time, without --multirun")

    processes = distributed.started_with()
    if processes > 1:
        raise UserError(
            f"--multirun in each of {processes} processes would run the sweep {processes} times: start it once, "
            f"without torchrun or srun, with train.processes={processes}"
        )
    space, plugin, *_ = config.hydra.launcher._target_.split(".")
    if find_spec(space) is None or find_spec(f"{space}.{plugin}") is None:
        name = _launcher(config)
        raise UserError(f"hydra/launcher={name}: not installed; pip install hydra-{name.split('_')[0]}-launcher")
