"""Read and write the folder of a run: status, lock, record and checkpoint."""

import json
from collections.abc import Container, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from lra.config import configure
from lra.config.cell import ROUNDING
from lra.core.console import ProgressBar
from lra.core.errors import UserError
from lra.core.files import hold, holder, read_json, sweep_partials, write_atomic, write_json
from lra.datasets.builder import TaskBuilder
from lra.datasets.task import DataConfig, Task
from lra.records import checkpoint, record
from lra.records.names import CHECKPOINT, CONFIG, ERRORS, LOCK, RECORD
from lra.records.record import RunRecord, readable
from lra.runs.build import Job
from lra.runs.settings import Settings

if TYPE_CHECKING:  # torch takes seconds to import
    from lra.training.trainer import Trainer

LOCK_PATIENCE_SECONDS = 1.0  # maximum wait for the lock, which a process that reads the status holds for an instant
INEXACT = ("precision", *ROUNDING)  # configuration keys that may change with resume=inexact
NO_RECORD = "the process ended without a record: it was killed, perhaps for lack of memory"


class Status(StrEnum):
    """Status of a run; a record has one of finished, diverged, failed and paused."""

    WAITING = "waiting"
    RUNNING = "running"  # a process holds the lock of the run
    PAUSED = "paused"
    KILLED = "killed"  # its process ended without a record
    REFUSED = "refused"  # by a UserError: a mistake in the configuration or the data
    FAILED = "failed"
    DIVERGED = "diverged"
    FINISHED = "finished"
    SKIPPED = "skipped"  # the run had finished before this command


