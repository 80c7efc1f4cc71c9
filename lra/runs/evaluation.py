"""The test of a trained model, and what its predictions tell."""

import io
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from lra.core import console
from lra.core.files import write_atomic
from lra.data import Task
from lra.model.model import Model
from lra.runs.job import Job
from lra.runs.machine import KeptMemory
from lra.training import ranks
from lra.training.diagnostics import PREDICTIONS, calibration, calibration_error, diagnose, packed
from lra.training.evaluate import Predictions, Score, evaluate


def tested(
    job: Job, task: Task, model: Model, best_weights: dict[str, Tensor], best_step: int, last_step: int
) -> tuple[dict[str, Any], Predictions | None]:
    """The last step and the best validation on the test split; the latter is `best_test`, too, where they are one.

    The model is left with the weights that the protocol selects; the predictions, of a classification, are theirs.
    """
    recipe, precision = job.system.recipe, job.settings.precision

    def look() -> tuple[Score, Predictions | None]:
        keep = Predictions(len(task.test.labels)) if task.metric == "accuracy" else None
        memory = KeptMemory()
        with console.Parts(f"{job.title}, test") as bar:

            def on_part(done: int, total: int) -> None:
                memory.between_parts()
                bar(done, total)

            return evaluate(model, task.test, recipe.eval_batch, precision=precision, keep=keep, on_part=on_part), keep

    last_weights = {name: value.clone() for name, value in model.state_dict().items()}
    last = best = look()
    model.load_state_dict(best_weights)
    if best_step != last_step:
        best = look()
    if recipe.selection == "last":
        model.load_state_dict(last_weights)
    test = {"last": entry(last[0], last_step), "best_val": entry(best[0], best_step)}
    if task.validates_on_test:
        test["best_test"] = test["best_val"]
    return test, (last if recipe.selection == "last" else best)[1]


def diagnosed(job: Job, task: Task, predictions: Predictions) -> dict[str, Any]:
    """Keep the test predictions; their accuracy by group of examples, and their calibration."""
    labels = task.test.labels
    if ranks.leads():
        save_array(job.folder / PREDICTIONS, packed(predictions.classes, labels))
    builder = job.system.builder
    groups, guesses = builder.groups(task.test), builder.guesses(task)
    bins = calibration(predictions.confidence, predictions.classes == labels)
    return {
        "diagnostics": diagnose(groups, predictions.classes, labels, guesses),
        "calibration": bins,
        "calibration_error": calibration_error(bins),
    }


def entry(score: Score, step: int) -> dict[str, Any]:
    """A score as records have it."""
    return {
        "accuracy": score.accuracy,
        "correct": score.correct,
        "examples": score.examples,
        "loss": score.loss,
        "perplexity": score.perplexity,
        "step": step,
    }


def save_array(path: Path, values: np.ndarray) -> None:
    """Write an .npy file, whole or not at all."""
    buffer = io.BytesIO()
    np.save(buffer, values)
    write_atomic(path, buffer.getvalue())
