"""lra-train: one run, or a sweep of them; from a configuration to a record."""

if __name__ == "__main__":  # imported below as lra.train: what is in __main__, other processes could not import
    import sys

    from lra.__main__ import train

    sys.exit(train())

import json
import os
import traceback
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing import parent_process
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from lra import checkpoint, locks, record, sweep
from lra.children import end_with
from lra.command import FAILED, command
from lra.console import Preparation, say, without_bars
from lra.errors import UserError
from lra.files import explained, sweep_partials, write_atomic, write_json
from lra.loggers import Loggers
from lra.loggers import Run as Seen
from lra.outcome import complete, nothing_to_do, recorded
from lra.record import CONFIG, ERRORS, LOCK
from lra.settings import Cell, Settings, System, assemble, cell_of, check_memory, loggers_of, settings_of
from lra.signals import PAUSED, Paused, Requests
from lra.tasks import Place, Task

if TYPE_CHECKING:
    from lra.ranks import Gate

LOCK_PATIENCE_SECONDS = 1.0  # who only looks whether a run is at work holds its lock for an instant


class AtWork(UserError):
    """Another process holds the run; the message says who."""


def job(cfg: DictConfig) -> str:
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
        if alone and not settings.describe:
            sweep.check_cost_of_one(settings, run_folder(settings, cell))
        outcome = run(settings, cell, title, number)
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


def run_folder(settings: Settings, cell: Cell) -> Path:
    """Where the run lives."""
    return Path(settings.out) / cell.folder / f"seed{settings.seed}"


def run(settings: Settings, cell: Cell, title: str, number: int = 0) -> str:
    """One run, in its folder: finished, skipped (it was finished before), diverged or failed.

    It happens in this process, among the ranks that were started with it, or in new processes. `number`: of the job in
    its sweep; it chooses the GPU where there are several.
    """
    from lra import ranks
    from lra.run import describe, device_of, placed

    system = assemble(settings)
    folder = run_folder(settings, cell)
    if settings.describe:
        print(json.dumps({"run_folder": str(folder), **describe(system)}, indent=1))
        return "skipped"
    check_memory(system)
    processes, given = system.recipe.processes, ranks.started_with()
    if given > 1 and processes not in (1, given):
        raise UserError(f"train.processes={processes}, but {given} processes were started: leave train.processes out")
    device = device_of(settings.device)
    one = Run(folder=folder, settings=settings, system=system, cell=cell, title=title, device=device)
    try:
        if given == 1 and (processes > 1 or settings.isolate):
            return one.done() or _in_new_processes(processes, settings, cell, title, number)
        with placed(device, number), ranks.joined(device), ranks.Gate() as gate:
            return one.lead(gate) if ranks.leads() else one.assist(gate)
    except OSError as error:
        raise explained(error, folder, None) from error


def _in_new_processes(processes: int, settings: Settings, cell: Cell, title: str, number: int) -> str:
    from lra import ranks

    try:
        result = ranks.launch(processes, rank, replace(settings, isolate=False), cell, title, number)
    except RuntimeError as error:
        say(f"{title}: failed: {error}; the same command goes on from the last checkpoint")
        return "failed"
    if isinstance(result, BaseException):
        raise result
    return result