@dataclass(frozen=True)
class RunFolder:
    """Folder of the run that `settings` describe."""

    path: Path
    settings: Settings

    @classmethod
    def of(cls, job: Job) -> Self:
        """Return the run folder of a job."""
        return cls(job.folder, job.settings)

    @property
    def record(self) -> RunRecord | None:
        """Record of the run, or None if there is none. Raises UserError if it is damaged."""
        return RunRecord.read(self.path / RECORD) if (self.path / RECORD).exists() else None

    @property
    def is_done(self) -> bool:
        """True if the run is finished or diverged, so that nothing is left to train.

        Raises:
            UserError: the folder holds a run of another configuration, and `overwrite` is false; the message lists the
                differences.
        """
        run, changes = self._found(self.settings.resume)
        ended = run is not None and run.status in (Status.FINISHED, Status.DIVERGED)
        if changes and not self.settings.overwrite:
            remedy = "overwrite=true replaces it, another out=... keeps it"
            if not ended and not self._found("inexact")[1]:  # all differences are in keys of INEXACT
                remedy = f"resume=inexact resumes it, and the record says so; {remedy}"
            raise UserError(f"{self.path} holds a run with another configuration ({'; '.join(changes)}); {remedy}")
        return ended and not changes

    @property
    def is_claimed(self) -> bool:
        """True if the folder holds a checkpoint, or a record of a run that did not fail.

        A run of another configuration may use a folder that is not claimed.
        """
        if (self.path / CHECKPOINT).exists():
            return True
        run = self.record
        return run is not None and run.status != Status.FAILED

    def _found(self, resume: str) -> tuple[RunRecord | None, list[str]]:
        """Return the record, if any, and the differences between the run in the folder and `settings`.

        Return (None, []) if the folder is not claimed.
        """
        if not self.is_claimed:
            return None, []
        run, config = self.record, self.path / CONFIG
        with readable(config):
            there = run.config if run is not None else read_json(config) if config.exists() else None
        ended = run is not None and run.status in (Status.FINISHED, Status.DIVERGED)
        # Reports pool finished runs that differ in rounding, but a run that resumes must compute the same bits.
        allowed = INEXACT if resume == "inexact" else ROUNDING if ended else ()
        changes = [] if there is None else config_differences(there, self.settings, allowed)
        if run is not None and run.status == Status.FINISHED and not changes:
            # Compare the data of finished runs only: `resume` compares those of a paused run. They can differ only if
            # they come from files or code of the user, so a sweep over lra's own tasks prepares no data here.
            key = self.settings.config_key
            if "code" in key or record.without_paths(key)["task"] != self.settings.task:
                builder = configure.build(self.settings.task, "task", kind=TaskBuilder)()
                if prepared(builder, self.settings).digest != run.provenance.data_sha256:
                    changes = [f"the data of {run.task} have changed"]
        return run, changes

    def status(self) -> tuple[Status, str]:
        """Return the status of the run and its reason, which for RUNNING says that another process uses the folder."""
        try:
            run = self.record
            # A complete run is not locked. `is_done` raises if the folder holds another configuration.
            if not self.is_done and (other := holder(self.path / LOCK)) is not None:
                return Status.RUNNING, other
        except UserError as error:
            return Status.REFUSED, str(error)
        if run is not None:
            return Status(run.status), run.reason
        if (self.path / ERRORS).exists():
            return Status.REFUSED, (self.path / ERRORS).read_text(encoding="utf-8").strip()
        if (self.path / CONFIG).exists():
            return Status.KILLED, NO_RECORD
        return Status.WAITING, "it never started"

    def lock(self) -> AbstractContextManager[None]:
        """Return a context manager that holds the lock of the run. Raises Locked if another process holds it."""
        self.path.mkdir(parents=True, exist_ok=True)
        return hold(self.path / LOCK, LOCK_PATIENCE_SECONDS)

    def clear(self) -> None:
        """Write config.json, and remove the record and error.log.

        If `overwrite` replaces a run of another configuration, all its files but the lock are removed first.
        """
        sweep_partials(self.path)  # under the lock, so no other process is writing them
        if self.settings.overwrite and self._found(self.settings.resume)[1]:
            for path in self.path.iterdir():
                if path.is_file() and path.name != LOCK:  # this process holds the lock
                    path.unlink()
        # Written before the record is removed, so that a kill in between leaves a folder with a status.
        write_json(self.path / CONFIG, self.settings.config_key)
        for name in (ERRORS, RECORD):
            (self.path / name).unlink(missing_ok=True)

    def write_error(self, text: str) -> None:
        """Write error.log; do nothing if that fails, as on a full disk, since the terminal shows the error, too."""
        with suppress(UserError, OSError):
            write_atomic(self.path / ERRORS, text.encode())

    def resume(self, trainer: "Trainer") -> bool:
        """Load the checkpoint into a trainer and return True; return False if there is no checkpoint.

        Raises:
            UserError: the checkpoint is damaged, belongs to another run, or was written with other data or, unless
                `resume=inexact`, under other conditions.
        """
        saved = checkpoint.read(self.path)
        if saved is None:
            return False
        tensors, state = saved
        earlier, now = state["run"], trainer.output.run
        if others := config_differences(earlier["config"], self.settings, INEXACT):
            raise UserError(
                f"{self.path / CHECKPOINT} belongs to another run ({'; '.join(others)}); {checkpoint.REMEDY}"
            )
        changes = record.differences(earlier["environment"], now["environment"])
        conditions = [f"{key}: {old}, then {new}" for key, old, new in changes]
        if earlier["environment"]["data_sha256"] != now["environment"]["data_sha256"]:
            raise UserError(f"{self.path} was paused on other data ({'; '.join(conditions)}); choose another out=...")
        if conditions and self.settings.resume != "inexact":
            raise UserError(
                f"{self.path} was paused under other conditions ({'; '.join(conditions)}); resume=inexact resumes it, "
                "and the record says so"
            )
        trainer.load_state_dict(tensors, state["training"])
        trainer.resumes += 1  # after the state is loaded, which has the number of earlier resumes
        # Later checkpoints and the record contain these entries: a run that resumed inexactly once stays inexact.
        now |= {"inexact": earlier["inexact"] + conditions, "pretrain": earlier["pretrain"]}
        return True


def config_differences(config: Mapping[str, Any], settings: Settings, may_change: Container[str]) -> list[str]:
    """List the differences between a run's recorded `config` and `settings`, except in the keys `may_change`."""
    now = json.loads(json.dumps(settings.config_key))  # as in a record, where tuples are lists
    # Leave out paths, because data may have moved; callers compare their digests. Only runs with the user's code have
    # `code`.
    there, here = ({"code": {}, **record.without_paths(each)} for each in (config, now))
    return [
        f"the code in {key.removeprefix('code.')} has changed"
        if key.startswith("code.")
        else f"{key}: {there} there, {here} now"
        for key, there, here in record.differences(there, here)
        if key not in may_change
    ]


def prepared(builder: TaskBuilder, settings: Any) -> Task:
    """Return the data of a task, and prepare them first if the cache lacks them.

    `settings` has the keys `cache`, `data_dir` and `workers`.
    """
    with ProgressBar(builder.spec.name, "preparing the data, once") as progress:
        return builder.build(DataConfig.of(settings, progress))
