"""One run in its folder: what is there already, the lock, the record and errors."""

import json
import multiprocessing
import traceback
from collections.abc import Container, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lra.config import configure
from lra.config.cell import ROUNDING
from lra.config.settings import Settings
from lra.core.console import Parts, say
from lra.core.errors import UserError
from lra.core.files import explained, hold, read_json, sweep_partials, write_atomic, write_json
from lra.core.signals import Paused, StopFlag
from lra.data import Place, Task, TaskBuilder
from lra.records import checkpoint, provenance, record
from lra.records.names import CHECKPOINT, CONFIG, ERRORS, LOCK, RECORD
from lra.records.record import RunRecord, readable
from lra.records.runs import recorded, state
from lra.runs.build import Job
from lra.runs.loggers import Loggers, log_finished

if TYPE_CHECKING:  # torch takes seconds to import
    from lra.training.distributed import Gate

LOCK_PATIENCE_SECONDS = 1.0  # a process that looks at the state of a run holds its lock for an instant
INEXACT = ("precision", *ROUNDING)  # may change with resume=inexact


def completed_record(folder: Path, settings: Settings) -> RunRecord | None:
    """Return the record of a run that is finished or diverged, None if there is work to do.

    Raises:
        UserError: the folder holds a run of another configuration, which `overwrite` does not replace; the message
            lists the differences.
    """
    run, changes = _found(folder, settings)
    ended = run is not None and run.status in ("finished", "diverged")
    if changes and settings.overwrite:
        return None
    if changes:
        remedy = "overwrite=true replaces it, another out=... keeps it"
        if not ended and not _found(folder, replace(settings, resume="inexact"))[1]:
            remedy = f"resume=inexact resumes it, and the record says so; {remedy}"
        raise UserError(f"{folder} holds a run with another configuration ({'; '.join(changes)}); {remedy}")
    return run if ended else None


def _found(folder: Path, settings: Settings) -> tuple[RunRecord | None, list[str]]:
    """Return the record that a folder holds, if there is one, and what differs from `settings` there."""
    if not claimed(folder):
        return None, []
    run = recorded(folder)
    identity = _identity(folder) if run is None else run.config
    ended = run is not None and run.status in ("finished", "diverged")  # a mean pools runs that differ in rounding
    allowed = INEXACT if settings.resume == "inexact" else ROUNDING if ended else ()
    changes = [] if identity is None else identity_differences(identity, settings, allowed)
    if run is not None and run.status == "finished" and not changes:
        changes = _data_differences(run, settings)
    return run, changes


def claimed(folder: Path) -> bool:
    """True if a folder holds results or a state: a run claims it at its first step, not while it looks for data."""
    if (folder / CHECKPOINT).exists():
        return True
    run = recorded(folder)
    return run is not None and run.status != "failed"


def _identity(folder: Path) -> dict[str, Any] | None:
    """Return the identity of a run without a record, None if it never started."""
    path = folder / CONFIG
    with readable(path):
        return read_json(path) if path.exists() else None


def identity_differences(identity: Mapping[str, Any], settings: Settings, may_change: Container[str]) -> list[str]:
    """List the differences between an identity and settings, except in the keys that may change.

    Paths of data are left out, since their content is compared.
    """
    now = json.loads(json.dumps(settings.identity))
    sides = (configure.comparable(record.without_paths(config)) for config in (identity, now))
    changes = record.differences(*({"code": {}, **config} for config in sides))
    return [
        f"the code in {key.removeprefix('code.')} has changed"
        if key.startswith("code.")
        else f"{key}: {there} there, {here} now"
        for key, there, here in changes
        if key not in may_change
    ]


def _data_differences(run: RunRecord, settings: Settings) -> list[str]:
    """Compare the data of a finished run with those of settings, if they are the user's own."""
    if "code" not in settings.identity and record.without_paths(settings.identity)["task"] == settings.task:
        return []
    builder = configure.build(settings.task, "task", settings.packages, kind=TaskBuilder)()
    changed = prepared(builder, settings).digest != run.provenance.data_sha256
    return [f"the data of {run.task} have changed"] if changed else []


def prepared(builder: TaskBuilder, settings: Settings) -> Task:
    """Return the task of these settings, prepared if it was not."""
    with Parts(builder.facts.name, "preparing the data, once") as progress:
        return builder.build(Place.of(settings, progress))


def skip_completed(title: str, folder: Path, status: str) -> None:
    """Print that a complete run is left alone, and remove the checkpoint of a finished one."""
    if status == "finished":
        checkpoint.remove(folder)
    say(f"{title}: {status} before, nothing to do ({folder})")


def outcome(folder: Path, settings: Settings) -> tuple[str, str]:
    """Return the status of the run with these settings, and its reason, as `lra.records.runs.state` does."""
    try:
        completed_record(folder, settings)
        return state(folder)
    except UserError as error:
        return "refused", str(error)


