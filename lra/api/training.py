"""`lra.compose` and `lra.train`: train one run from Python, with records, locks and messages as in `lra-train`."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from lra.config import rates
from lra.config.cell import Cell, open_keys
from lra.config.compose import compose as composed
from lra.config.compose import parseable
from lra.config.mistakes import explain, is_mistake
from lra.core.errors import UserError
from lra.core.signals import Paused
from lra.records.names import ERRORS
from lra.records.record import RunRecord
from lra.runs.build import Job, assemble, run_folder
from lra.runs.run_folder import NO_RECORD, RunFolder, Status
from lra.runs.settings import Settings, settings_of

_ONE_AT_A_TIME = threading.RLock()  # Hydra and PyTorch have process-wide settings, so threads take turns


@dataclass(frozen=True)
class Configuration:
    """The checked configuration of a run that has not started.

    Attributes:
        overrides: command line of the run.
        settings: values of all keys.
        folder: folder of the run.
    """

    overrides: tuple[str, ...]
    settings: Settings
    folder: Path

    def describe(self) -> dict[str, Any]:
        """Return, by name: number of parameters; learning rates as [step, rate]; tokens and FLOPs of one step.

        `lra-train describe=true` prints the same values, and also times a step.
        """
        from lra.runs.describe import describe

        return describe(assemble(self.settings))


@dataclass(frozen=True)
class Trained:
    """A run that has ended: its folder and its record."""

    folder: Path
    record: RunRecord

    @property
    def status(self) -> str:
        """Status of the run: finished or diverged."""
        return self.record.status

    @property
    def metric(self) -> str:
        """Metric of the task: accuracy or perplexity."""
        return self.record.metric

    @property
    def score(self) -> float | None:
        """Test accuracy in percent, or perplexity, of the weights that the protocol selects; None after divergence."""
        return self.record.score(self.record.selection)


def compose(*overrides: str) -> Configuration:
    """Return the checked configuration of the run `lra-train OVERRIDES`.

    If the overrides choose a preset that is a sweep, they must also choose one of its runs.

    Raises:
        UserError: a mistake; the message has the key, the expected and the found value.
    """
    with composed_command("train", overrides) as config:
        settings, cell = _run_of(config)
        return Configuration(overrides, settings, run_folder(settings, cell))


def train(run: Configuration | str, *overrides: str) -> Trained:
    """Train a run, as `lra-train RUN OVERRIDES` does, and return its folder and record.

    A finished run is not trained again; an interrupted one resumes.

    Args:
        run: the first override, or a configuration from `lra.compose`.
        overrides: as on the command line.

    Raises:
        UserError: a mistake in an override, a failed run, or a run that another process trains.
        KeyboardInterrupt: a signal stopped the run, whose state is saved.
    """
    words = run.overrides if isinstance(run, Configuration) else (run,)
    with composed_command("train", (*words, *overrides)) as config:
        settings, cell = _run_of(config)
        for key in ("describe", "rerun", "also", "sweep_minutes"):
            if value := getattr(settings, key):
                raise UserError(f"{key}={value}: lra.train trains one run and returns it; omit {key}")
        job = Job(settings=settings, components=assemble(settings), cell=cell, title=f"{cell} seed {settings.seed}")
        from lra.runs.run import run as run_in_folder  # here, because it imports torch, which takes seconds

        # KeyboardInterrupt, because notebooks and scripts handle it, and nobody expects `Paused`.
        try:
            status = run_in_folder(job)
        except Paused as pause:
            raise KeyboardInterrupt(f"{job.title}: paused ({pause}); call lra.train again to resume") from None
    record = RunFolder.of(job).record
    if status == Status.FAILED or record is None:
        reason = record.reason if record else NO_RECORD
        raise UserError(f"{job.title}: failed: {reason} (traceback in {job.folder / ERRORS})")
    return Trained(job.folder, record)


def _run_of(config: DictConfig) -> tuple[Settings, Cell]:
    """Return settings and cell of a run. Raises UserError if the preset is a sweep and no single run is selected."""
    cell, settings = rates.apply(config, config.hydra), settings_of(config)
    if swept := open_keys(config):
        keys = ", ".join(f"{key}=..." for key in swept)
        raise UserError(
            f"experiment={config.hydra.runtime.choices.experiment}: a sweep; choose one of its runs by {keys}"
        )
    return settings, cell


@contextmanager
def composed_command(command: str, overrides: Sequence[str]) -> Iterator[DictConfig]:
    """Context manager that composes the configuration of a command, including Hydra's node.

    Inside the `with` block Hydra's global configuration is that of the command; afterwards the earlier one is restored.

    Raises:
        UserError: a mistake in the overrides, or a UserError in the `with` block.
    """
    for override in overrides:
        if not isinstance(override, str):
            raise UserError(f"{override!r:.80}: expected a string such as 'task=listops'")
    words = parseable(list(overrides))
    with _ONE_AT_A_TIME:
        earlier = HydraConfig.instance().cfg  # not None if the caller runs under Hydra
        try:
            config = composed(command, *words)
            HydraConfig.instance().set_config(config)  # resolves ${hydra:...}
            yield config
        except Exception as error:
            if isinstance(error, UserError) or not is_mistake(error):
                raise
            raise UserError(explain(error, command, overrides)) from None
        finally:
            HydraConfig.instance().cfg = earlier
