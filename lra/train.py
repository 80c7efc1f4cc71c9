"""lra-train: one run, or a sweep of them; from a configuration to a record."""

import json
import sys
import traceback
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from lra import checkpoint, configure, record
from lra.console import Preparation, say
from lra.errors import UserError
from lra.files import explained, write_json
from lra.loggers import Loggers, Run
from lra.settings import CONFIG, Cell, Settings, System, assemble, cell_of, loggers_of, settings_of
from lra.signals import Paused, Requests
from lra.tasks import Place

ERRORS = "error.log"
INEXACT = ("precision", "train.micro_batch", "train.eval_batch")  # may change on the way with resume=inexact


def job(cfg: DictConfig) -> str:
    """Hydra's task function: one run. In a sweep a mistake or a failure is reported and the others go on."""
    alone = HydraConfig.get().mode == RunMode.RUN
    cell = cell_of(cfg, HydraConfig.get(), cfg.sweep.varied)
    title = f"{cell} seed {cfg.seed}"
    if not alone:
        title = f"[{HydraConfig.get().job.num + 1}/{cfg.sweep.jobs}] {title}"
    try:
        outcome = run(settings_of(cfg), cell, title)
    except UserError as error:
        if alone:
            raise
        say(f"{title}: error: {error}")
        return "refused"
    except Paused as pause:
        say(f"{title}: paused ({pause}); the same command goes on")
        raise SystemExit(pause.code) from None
    if alone and outcome in ("failed", "diverged"):
        raise SystemExit(configure.FAILED)
    return outcome


def run(settings: Settings, cell: Cell, title: str) -> str:
    """One run, in its folder: finished, skipped (it was finished before), diverged or failed."""
    system = assemble(settings)
    folder = Path(settings.out) / cell.folder / f"seed{settings.seed}"
    if settings.describe:
        from lra.run import describe

        print(json.dumps({"run_folder": str(folder), **describe(system)}, indent=1))
        return "skipped"
    try:
        done = finished(folder, settings)
        if done is None:
            folder.mkdir(parents=True, exist_ok=True)
            with (
                FileLock(folder / ".run.lock", timeout=1),  # lra-report --watch holds it for an instant
                Requests(system.recipe.minutes, settings.sweep_minutes) as requests,
            ):
                done = finished(folder, settings)  # another process may have come first
                if done is None:
                    return _run_in(folder, settings, system, cell, title, requests)
        if done["status"] == "finished":
            checkpoint.remove(folder)
    except Timeout:
        raise UserError(f"{folder}: another process is at work on this run") from None
    except OSError as error:
        raise explained(error, folder, 0) from error
    say(f"{title}: {done['status']} before, nothing to do ({folder})")
    return "skipped" if done["status"] == "finished" else done["status"]


def finished(folder: Path, settings: Settings) -> dict[str, Any] | None:
    """The record of this very run where it is complete; None where there is work to do.

    Raises UserError, with the difference, where the folder holds a run of another configuration.
    """
    if (folder / CONFIG).exists():
        try:
            earlier = json.loads((folder / CONFIG).read_text())
        except (ValueError, RecursionError) as error:
            raise UserError(f"{folder / CONFIG}: damaged: {error}; delete {folder} to train again") from None
        now = json.loads(json.dumps(settings.identity))
        differences = record.differences(earlier, now)
        changes = [f"{key}: {old} there, {new} now" for key, old, new in differences]
        inexact = settings.resume == "inexact" and all(key in INEXACT for key, *_ in differences)
        if changes and not inexact:
            raise UserError(
                f"{folder} holds a run with another configuration ({'; '.join(changes)}); "
                "choose another out=..., or delete that folder"
            )
    if not (folder / record.NAME).exists():
        return None
    try:
        found = record.read(folder / record.NAME)
    except ValueError as error:
        raise UserError(f"{error}; delete it to train again") from None
    return found if found["status"] in ("finished", "diverged") else None


def _run_in(folder: Path, settings: Settings, system: System, cell: Cell, title: str, requests: Requests) -> str:
    from lra.run import device_of, train_and_test

    started = record.now()
    write_json(folder / CONFIG, settings.identity)
    (folder / ERRORS).unlink(missing_ok=True)
    labels = {
        "task": system.builder.facts.name,
        "task_version": system.builder.facts.version,
        "attention": cell.attention,
        "variant": cell.variant,
        "protocol": cell.protocol,
        "settings": cell.settings,
        "seed": settings.seed,
        "selection": system.recipe.selection,
        "metric": system.builder.facts.metric,
    }
    device = device_of(settings.device)
    data_digest, paused = None, None
    try:
        with Preparation(system.builder.facts.name) as progress:
            task = system.builder.build(Place.of(settings, progress))
        data_digest = task.digest
        labels["task"] = task.name
        with Loggers(loggers_of(settings), _seen_as(settings, cell, folder), title) as loggers:
            results = train_and_test(settings, system, task, folder, device, title, requests, loggers)
            if results["status"] == "finished":
                loggers.tested(results["test"][system.recipe.selection])
    except UserError:
        raise
    except Paused as pause:
        paused = pause
        results = {"status": "paused", "reason": str(pause)}
    except Exception as error:
        (folder / ERRORS).write_text(traceback.format_exc())
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        say(f"{title}: failed: {reason} (traceback in {folder / ERRORS})")
        results = {"status": "failed", "reason": reason}
    results["config"] = settings.identity
    results["provenance"] = record.provenance(settings.identity, data_digest, device, settings.precision, started)
    record.write(folder, labels | results)
    if paused is not None:
        raise paused
    if results["status"] == "finished":
        checkpoint.remove(folder)
    return results["status"]


def _seen_as(settings: Settings, cell: Cell, folder: Path) -> Run:
    names = [cell.task, cell.attention, cell.variant, cell.protocol]
    names += [f"{key}={value}" for key, value in cell.settings.items()]
    return Run(folder=folder, group="-".join(names), seed=settings.seed, config=settings.identity)


main = configure.command("train")(job)

if __name__ == "__main__":
    sys.exit(main())
