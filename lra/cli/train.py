"""lra-train: one run, or a sweep of them; from a configuration to a record."""

import os
from multiprocessing import parent_process

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from lra.cli import sweep
from lra.cli.command import FAILED, command
from lra.config.cell import cell_of
from lra.config.settings import settings_of
from lra.core.children import end_with
from lra.core.console import say, without_bars
from lra.core.errors import UserError
from lra.core.signals import PAUSED, Paused, Requests
from lra.runs.budget import check_cost_of_one
from lra.runs.folder import AtWork, run
from lra.runs.job import Job
from lra.runs.loggers import loggers_of
from lra.runs.system import assemble


def train(cfg: DictConfig) -> str:
    """Hydra's task function: one run. In a sweep a mistake or a failure is reported and the others go on."""
    alone = HydraConfig.get().mode == RunMode.RUN
    in_driver = HydraConfig.get().runtime.choices["hydra/launcher"] == "basic"
    number = 0 if alone else HydraConfig.get().job.num
    if alone:
        settings_of(cfg)  # its mistakes come before those of what a sweep fills in
    elif not in_driver:
        without_bars()
        if parent_process() is not None:  # a worker of joblib's; with n_jobs=1 there is none
            end_with(os.getppid())
    cell = cell_of(cfg, HydraConfig.get(), cfg.sweep.varied)
    title = f"{cell} seed {cfg.seed}"
    if not alone:
        title = f"[{number + 1}/{cfg.sweep.jobs}] {title}"
    try:
        settings = settings_of(cfg)
        loggers_of(settings)
        job = Job(settings=settings, system=assemble(settings), cell=cell, title=title, number=number)
        if alone and not settings.describe:
            check_cost_of_one(job)
        outcome = run(job)
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


_command = command("train", sweep.run)(train)


def main() -> None:
    """A sweep ends with its outcomes and its report, also where it was stopped, between two runs too."""
    try:
        with Requests(None, None, one_of_many=False):
            _command()
    except Paused as pause:
        say(pause.line)
        sweep.conclude(code=pause.code)
        raise SystemExit(pause.code) from None
