"""lra-train: one run, or a sweep of runs."""

from multiprocessing import parent_process
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.types import RunMode
from omegaconf import DictConfig

from lra.cli import search, sweep
from lra.cli.command import FAILED, command
from lra.config import rates
from lra.config.cell import cell_of, varied_keys
from lra.config.settings import Settings, settings_of
from lra.core.console import say, without_bars
from lra.core.errors import UserError
from lra.core.files import Held
from lra.core.signals import PAUSED, Paused, worker_flag
from lra.runs.build import Job, assemble
from lra.runs.loggers import loggers_of
from lra.runs.rerun import rerun
from lra.runs.run_folder import RunFolder, Status

RERUN = ("rerun", "out", "cache", "data_dir", "workers", "packages", "device", "init", "init.folder")
"""Keys that may accompany `rerun=...`: they decide no number."""
QUICK = "lra-train experiment=small_listops train.steps=800"

_paused = False  # in a worker of joblib: the sweep is being stopped


def train(cfg: DictConfig) -> str | float:
    """Hydra's task function: one run. In a sweep a mistake or a failure is printed and the other runs continue.

    Returns:
        the outcome; for the sweeper of a search, the best validation result, minus infinity if the run is not finished.
    """
    global _paused
    if cfg.rerun is not None:
        return _rerun(cfg)
    hydra_cfg = HydraConfig.get()
    alone, worker = hydra_cfg.mode == RunMode.RUN, parent_process() is not None
    searching = not alone and search.is_search(hydra_cfg)
    launcher = hydra_cfg.runtime.choices["hydra/launcher"]
    in_driver = launcher == "basic" or (launcher == "joblib" and not worker)  # with n_jobs=1 joblib has no workers
    if not alone and not in_driver:
        without_bars()
    if _paused or worker_flag.signalled():
        return Status.WAITING
    found = rates.apply(cfg, hydra_cfg)
    if alone:
        settings_of(cfg)  # its mistakes come before those of a sweep
    cell = cell_of(cfg, hydra_cfg, [*varied_keys(cfg, hydra_cfg), *found])
    number = 0 if alone else hydra_cfg.job.num
    title = f"{cell} seed {cfg.seed}"
    if not alone:
        title = f"[{number + 1}{'' if searching else f'/{cfg.sweep.jobs}'}] {title}"
    try:
        settings = settings_of(cfg)
        loggers_of(settings)
        system = assemble(settings)
        job = Job(settings=settings, system=system, cell=cell, title=title, number=number, search=searching)
        if alone:
            _check_alone(settings, hydra_cfg)
        elif searching:
            search.check(job.system.builder)
        if settings.describe:
            from lra.runs.describe import print_summary

            print_summary(job, measured=True)
            return "described"
        from lra.runs.run import run  # imports torch, as building the job did

        outcome = run(job)
    except Held as other:
        say(f"{title}: {other}")
        if alone:
            raise SystemExit(PAUSED) from None
        outcome = Status.RUNNING
    except UserError as error:
        if alone:
            raise
        say(f"{title}: error: {error}")
        outcome = Status.REFUSED
    except Paused as pause:
        pause.title = title
        if alone or in_driver:
            raise
        say(pause.line)
        _paused = worker
        outcome = Status.PAUSED
    if alone and outcome in (Status.FAILED, Status.DIVERGED):
        raise SystemExit(FAILED)
    if searching:
        finished = outcome in (Status.FINISHED, Status.SKIPPED)
        return search.objective(RunFolder.of(job).record) if finished else float("-inf")  # type: ignore[arg-type]
    return outcome


def _check_alone(settings: Settings, hydra_cfg: DictConfig) -> None:
    """Raise UserError for the command line of a single run that chooses nothing, or what only a sweep has."""
    if settings.also:
        raise UserError(f"also={settings.also}: only a sweep has further rows; leave it out, or add --multirun")
    if not hydra_cfg.overrides.task and hydra_cfg.job.config_name == "train":
        raise UserError(f"choose a task, an attention or an experiment, as in {QUICK} (20 seconds); lra lists them")


def _rerun(cfg: DictConfig) -> str:
    """Train a kept run again and compare the two bit by bit; exit code 1 if they differ."""
    parsed = OverridesParser.create().parse_overrides(list(HydraConfig.get().overrides.task))
    others = [override.input_line for override in parsed if override.key_or_group not in RERUN]
    if others:
        raise UserError(f"{others[0]}: not with rerun=...; the record sets everything except {', '.join(RERUN[1:])}")
    settings = settings_of(cfg)
    default_out = not any(override.key_or_group == "out" for override in parsed)
    try:
        equal = rerun(Path(settings.rerun), settings, default_out)  # type: ignore[arg-type]
    except (ValueError, OSError) as error:
        raise UserError(f"rerun={cfg.rerun}: {error}") from None
    if not equal:
        raise SystemExit(FAILED)
    return Status.FINISHED


_command = command("train", train)


def main() -> None:
    """Run the command; a stopped sweep prints its outcomes and its report, too."""
    try:
        _command()
    except Paused as pause:
        say(pause.line)
        sweep.conclude(code=pause.code)
        raise SystemExit(pause.code) from None
