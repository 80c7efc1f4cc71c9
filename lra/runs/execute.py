"""Train and test one run; returns the part of the record that only a run can fill."""

import time
from dataclasses import fields
from typing import Any

import torch
from safetensors.torch import save

from lra.config.settings import Generate
from lra.core.console import say
from lra.core.errors import UserError
from lra.core.files import write_atomic
from lra.core.signals import StopFlag
from lra.data import Task, TaskSpec
from lra.data.duplicates import seen
from lra.laws import before_a_run
from lra.records import checkpoint, record
from lra.records.names import COSTS, METRICS, PREDICTIONS, SAMPLE, TOKENIZER, WEIGHTS
from lra.runs.build import Job
from lra.runs.describe import parameters
from lra.runs.device import PeakMemory, keep_memory, reproducible, threads_at_hand
from lra.runs.initial_weights import draw_model, load_initial_weights, pretrain
from lra.runs.loggers import Loggers
from lra.runs.trainer import Trainer, diagnose_and_save, evaluate_on_test
from lra.training import distributed
from lra.training.divergence import Diverged
from lra.training.fit import Training
from lra.training.generate import sample


def train_and_test(job: Job, task: Task, device: str, stop: StopFlag, loggers: Loggers) -> dict[str, Any]:
    """Train on from the last checkpoint, select the weights, test them.

    Writes `metrics.jsonl`, checkpoints, and for language models the loss of every batch and a sample. Raises `Paused`,
    with the state saved, when `stop` is set.
    """
    settings, system = job.settings, job.system
    if system.recipe.selection == "best_test" and not task.validates_on_test:
        raise UserError(f"train.selection=best_test: {task.name} validates on a split of its own; use best_val or last")
    memory, began = PeakMemory(device), time.monotonic()
    reproducible()
    keep_memory()
    torch.set_num_threads(settings.threads or threads_at_hand())
    model = draw_model(system, task, settings.seed)
    start = load_initial_weights(job, model, task)
    checked = before_a_run(model.blocks[0].mixer, masked=model.masks_padding, device=device)
    model = model.to(device)
    trainer = Trainer(job, task, Training(model, system.recipe), device)
    try:
        diverged = _trained(trainer, stop, loggers)
        tested = {"test": {}} if diverged else _tested(trainer, began)
    except torch.OutOfMemoryError as error:
        raise RuntimeError(
            f"the accelerator is out of memory with train.micro_batch={system.recipe.micro_batch} and train.eval_batch="
            f"{system.recipe.eval_batch}; use smaller ones, with resume=inexact in the same folder"
        ) from error
    results = {
        **trainer.summary(),
        "status": "diverged" if diverged else "finished",
        **parameters(model),
        "full_pattern": system.full_pattern,
        **start,
        **({"checked": checked} if checked else {}),
        "baselines": task.baselines,
        "spec": {field.name: getattr(task, field.name) for field in fields(TaskSpec)},
        **({"classes": system.builder.class_names()} if task.objective == "classify" else {}),
        **tested,
    }
    if diverged:
        say(f"{job.title}: diverged: {diverged}")
        results["reason"] = str(diverged)
    results["files"] = record.sha256(job.folder, METRICS, PREDICTIONS, COSTS, SAMPLE, WEIGHTS, TOKENIZER)
    results["peak_memory_bytes"] = memory.read()
    results["test_in_train"] = seen(task.train, task.test)  # last: it reads all of them
    return results


def _trained(trainer: Trainer, stop: StopFlag, loggers: Loggers) -> Diverged | None:
    """Resume, or pretrain if the recipe has a pretraining, and train; returns the divergence that ended it."""
    job = trainer.job
    saved = checkpoint.read(job.folder)
    try:
        if saved is not None:
            trainer.resume(saved)
        elif job.system.pretraining is not None:
            trainer.begin(*pretrain(job, trainer.training.model, trainer.task, trainer.device, stop))
    except Diverged as error:
        return error
    return trainer.follow(stop, loggers)


def _tested(trainer: Trainer, began: float) -> dict[str, Any]:
    """Test, print the score, and write predictions, sample and weights."""
    job, task, model = trainer.job, trainer.task, trainer.training.model
    test, predictions = evaluate_on_test(
        job, task, model, trainer.best_weights, trainer.best["step"], trainer.training.step
    )
    diagnoses = {} if predictions is None else diagnose_and_save(job, task, predictions)
    selection = job.system.recipe.selection
    chosen = test[selection]
    score = f"test {task.metric} {chosen[task.metric]:.2f} ({selection}, step {chosen['step']})"
    say(f"{job.title}: {score}, {time.monotonic() - began:.0f} s", to_stdout=True)
    if distributed.is_main():
        if task.objective == "next_token":
            text = sample(model, task, Generate(**job.settings.generate), job.settings.seed)
            write_atomic(job.folder / SAMPLE, text.encode())
        if trainer.schedule.keep:
            write_atomic(job.folder / WEIGHTS, save(model.state_dict()))
            if (task.folder / TOKENIZER).exists():
                write_atomic(job.folder / TOKENIZER, (task.folder / TOKENIZER).read_bytes())
    return {"test": test, **diagnoses}
