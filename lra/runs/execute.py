"""Train and test one run."""

import io
import time
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lra.config.settings import Generate
from lra.core.console import Parts, say
from lra.core.errors import UserError
from lra.core.files import write_atomic
from lra.core.signals import StopFlag
from lra.data import Task, TaskSpec
from lra.data.splits import seen
from lra.laws import before_a_run
from lra.model.model import Model
from lra.records import checkpoint, record, tensors
from lra.records.names import COSTS, METRICS, PREDICTIONS, SAMPLE, TOKENIZER, WEIGHTS
from lra.runs.build import Job
from lra.runs.describe import parameters
from lra.runs.device import PeakMemory, keep_memory, reproducible, threads_at_hand
from lra.runs.initial_weights import draw_model, load_initial_weights, pretrain
from lra.runs.loggers import Loggers
from lra.runs.trainer import Trainer, entry, say_if_not_finite
from lra.training import distributed
from lra.training.evaluate import Predictions, Score, diagnose, evaluate, packed, sample
from lra.training.fit import Training
from lra.training.update import Diverged


def train_and_test(job: Job, task: Task, device: str, stop: StopFlag, loggers: Loggers) -> dict[str, Any]:
    """Resume from the last checkpoint, train, select the weights and test them.

    Writes `metrics.jsonl`, checkpoints, and for language models the loss of every batch and a sample.

    Returns:
        The part of the record that only a run can fill.

    Raises:
        Paused: `stop` is set; the state is saved.
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
    with stop:  # blocks may be compiled, for minutes
        training = Training(model, system.recipe)
    if pause := distributed.first_from_any_rank(stop.signalled()):
        raise pause
    trainer = Trainer(job, task, training, device)
    diverged = _trained(trainer, stop, loggers)
    if task.objective == "next_token" and distributed.is_main():
        _save_array(job.folder / COSTS, np.array(training.losses, dtype=np.float32))
    tested = {"test": {}} if diverged else _tested(trainer, began)
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
    """Resume, or pretrain if the recipe has a pretraining, and train; returns the divergence that ended it, or None."""
    job = trainer.job
    saved = checkpoint.read(job.folder)
    try:
        if saved is not None:
            trainer.resume(*saved)
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
    split, rule, chosen = ("validation", "best", trainer.best) if job.search else ("test", selection, test[selection])
    score = f"{split} {task.metric} {chosen[task.metric]:.2f} ({rule}, step {chosen['step']})"
    if task.best_baseline is not None and not job.search:
        name, baseline = task.best_baseline
        score += f"; best trivial baseline {baseline:.2f} ({name})"
    say(f"{job.title}: {score}; {time.monotonic() - began:.0f} s; {job.folder}", to_stdout=True)
    if distributed.is_main():
        if task.objective == "next_token":
            text = sample(model, task, Generate(**job.settings.generate), job.settings.seed)
            write_atomic(job.folder / SAMPLE, text.encode())
        if trainer.schedule.keep:
            write_atomic(job.folder / WEIGHTS, tensors.encode(model.state_dict()))
            if (task.folder / TOKENIZER).exists():
                write_atomic(job.folder / TOKENIZER, (task.folder / TOKENIZER).read_bytes())
    return {"test": test, **diagnoses}


def _save_array(path: Path, values: np.ndarray) -> None:
    buffer = io.BytesIO()
    np.save(buffer, values)
    write_atomic(path, buffer.getvalue())


def evaluate_on_test(
    job: Job, task: Task, model: Model, best_weights: dict[str, Tensor], best_step: int, last_step: int
) -> tuple[dict[str, Any], Predictions | None]:
    """Test the last weights and those of the best validation; the model keeps those that the protocol selects.

    Returns:
        The scores by selection rule (`best_test` too if validation and test are one split), and the predictions of the
        selected weights for a classification.
    """
    recipe, precision = job.system.recipe, job.settings.precision

    def tested() -> tuple[Score, Predictions | None]:
        keep = Predictions(len(task.test.labels)) if task.metric == "accuracy" else None
        with Parts(f"{job.title}, test") as bar:
            score = evaluate(model, task.test, recipe.eval_batch, precision=precision, keep=keep, on_part=bar)
        say_if_not_finite(f"{job.title}, test", score)
        return score, keep

    last_weights = {name: value.clone() for name, value in model.state_dict().items()}
    last = best = tested()
    model.load_state_dict(best_weights)
    if best_step != last_step:
        best = tested()
    if recipe.selection == "last":
        model.load_state_dict(last_weights)
    test = {"last": entry(last[0], last_step), "best_val": entry(best[0], best_step)}
    if task.validates_on_test:
        test["best_test"] = test["best_val"]
    return test, (last if recipe.selection == "last" else best)[1]


def diagnose_and_save(job: Job, task: Task, predictions: Predictions) -> dict[str, Any]:
    """Write the test predictions; return their accuracy by group of examples."""
    labels = task.test.labels
    if distributed.is_main():
        _save_array(job.folder / PREDICTIONS, packed(predictions.classes, labels))
    builder = job.system.builder
    groups, guesses = builder.groups(task.test), builder.guesses(task)
    return {"diagnostics": diagnose(groups, predictions.classes, labels, guesses)}
