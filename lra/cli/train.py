"""lra-train: one run, or a sweep of runs."""

from contextlib import nullcontext
from dataclasses import replace
from multiprocessing import parent_process
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.types import RunMode
from omegaconf import DictConfig

from lra.cli import search, sweep, workers
from lra.cli.command import FAILED, command
from lra.config.cell import Cell, cell_of, varied_keys
from lra.config.settings import settings_of
from lra.core.console import say, without_bars
from lra.core.errors import UserError
from lra.core.signals import PAUSED, Paused
from lra.runs.build import Job, assemble, run_folder
from lra.runs.folder import AtWork, run
from lra.runs.loggers import loggers_of
from lra.tools.rerun import rerun

RERUN = ("rerun", "out", "cache", "data_dir", "workers", "packages", "device", "init", "init.folder")
"""Keys that may accompany `rerun=...`: they decide no number."""
OF_A_REPORT = ("sweep.reference", "sweep.margin")
QUICK = "lra-train experiment=small_listops train.steps=800"
RERUNS = "reruns"  # default results folder of `rerun=...`


def train(cfg: DictConfig) -> str | float:
    """Hydra's task function: one run.

    Returns:
        the outcome; for the sweeper of a search, the best validation result, minus infinity if the run is not finished.
    """
    outcome = _train(cfg)
    hydra_cfg = HydraConfig.get()
    if hydra_cfg.mode == RunMode.RUN or not search.is_search(hydra_cfg):
        return outcome
    if outcome not in ("finished", "skipped"):
        return float("-inf")
    return search.objective(run_folder(settings_of(cfg), cell_of(cfg, hydra_cfg, varied_keys(cfg, hydra_cfg))))


def _train(cfg: DictConfig) -> str:
    """Do one run and return its outcome. In a sweep a mistake or a failure is printed and the other runs continue."""
    if cfg.rerun is not None:
        return _rerun(cfg)
    alone = HydraConfig.get().mode == RunMode.RUN
    launcher, worker = HydraConfig.get().runtime.choices["hydra/launcher"], parent_process() is not None
    in_driver = launcher == "basic" or (launcher == "joblib" and not worker)  # with n_jobs=1 joblib has no workers
    number = 0 if alone else HydraConfig.get().job.num
    searching = not alone and search.is_search(HydraConfig.get())
    if alone:
        settings_of(cfg)  # its mistakes come before those of a sweep
    elif not in_driver:
        without_bars()
        if worker and workers.told():
            return "waiting"
    cell = cell_of(cfg, HydraConfig.get(), varied_keys(cfg, HydraConfig.get()))
    title = f"{cell} seed {cfg.seed}"
    if not alone:
        title = f"[{number + 1}{'' if searching else f'/{cfg.sweep.jobs}'}] {title}"
    try:
        with workers.stoppable() if worker and not in_driver else nullcontext():
            outcome = _run_one_configuration(cfg, cell, title, number, alone=alone)
    except AtWork as other:
        say(f"{title}: {other}")
        if alone:
            raise SystemExit(PAUSED) from None
        return "running"
    except UserError as error:
        if alone:
            raise
        say(f"{title}: error: {error}")
        return "refused"
    except Paused as pause:
        pause.title = title
        if alone or (in_driver and not pause.alone):
            raise
        say(pause.line)
        return "paused"
    if alone and outcome in ("failed", "diverged"):
        raise SystemExit(FAILED)
    return outcome


def _run_one_configuration(cfg: DictConfig, cell: Cell, title: str, number: int, *, alone: bool) -> str:
    """Describe or train the run of a configuration and return its outcome. Raises UserError, AtWork, Paused."""
    settings = settings_of(cfg)
    loggers_of(settings)
    job = Job(settings=settings, system=assemble(settings), cell=cell, title=title, number=number)
    if alone:
        _refuse_idle(job)
    elif search.is_search(HydraConfig.get()):
        search.check(job.system.builder)
    if settings.describe:
        from lra.runs.describe import print_facts

        print_facts(job, measured=alone)
        return "described"
    if alone and not HydraConfig.get().overrides.task:
        raise UserError(f"choose a task, an attention or an experiment, as in {QUICK} (20 seconds); lra lists them")
    return run(job)


def _refuse_idle(job: Job) -> None:
    """Raise UserError for options on the command line that have no effect on a single run."""
    if job.settings.also:
        raise UserError(f"also={job.settings.also}: only a sweep has further rows; leave it out, or add --multirun")
    task = job.system.builder.facts
    for override in OverridesParser.create().parse_overrides(list(HydraConfig.get().overrides.task)):
        key = override.key_or_group
        if key in OF_A_REPORT:
            raise UserError(f"{key}: an option of the report of a sweep; leave it out, or add --multirun")
        if key.startswith("generate.") and task.objective != "next_token":
            raise UserError(f"{key}: for language models only; leave it out for {task.name}")


def _rerun(cfg: DictConfig) -> str:
    """Train a kept run again and compare the two bit by bit; exit code 1 if they differ."""
    parsed = OverridesParser.create().parse_overrides(list(HydraConfig.get().overrides.task))
    others = [override.input_line for override in parsed if override.key_or_group not in RERUN]
    if others:
        raise UserError(f"{others[0]}: not with rerun=...; the record sets everything except {', '.join(RERUN[1:])}")
    settings = settings_of(cfg)
    if not any(override.key_or_group == "out" for override in parsed):
        settings = replace(settings, out=RERUNS)
    try:
        verdict = rerun(Path(settings.rerun), settings)
    except (ValueError, OSError) as error:
        raise UserError(f"rerun={cfg.rerun}: {error}") from None
    if verdict.numbers and verdict.noise:
        say(f"{cfg.rerun}: {verdict.noise} ({verdict.folder})", to_stdout=True)
        return "finished"
    say(f"{cfg.rerun}: {'not ' if verdict.numbers else ''}equal to the last bit ({verdict.folder})", to_stdout=True)
    for line in [*verdict.numbers, *verdict.conditions]:
        say(f"  {line}", to_stdout=True)
    if verdict.numbers:
        raise SystemExit(FAILED)
    return "finished"


_command = command("train", train)


def main() -> None:
    """Run the command; a stopped sweep prints its outcomes and its report, too."""
    try:
        _command()
    except Paused as pause:
        say(pause.line)
        sweep.conclude(code=pause.code)
        raise SystemExit(pause.code) from None
