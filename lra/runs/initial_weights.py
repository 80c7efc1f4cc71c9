"""Set the initial weights of a run: random, from a file, or from a pretraining that several runs share.

A pretraining is computed once, in a folder of the cache, under a lock. The folder is named by a digest of everything
that determines the weights: the settings of the pretraining, the data and the environment.
"""

import json
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, replace
from typing import Any

import torch

from lra.core import files, streams
from lra.core.console import say
from lra.core.files import digest, sweep_partials, write_atomic
from lra.core.signals import StopFlag
from lra.datasets.task import Task, TaskSpec
from lra.init import Checkpoint
from lra.network.model import Model
from lra.ops import products
from lra.records import checkpoint, provenance, record, tensors
from lra.records.names import LOCK, METRICS, RECORD, WEIGHTS
from lra.runs.build import Components, Job, PretrainingPhase
from lra.runs.run_folder import RunFolder, Status
from lra.runs.sweep_time import SweepTime
from lra.training import distributed
from lra.training.optimizer import Diverged
from lra.training.recipe import Pretrain, carried
from lra.training.trainer import Output, Trainer

KEPT = ("digest", "steps", "validation", "seconds", "tokens")  # entries copied from a pretraining's record to the run's
TAKEN = ["embedding", "mixer", "feed_forward", "norms"]  # groups of pretrained weights to load, all but the head


def draw_model(components: Components, spec: TaskSpec, seed: int) -> Model:
    """Return a model with random initial weights, drawn on the CPU so that they are equal on every device."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(int(streams.key(seed, "init")[0] >> 1))
        return components.model(spec)


def trainer_of(
    job: Job, task: Task, model: Model, device: str, log: Callable[[dict[str, Any]], None] = lambda _: None
) -> Trainer:
    """Return the trainer of a job at its first step; `log` receives the lines of `metrics.jsonl`."""
    settings, recipe = job.settings, job.settings.train
    environment = {  # a change of any of these prevents resuming; with resume=inexact, only a change of the data does
        **provenance.environment(task.digest, device),
        "processes": distributed.count(),
        "precision": settings.precision,
        **job.components.backend(device),
        **products.entry(device),
        "micro_batch": recipe.micro_batch,
        "eval_batch": recipe.eval_batch,
    }
    output = Output(
        folder=job.folder,
        title=job.title,
        checkpoints=settings.checkpoint,
        run={"config": settings.config_key, "environment": environment, "inexact": [], "pretrain": None},
        log=log,
    )
    return Trainer(
        model, task, recipe, seed=settings.seed, precision=settings.precision, probe=settings.probe, output=output
    )


def training_summary(trainer: Trainer) -> dict[str, Any]:
    """Return the record's entries about a training and the pretraining before it."""
    run, train = trainer.output.run, trainer.seconds["train"]
    summary = {
        "steps": trainer.step,
        **trainer.stopping.entries(),
        "processes": distributed.count(),
        "validation": {"best": trainer.best, "last": trainer.last} if trainer.best else {},
        "seconds": trainer.seconds,
        "tokens": asdict(trainer.tokens),
        "tokens_per_second": trainer.tokens.computed / train if train else None,
        "resumes": trainer.resumes,
    }
    if run["pretrain"] is not None:
        summary["pretrain"] = run["pretrain"]
        summary["seconds"] = {**trainer.seconds, "pretrain": sum(run["pretrain"]["seconds"].values())}
    if run["inexact"]:
        summary["inexact"] = run["inexact"]
    return summary


def pretrain(job: Job, phase: PretrainingPhase, trainer: Trainer, device: str, stop: StopFlag) -> None:
    """Load a run's pretrained weights, their record entry and their lines of `metrics.jsonl` into its trainer.

    The first run that needs a pretraining computes it.

    Raises:
        Paused: a signal or a limit stopped the pretraining; its state is saved.
        Diverged: the pretraining diverged.
    """
    task, seed = trainer.task, phase.settings.seed
    conditions = {**provenance.environment(task.digest, device), "processes": distributed.count()}
    if products.entry(device) == {"products": "onednn"}:  # MKL is the default, so the digest leaves it out
        conditions |= products.entry(device)
    name = digest({**phase.settings.config_key, "environment": conditions})
    pretraining = Job(
        settings=phase.settings,
        components=phase.components,
        cell=replace(job.cell, settings={"pretrain": name[:12]}),
        title=f"{job.title}, pretraining",
        number=job.number,
    )
    folder, main = pretraining.folder, distributed.is_main()
    if main:
        folder.mkdir(parents=True, exist_ok=True)
        if other := files.holder(folder / LOCK):
            say(f"{pretraining.title}: waits until these weights are computed ({other})")
    # Of runs that start together, the one that gets the lock pretrains; the others wait without limit (patience -1) and
    # then load its weights.
    with files.hold(folder / LOCK, patience=-1) if main else nullcontext():
        distributed.all_reduce_sum(0)  # the other ranks wait until rank 0 has the lock
        done = distributed.first_from_any_rank(record.read(folder / RECORD) if (folder / RECORD).exists() else None)
        if done is None:
            done = _pretrain(pretraining, phase.options, task, name, device, stop)
        # Remove the checkpoint even if the weights were already there: a process killed after it wrote the record
        # leaves its checkpoint behind.
        if main:
            checkpoint.remove(folder)
    report = Checkpoint(folder=str(folder), take=TAKEN).load(trainer.model, task)
    say(f"{job.title}: pretrained weights from {folder} (loss {done['validation']['best']['loss']:.4f})")
    lines = [json.loads(line) for line in (folder / METRICS).read_bytes().splitlines()]
    trainer.lines = [{"phase": "pretrain", **line} for line in lines]
    kept = {key: done[key] for key in KEPT}
    loaded = {"sha256": report["sha256"], "seed": seed, "parameters_taken": report["parameters_taken"]}
    trainer.output.run["pretrain"] = kept | loaded


def _pretrain(
    pretraining: Job, options: Pretrain, task: Task, name: str, device: str, stop: StopFlag
) -> dict[str, Any]:
    """Pretrain on the training inputs of `task`, save the best weights, return the summary with the digest `name`."""
    started, settings, folder = provenance.now(), pretraining.settings, pretraining.folder
    inputs = options.task(task, settings.seed)
    if distributed.is_main():
        sweep_partials(folder)
    model = draw_model(pretraining.components, inputs, settings.seed).to(device)
    trainer = trainer_of(pretraining, inputs, model, device)
    RunFolder.of(pretraining).resume(trainer)
    try:
        with stop:
            trainer.train(stop, SweepTime(pretraining).on_step)
    except Diverged as error:
        raise Diverged(f"in its pretraining, {error}") from None
    made = {**training_summary(trainer), "digest": name}
    if distributed.is_main():
        write_atomic(folder / WEIGHTS, tensors.encode(carried(trainer.best_weights, task.vocab_size)))
        config = settings.config_key
        entries = {
            "status": str(Status.FINISHED),
            "config": config,
            "files": record.sha256(folder, METRICS, WEIGHTS),
            "provenance": provenance.provenance(config, inputs.digest, device, settings.precision, started),
        }
        record.write(folder, made | entries)  # written last, because a folder with a record is complete
    distributed.all_reduce_sum(0)  # the other ranks wait until rank 0 has written the files that they read
    return made
