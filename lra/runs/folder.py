"""One run in its folder: lock, record and errors."""

import multiprocessing
import traceback
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lra.core import locks
from lra.core.console import Preparation, say
from lra.core.errors import UserError
from lra.core.files import explained, make_results_folder, sweep_partials, write_atomic, write_json
from lra.core.signals import Paused, StopFlag
from lra.data import Place, Task
from lra.records import checkpoint, provenance
from lra.records.names import CONFIG, ERRORS, LOCK, RECORD
from lra.records.record import RunRecord
from lra.records.runs import recorded
from lra.runs.build import Job
from lra.runs.loggers import LoggedRun, Loggers, loggers_of
from lra.runs.status import completed_record, skip_completed

if TYPE_CHECKING:
    from lra.training.distributed import Gate

LOCK_PATIENCE_SECONDS = 1.0  # a process that looks at the state of a run holds its lock for an instant


class AtWork(UserError):
    """Another process trains the run."""


def run(job: Job) -> str:
    """Train a run in its folder, as one rank of those that torchrun started.

    Returns:
        finished, skipped (it was finished before), diverged or failed.

    Raises:
        UserError: a mistake in the configuration or the data.
        AtWork: another process trains the run.
        Paused: a signal or a time limit stopped it, with its state saved.
    """
    from lra.runs.device import assign_gpu, device_of
    from lra.training import distributed

    ranks, recipe = distributed.started_with(), job.system.recipe
    most = 1 if job.settings.model["norm_over"] == "batch" else recipe.batch_size
    if ranks > most:
        raise UserError(
            f"torchrun started {ranks} processes: at most {most} can share a batch of train.batch_size="
            f"{recipe.batch_size} with model.norm_over={job.settings.model['norm_over']}"
        )
    device = device_of(job.settings.device)
    runner = Runner(job, device)
    try:
        with assign_gpu(device, job.number), distributed.joined(device), distributed.Gate() as gate:
            status = runner.lead(gate) if distributed.is_main() else runner.assist(gate)
            if status != "failed":  # rank 0 has written everything when the others leave
                distributed.all_reduce_sum(0)
            return status
    except OSError as error:
        raise explained(error, job.folder, None) from error


@dataclass(frozen=True)
class Runner:
    """Trains a job on a device and writes its outcome into its folder."""

    job: Job
    device: str

    def lead(self, gate: "Gate") -> str:
        """Rank 0: hold the lock, train, write."""
        if done := self._done():
            return done
        try:
            make_results_folder(self.job.folder)
            with locks.hold(self.job.folder / LOCK, LOCK_PATIENCE_SECONDS):
                return self._done() or self._train_and_record(gate)  # another process may have been faster
        except locks.Held as held:
            raise AtWork(f"{held}, so it trains this run") from None

    def assist(self, gate: "Gate") -> str:
        """Train as any other rank."""
        from lra.training import distributed

        try:
            if not gate.wait():
                return "skipped"
            return self._train(self._task(), Loggers({}, self._logged()))["status"]
        except distributed.Lost:  # the lost rank prints why
            return "failed"

    def _done(self) -> str | None:
        """The status of a run that is complete, None for one that is not."""
        earlier = completed_record(self.job.folder, self.job.settings)
        if earlier is None:
            return None
        status = skip_completed(self.job.title, self.job.folder, earlier, self.job.settings)
        return "skipped" if status == "finished" else status

    def _task(self) -> Task:
        builder = self.job.system.builder
        with Preparation(builder.facts.name) as progress:
            return builder.build(Place.of(self.job.settings, progress))

    def _train(self, task: Task, loggers: Loggers) -> dict[str, Any]:
        from lra.runs.execute import train_and_test
        from lra.training import distributed

        settings = self.job.settings
        repeated = distributed.count() > 1 or multiprocessing.parent_process() is not None
        stop = StopFlag(self.job.system.recipe.minutes, settings.sweep_minutes, repeated=repeated)
        return train_and_test(self.job, task, self.device, stop, loggers)

    def _train_and_record(self, gate: "Gate") -> str:
        """Train, and write the record of whatever happens."""
        job, started = self.job, provenance.now()
        self._tidy()
        data_digest, backend = None, {}
        paused: Paused | None = None
        try:
            backend = job.system.backend(self.device)
            task = self._task()
            data_digest = task.digest
            gate.open()
            with Loggers(loggers_of(job.settings), self._logged()) as loggers:
                results = self._train(task, loggers)
                if results["status"] == "finished":
                    loggers.tested(results["test"][job.system.recipe.selection])
        except UserError as error:
            self._write_error(f"{error}\n")
            raise
        except Paused as pause:
            paused = pause
            results = {"status": "paused", "reason": str(pause)}
        except Exception as error:
            self._write_error(traceback.format_exc())
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            say(f"{job.title}: failed: {reason} (traceback in {job.folder / ERRORS})")
            results = {"status": "failed", "reason": reason}
        identity = job.settings.identity
        results["config"] = identity
        results["provenance"] = backend | provenance.provenance(
            identity, data_digest, self.device, job.settings.precision, started
        )
        RunRecord.model_validate(job.labels | results).write(job.folder)
        if paused is not None:
            raise paused
        if results["status"] == "finished":
            checkpoint.remove(job.folder)
        return results["status"]

    def _tidy(self) -> None:
        """Remove files of earlier attempts, except those that the run resumes from; write its identity."""
        folder = self.job.folder
        sweep_partials(folder)
        earlier = recorded(folder)
        if earlier is not None and earlier.status == "diverged":
            checkpoint.remove(folder)
        write_json(folder / CONFIG, self.job.settings.identity)
        for name in (ERRORS, RECORD):
            (folder / name).unlink(missing_ok=True)

    def _write_error(self, text: str) -> None:
        """Write error.log; on a full disk the message in the terminal is all there is."""
        with suppress(UserError, OSError):
            write_atomic(self.job.folder / ERRORS, text.encode())

    def _logged(self) -> LoggedRun:
        cell, settings = self.job.cell, self.job.settings
        return LoggedRun(
            folder=self.job.folder,
            name=f"{cell} seed {settings.seed}",
            group=str(cell),
            config=settings.identity,
        )
