"""Train one run of a sweep. A mistake or a failure is printed, so that the sweep can continue with other runs."""

from contextlib import suppress
from multiprocessing import parent_process
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from lra.config import rates
from lra.config.cell import is_planned
from lra.core.console import say, without_bars
from lra.core.errors import UserError
from lra.core.files import Locked, write_atomic
from lra.core.signals import Paused, worker_flag
from lra.records.names import ERRORS, seed_folder
from lra.runs.build import Job, assemble
from lra.runs.run_folder import RunFolder, Status
from lra.runs.settings import settings_of
from lra.sweep import search

_paused = False  # True in a joblib worker after a run has paused; the worker then starts no other run


def train(cfg: DictConfig) -> str | float:
    """Train the run of a configuration that a sweeper composed.

    Returns:
        The status of the run. In a search, the value to maximise, or -inf if the run is not finished.

    Raises:
        Paused: a signal or a time limit stopped a run that trains in the process of the sweep itself.
    """
    global _paused
    hydra_cfg = HydraConfig.get()
    searching, in_worker = not is_planned(hydra_cfg), parent_process() is not None
    launcher = hydra_cfg.runtime.choices["hydra/launcher"]
    in_driver = launcher == "basic" or (launcher == "joblib" and not in_worker)  # with n_jobs=1 joblib has no workers
    if not in_driver:
        without_bars()
    if _paused or worker_flag.signalled():  # return at once, because joblib cannot cancel queued runs
        return Status.WAITING
    cell, number = rates.apply(cfg, hydra_cfg), hydra_cfg.job.num
    title = f"[{number + 1}{'' if searching else f'/{cfg.sweep.jobs}'}] {cell} seed {cfg.seed}"
    try:
        settings = settings_of(cfg)
        job = Job(
            settings=settings, components=assemble(settings), cell=cell, title=title, number=number, search=searching
        )
        if searching:
            search.check(job)
        from lra.runs.run import run  # here, because it imports torch, which takes seconds

        outcome = run(job)
    except Locked as other:
        say(f"{title}: {other}")
        outcome = Status.RUNNING
    except UserError as error:
        say(f"{title}: error: {error}")
        with suppress(UserError):  # a full disk does not end the sweep, whose summary then lacks this message
            write_atomic(Path(cfg.out, cell.folder, seed_folder(cfg.seed), ERRORS), f"{error}\n".encode())
        outcome = Status.REFUSED
    except Paused as pause:
        pause.title = title
        if in_driver:  # this ends the sweep; workers and jobs on other machines return a status instead
            raise
        say(pause.line)
        _paused = in_worker
        outcome = Status.PAUSED
    if not searching:
        return outcome
    record = RunFolder.of(job).record if outcome in (Status.FINISHED, Status.SKIPPED) else None
    return float("-inf") if record is None else search.objective(record)
