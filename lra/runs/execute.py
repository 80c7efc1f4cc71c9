"""One run: build, train, test. What it returns is the part of a record that only a run can fill."""

import time
from typing import Any

import torch
from safetensors.torch import save

from lra.config.settings import Generate
from lra.core.console import say
from lra.core.errors import UserError
from lra.core.files import write_atomic
from lra.core.signals import Requests
from lra.data import Task
from lra.data.duplicates import seen
from lra.laws import before_a_run
from lra.records import checkpoint, record
from lra.records.checkpoint import Generation
from lra.records.names import COSTS, METRICS, PREDICTIONS, SAMPLE, WEIGHTS
from lra.runs.build import Job
from lra.runs.describe import parameters
from lra.runs.device import PeakMemory, keep_memory, reproducible, threads_at_hand
from lra.runs.initial_weights import draw_model, load_initial_weights, pretrain
from lra.runs.loggers import Loggers
from lra.runs.micro_batch import automatic, naming_what_is_too_large, resolve_auto_sizes
from lra.runs.trainer import Trainer, diagnose_and_save, evaluate_on_test
from lra.training import distributed
from lra.training.divergence import Diverged
from lra.training.fit import Training
from lra.training.generate import sample


def train_and_test(job: Job, task: Task, device: str, requests: Requests, loggers: Loggers) -> dict[str, Any]:
    """Train on from the last checkpoint, select, test.

    Writes `metrics.jsonl`, checkpoints, and for language models the cost of every batch and a sample. Raises `Paused`,
    with the state saved, when `requests` says so.
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
    model, saved = model.to(device), checkpoint.read(job.folder)
    job = resolve_auto_sizes(job, task, model, saved)
    recipe = job.system.recipe
    trainer = Trainer(job, task, Training(model, recipe), device)
    diverged = _trained(trainer, saved, requests, loggers)
    auto = {key: getattr(recipe, key) for key in automatic(system.recipe)}
    results = {
        **trainer.summary(),
        "status": "diverged" if diverged else "finished",
        **parameters(model),
        "full_pattern": system.full_pattern,
        **start,
        **({"checked": checked} if checked else {}),
        **({"auto": auto} if auto else {}),
        "baselines": task.baselines,
        "test": {},
    }
    if diverged:
        say(f"{job.title}: diverged: {diverged}")
        results["reason"] = str(diverged)
    else:
        with naming_what_is_too_large(recipe):
            results |= _finished(trainer, began)
    results["files"] = record.sha256(job.folder, METRICS, PREDICTIONS, COSTS, SAMPLE, WEIGHTS)
    results["peak_memory_bytes"] = memory.read()
    results["test_in_train"] = seen(task.train, task.test)  # last: it reads all of them
    return results


def _trained(trainer: Trainer, saved: Generation | None, requests: Requests, loggers: Loggers) -> Diverged | None:
    """Pretrain, where that is wanted and was not done, and train to the end, or to numbers that are not finite."""
    job, model = trainer.job, trainer.training.model
    try:
        if saved is not None:
            trainer.resume(saved)
        elif job.system.pretraining is not None:
            trainer.begin(*pretrain(job, model, trainer.task, trainer.device, requests))
    except Diverged as error:
        return error
    with naming_what_is_too_large(job.system.recipe):
        return trainer.follow(requests, loggers)


def _finished(trainer: Trainer, began: float) -> dict[str, Any]:
    """Test, say the score, and leave what a finished run leaves in its folder."""
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
    return {"test": test, **diagnoses}
