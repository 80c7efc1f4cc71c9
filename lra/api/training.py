"""One run from Python: the records, locks, checkpoints and messages of `lra-train`."""

from dataclasses import dataclass
from pathlib import Path

from omegaconf import DictConfig

from lra.api.configuration import Configuration, composed_command, preserved_sys_path, run_of
from lra.core.errors import UserError
from lra.core.signals import Paused
from lra.records.names import ERRORS
from lra.records.record import RunRecord
from lra.records.runs import NO_RECORD, recorded
from lra.runs.build import Job, assemble
from lra.runs.folder import AtWork
from lra.runs.folder import run as run_in_folder
from lra.runs.loggers import loggers_of


@dataclass(frozen=True)
class Trained:
    """A run that has ended: its folder and its record."""

    folder: Path
    record: RunRecord

    @property
    def status(self) -> str:
        """finished, diverged, or paused (`train.minutes` are over; the same call resumes)."""
        return self.record.status

    @property
    def metric(self) -> str:
        """Metric of the task: accuracy or perplexity."""
        return self.record.metric

    @property
    def score(self) -> float | None:
        """Test accuracy in percent, or perplexity, of the weights that the protocol selects; None if not finished."""
        return self.record.score(self.record.selection)


@preserved_sys_path()
def train(run: Configuration | str, *overrides: str) -> Trained:
    """Train a run, as `lra-train RUN OVERRIDES`. A finished run is not trained again; an interrupted one resumes.

    Args:
        run: the first override, or a configuration from `lra.compose`.
        overrides: as on the command line.

    Raises:
        UserError: a mistake, a failed run, or a run that another process trains.
        KeyboardInterrupt: a signal stopped it, with the state saved.
    """
    from lra.runs.device import restore_torch_state

    words = run.overrides if isinstance(run, Configuration) else (run,)
    with composed_command("train", (*words, *overrides)) as config, restore_torch_state():
        job = _job(config)
        try:
            status = run_in_folder(job)
        except AtWork as other:
            raise UserError(f"{job.title}: {other}") from None
        except Paused as pause:
            if not pause.alone:  # the process was asked to end
                raise KeyboardInterrupt(f"{job.title}: paused ({pause}); call it again to resume") from None
            status = "paused"
    record = recorded(job.folder)
    if status == "failed" or record is None:
        reason = record.reason if record else NO_RECORD
        raise UserError(f"{job.title}: failed: {reason} (traceback in {job.folder / ERRORS})")
    return Trained(job.folder, record)


def _job(config: DictConfig) -> Job:
    settings, cell = run_of(config)
    for key in ("describe", "rerun", "also", "sweep_minutes"):
        if value := getattr(settings, key):
            raise UserError(f"{key}={value}: lra.train does one run and returns it; leave {key} out")
    loggers_of(settings)
    return Job(settings=settings, system=assemble(settings), cell=cell, title=f"{cell} seed {settings.seed}")