def run(job: Job) -> str:
    """Train a run in its folder, as one rank of those that torchrun started.

    Returns:
        finished, skipped (finished before), diverged or failed.

    Raises:
        UserError: a mistake in the configuration or the data.
        Held: another process trains the run.
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
    try:
        assign_gpu(device, job.number)
        with distributed.joined(device), distributed.Gate() as gate:
            status = _lead(job, device, gate) if distributed.is_main() else _assist(job, device, gate)
            if status != "failed":  # rank 0 has written everything when the others leave
                distributed.all_reduce_sum(0)
            return status
    except OSError as error:
        raise explained(error, job.folder, written=False) from error


def _lead(job: Job, device: str, gate: "Gate") -> str:
    """Rank 0: hold the lock, train, write."""
    if done := _done(job):
        return done
    job.folder.mkdir(parents=True, exist_ok=True)
    with hold(job.folder / LOCK, LOCK_PATIENCE_SECONDS):
        return _done(job) or _train_and_record(job, device, gate)  # another process may have been faster


def _assist(job: Job, device: str, gate: "Gate") -> str:
    """Train as any other rank."""
    from lra.ops.products import using
    from lra.runs.execute import train_and_test
    from lra.training import distributed

    try:
        if not gate.wait():
            return "skipped"
        task = prepared(job.system.builder, job.settings)
        with using(conditions(job, device).get("products", "mkl")):
            return train_and_test(job, task, device, _stop_flag(job), Loggers())["status"]
    except distributed.Lost:  # the lost rank prints why
        return "failed"


def _done(job: Job) -> str | None:
    """Return the status of a run that is complete, None for one that is not."""
    earlier = completed_record(job.folder, job.settings)
    if earlier is None:
        return None
    skip_completed(job.title, job.folder, earlier.status)
    if earlier.status == "finished":
        log_finished(job)
    return "skipped" if earlier.status == "finished" else earlier.status


def _stop_flag(job: Job) -> StopFlag:
    from lra.training import distributed

    repeated = distributed.count() > 1 or multiprocessing.parent_process() is not None
    return StopFlag(job.settings.sweep_minutes, repeated=repeated)


def _train_and_record(job: Job, device: str, gate: "Gate") -> str:
    """Train, and write the record of whatever happens; then loggers end."""
    with Loggers(job) as loggers:
        return _recorded(job, device, gate, loggers)


def _recorded(job: Job, device: str, gate: "Gate", loggers: Loggers) -> str:
    """Train, and write the record of whatever happens."""
    from lra.ops.products import using
    from lra.runs.execute import train_and_test

    started, stop = provenance.now(), _stop_flag(job)
    _tidy(job)
    data_digest, backend = None, {}
    paused: Paused | None = None
    try:
        backend = conditions(job, device)
        task = prepared(job.system.builder, job.settings)
        data_digest = task.digest
        gate.open()
        with using(backend.get("products", "mkl")):
            results = train_and_test(job, task, device, stop, loggers)
            if results["status"] == "finished":
                loggers.tested(results["test"][job.system.recipe.selection], task.best_baseline)
    except UserError as error:
        _write_error(job, f"{error}\n")
        raise
    except Paused as pause:
        paused = pause
    except Exception as error:
        paused = stop.signalled()  # a signal to the process group also ends a compiler at work, for example
        if paused is None:
            _write_error(job, traceback.format_exc())
            reason = f"{type(error).__name__}: {configure.first_line(error)}"
            say(f"{job.title}: failed: {reason} (traceback in {job.folder / ERRORS})")
            results = {"status": "failed", "reason": reason}
    if paused is not None:
        results = {"status": "paused", "reason": str(paused)}
    identity = job.settings.identity
    results["config"] = identity
    results["provenance"] = backend | provenance.provenance(
        identity, data_digest, device, job.settings.precision, started
    )
    RunRecord.model_validate(job.labels | results).write(job.folder)
    if paused is not None:
        raise paused
    if results["status"] == "finished":
        checkpoint.remove(job.folder)
    return results["status"]


def conditions(job: Job, device: str) -> dict[str, str]:
    """Return the backend and the library of products for the record. Raises UserError if one cannot compute here.

    With `products=auto` a paused run keeps its library.
    """
    from lra.ops.products import choose

    if device != "cpu":
        return job.system.backend(device)
    asked = job.settings.products
    if asked == "auto" and (job.folder / CHECKPOINT).exists() and (saved := checkpoint.read(job.folder)):
        asked = saved[1]["run"]["environment"].get("products", "mkl")
    return {**job.system.backend(device), "products": choose(asked)}


def _tidy(job: Job) -> None:
    """Remove the record and the error of earlier attempts, and a run that is replaced; write the identity."""
    folder = job.folder
    sweep_partials(folder)
    if job.settings.overwrite and _found(folder, job.settings)[1]:
        for path in folder.iterdir():
            if path.is_file() and path.name != LOCK:
                path.unlink()
    write_json(folder / CONFIG, job.settings.identity)
    for name in (ERRORS, RECORD):
        (folder / name).unlink(missing_ok=True)


def _write_error(job: Job, text: str) -> None:
    """Write error.log; on a full disk the message in the terminal is all there is."""
    with suppress(UserError, OSError):
        write_atomic(job.folder / ERRORS, text.encode())
