"""One run in its folder: who holds it, what it leaves there, and in which processes it happens."""

import traceback
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lra.config.cell import Cell
from lra.config.settings import Settings
from lra.core import locks
from lra.core.console import Preparation, say
from lra.core.errors import UserError
from lra.core.files import explained, make_results_folder, sweep_partials, write_atomic, write_json
from lra.core.signals import Paused, Requests
from lra.data import Place, Task
from lra.records import checkpoint, provenance
from lra.records.names import CONFIG, ERRORS, LOCK, RECORD
from lra.records.outcome import recorded
from lra.records.record import RunRecord
from lra.runs.build import Job, assemble, check_memory
from lra.runs.loggers import LoggedRun, Loggers, loggers_of
from lra.runs.status import completed_record, skip_completed

if TYPE_CHECKING:
    from lra.training.distributed import Gate

LOCK_PATIENCE_SECONDS = 1.0  # who only looks whether a run is at work holds its lock for an instant


class AtWork(UserError):
    """Another process holds the run; the message says who."""


def run(job: Job) -> str:
    """One run, in its folder: finished, skipped (it was finished before), diverged or failed.

    It happens in this process, among the ranks that were started with it, or in new processes.
    """
    from lra.runs.device import assign_gpu, device_of
    from lra.training import distributed

    settings, processes = job.settings, job.system.recipe.processes
    check_memory(job.system)
    given = distributed.started_with()
    if given > 1 and processes not in (1, given):
        raise UserError(f"train.processes={processes}, but {given} processes were started: leave train.processes out")
    device = device_of(settings.device)
    runner = Runner(job, device)
    try:
        if given == 1 and (processes > 1 or settings.isolate):
            return runner.done() or _in_new_processes(job)
        with assign_gpu(device, job.number), distributed.joined(device), distributed.Gate() as gate:
            status = runner.lead(gate) if distributed.is_main() else runner.assist(gate)
            if status != "failed":  # where the ranks stand together, and the others may read what the leader has left
                distributed.all_reduce_sum(0)
            return status
    except OSError as error:
        raise explained(error, job.folder, None) from error


def _in_new_processes(job: Job) -> str:
    from lra.training import distributed

    apart = replace(job.settings, isolate=False)
    try:
        result = distributed.launch(job.system.recipe.processes, rank, apart, job.cell, job.title, job.number)
    except RuntimeError as error:
        say(f"{job.title}: failed: {error}; the same command goes on from the last checkpoint")
        return "failed"
    if isinstance(result, BaseException):
        raise result
    return result


def rank(settings: Settings, cell: Cell, title: str, number: int) -> str | UserError | Paused:
    """One rank of a run, in a process that `distributed.launch` started; what is no failure is returned."""
    from lra.training import distributed

    try:
        return run(Job(settings=settings, system=assemble(settings), cell=cell, title=title, number=number))
    except (UserError, Paused) as error:
        return error
    except Exception as error:
        if not isinstance(error, distributed.Lost):
            traceback.print_exc()
        raise


@dataclass(frozen=True)
class Runner:
    """Does a job on a device, and leaves in its folder what became of it."""

    job: Job
    device: str

    def done(self) -> str | None:
        """What became of the run, if it is complete."""
        earlier = completed_record(self.job.folder, self.job.settings)
        if earlier is None:
            return None
        status = skip_completed(self.job.title, self.job.folder, earlier, self.job.settings)
        return "skipped" if status == "finished" else status

    def lead(self, gate: "Gate") -> str:
        """The part of the process that writes."""
        if done := self.done():
            return done
        try:
            make_results_folder(self.job.folder)
            with locks.hold(self.job.folder / LOCK, LOCK_PATIENCE_SECONDS), self._requests() as requests:
                return self.done() or self._do(gate, requests)  # another process may have been faster
        except locks.Held as other:
            raise AtWork(f"at work elsewhere ({other})") from None

    def assist(self, gate: "Gate") -> str:
        """The part of the other ranks."""
        with self._requests() as requests:
            if not gate.wait():
                return "skipped"
            return self._train(self._task(), requests, Loggers({}, self._logged(), self.job.title))["status"]

    def _requests(self) -> Requests:
        from lra.training import distributed

        minutes = self.job.system.recipe.minutes
        return Requests(minutes, self.job.settings.sweep_minutes, distributed.started_with() > 1)

    def _task(self) -> Task:
        builder = self.job.system.builder
        with Preparation(builder.facts.name) as progress:
            return builder.build(Place.of(self.job.settings, progress))

    def _train(self, task: Task, requests: Requests, loggers: Loggers) -> dict[str, Any]:
        from lra.runs.execute import train_and_test

        return train_and_test(self.job, task, self.device, requests, loggers)

    def _do(self, gate: "Gate", requests: Requests) -> str:
        """Train, and write the record whatever comes of it."""
        job, started = self.job, provenance.now()
        requests.patiently(True)  # from here on a run that is stopped has a record that says so
        self._tidy()
        requests.patiently(False)
        data_digest, paused, backend = None, None, {}
        try:
            if asked := requests.heard():
                raise asked
            backend = job.system.backend(self.device)
            task = self._task()
            data_digest = task.digest
            gate.open()
            with Loggers(loggers_of(job.settings), self._logged(), job.title) as loggers:
                results = self._train(task, requests, loggers)
                if results["status"] == "finished":
                    loggers.tested(results["test"][job.system.recipe.selection])
        except UserError as error:
            self._leave(f"{error}\n")
            raise
        except Paused as pause:
            paused = pause
            results = {"status": "paused", "reason": str(pause)}
        except Exception as error:
            self._leave(traceback.format_exc())
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
        """Remove what an earlier attempt left, but for what this one goes on from; write the identity."""
        folder = self.job.folder
        sweep_partials(folder)
        earlier = recorded(folder)
        if earlier is not None and earlier.status == "diverged":
            checkpoint.remove(folder)
        write_json(folder / CONFIG, self.job.settings.identity)
        for name in (ERRORS, RECORD):
            (folder / name).unlink(missing_ok=True)

    def _leave(self, why: str) -> None:
        """Write the reason into the folder. Where the disk is full, the line in the terminal must do."""
        with suppress(UserError, OSError):
            write_atomic(self.job.folder / ERRORS, why.encode())

    def _logged(self) -> LoggedRun:
        """What a logger shows of the run."""
        cell, settings = self.job.cell, self.job.settings
        return LoggedRun(
            folder=self.job.folder,
            name=f"{cell} seed {settings.seed}",
            group=f"{Path(settings.out).name}/{cell.folder.as_posix()}",
            config=settings.identity,
        )