def rank(settings: Settings, cell: Cell, title: str, number: int) -> str | UserError | Paused:
    """One rank of a run, in a process that `ranks.launch` started; what is no failure is returned."""
    from lra import ranks

    try:
        return run(settings, cell, title, number)
    except (UserError, Paused) as error:
        return error
    except Exception as error:
        if not isinstance(error, ranks.Lost):
            traceback.print_exc()
        raise


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run and its folder."""

    folder: Path
    settings: Settings
    system: System
    cell: Cell
    title: str
    device: str

    def done(self) -> str | None:
        """What became of the run, if it is complete."""
        found = complete(self.folder, self.settings)
        if found is None:
            return None
        if found["status"] == "finished":
            checkpoint.remove(self.folder)
        say(nothing_to_do(self.title, self.folder, found["status"]))
        return "skipped" if found["status"] == "finished" else found["status"]

    def lead(self, gate: "Gate") -> str:
        """The part of the process that writes."""
        done = self.done()
        if done is not None:
            return done
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with locks.hold(self.folder / LOCK, LOCK_PATIENCE_SECONDS), self._requests() as requests:
                return self.done() or self._record(gate, requests)  # another process may have been faster
        except locks.Held as other:
            raise AtWork(f"at work elsewhere ({other})") from None

    def assist(self, gate: "Gate") -> str:
        """The part of the other ranks."""
        with self._requests() as requests:
            if not gate.wait():
                return "skipped"
            return self._train(self._task(), requests, Loggers({}, self._seen(), self.title))["status"]

    def _requests(self) -> Requests:
        from lra import ranks

        return Requests(self.system.recipe.minutes, self.settings.sweep_minutes, ranks.started_with() > 1)

    def _task(self) -> Task:
        with Preparation(self.system.builder.facts.name) as progress:
            return self.system.builder.build(Place.of(self.settings, progress))

    def _train(self, task: Task, requests: Requests, loggers: Loggers) -> dict[str, Any]:
        from lra.run import train_and_test

        return train_and_test(self.settings, self.system, task, self.folder, self.device, self.title, requests, loggers)

    def _record(self, gate: "Gate", requests: Requests) -> str:
        started = record.now()
        sweep_partials(self.folder)
        earlier = recorded(self.folder)
        if earlier is not None and earlier["status"] == "diverged":
            checkpoint.remove(self.folder)
        write_json(self.folder / CONFIG, self.settings.identity)
        for name in (ERRORS, record.NAME):  # of an earlier attempt
            (self.folder / name).unlink(missing_ok=True)
        labels = self._labels()
        data_digest, paused = None, None
        try:
            task = self._task()
            data_digest = task.digest
            labels["task"] = task.name
            gate.open()
            with Loggers(loggers_of(self.settings), self._seen(), self.title) as loggers:
                results = self._train(task, requests, loggers)
                if results["status"] == "finished":
                    loggers.tested(results["test"][self.system.recipe.selection])
        except UserError as error:
            self._leave(f"{error}\n")
            raise
        except Paused as pause:
            paused = pause
            results = {"status": "paused", "reason": str(pause)}
        except Exception as error:
            self._leave(traceback.format_exc())
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            say(f"{self.title}: failed: {reason} (traceback in {self.folder / ERRORS})")
            results = {"status": "failed", "reason": reason}
        identity, precision = self.settings.identity, self.settings.precision
        results["config"] = identity
        results["provenance"] = record.provenance(identity, data_digest, self.device, precision, started)
        record.write(self.folder, labels | results)
        if paused is not None:
            raise paused
        if results["status"] == "finished":
            checkpoint.remove(self.folder)
        return results["status"]

    def _leave(self, why: str) -> None:
        """In the folder; what the terminal says has to do where the disk is full."""
        with suppress(UserError, OSError):
            write_atomic(self.folder / ERRORS, why.encode())

    def _seen(self) -> Seen:
        """What a logger shows of the run."""
        names = [self.cell.task, self.cell.attention, self.cell.variant, self.cell.protocol]
        names += [f"{key}={value}" for key, value in self.cell.settings.items()]
        return Seen(folder=self.folder, group="-".join(names), seed=self.settings.seed, config=self.settings.identity)

    def _labels(self) -> dict[str, Any]:
        return {
            "task": self.system.builder.facts.name,
            "task_version": self.system.builder.facts.version,
            "attention": self.cell.attention,
            "variant": self.cell.variant,
            "protocol": self.cell.protocol,
            "settings": self.cell.settings,
            "seed": self.settings.seed,
            "selection": self.system.recipe.selection,
            "metric": self.system.builder.facts.metric,
        }


_start = command("train", sweep.run)(job)


def main() -> None:
    """A sweep ends with its outcomes and its report, also where it was stopped, between two runs too."""
    try:
        with Requests(None, None, one_of_many=False):
            _start()
    except Paused as pause:
        say(pause.line)
        sweep.conclude(code=pause.code)
        raise SystemExit(pause.code) from None
