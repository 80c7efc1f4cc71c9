"""The state of a run: training, measurements, best weights, checkpoints; and its test."""

import io
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lra.config.settings import Checkpoints
from lra.core import console
from lra.core.console import say
from lra.core.errors import UserError
from lra.core.files import write_atomic
from lra.core.signals import Paused, StopFlag
from lra.data import Task
from lra.model.model import Model
from lra.ops.async_copy import is_asynchronous
from lra.records import checkpoint, provenance, record
from lra.records.checkpoint import Generation
from lra.records.course import EndOfTraining, StoppingRule, better
from lra.records.names import COSTS, PREDICTIONS
from lra.runs.budget import SweepTime
from lra.runs.build import Job
from lra.runs.loggers import Loggers
from lra.runs.status import identity_differences
from lra.training import distributed
from lra.training.batches import Tokens
from lra.training.block_probe import probe
from lra.training.divergence import Diverged
from lra.training.evaluate import Predictions, Score, calibration, calibration_error, diagnose, evaluate, packed
from lra.training.fit import Measurement, Training, fit


def evaluate_on_test(
    job: Job, task: Task, model: Model, best_weights: dict[str, Tensor], best_step: int, last_step: int
) -> tuple[dict[str, Any], Predictions | None]:
    """Test the last weights and those of the best validation; the latter count as `best_test` if these are one split.

    The model keeps the weights that the protocol selects. Returns the scores by rule, and the predictions of the
    selected weights for a classification.
    """
    recipe, precision = job.system.recipe, job.settings.precision

    def tested() -> tuple[Score, Predictions | None]:
        keep = Predictions(len(task.test.labels)) if task.metric == "accuracy" else None
        with console.Parts(f"{job.title}, test") as bar:
            return evaluate(model, task.test, recipe.eval_batch, precision=precision, keep=keep, on_part=bar), keep

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
    """Write the test predictions; returns their accuracy by group of examples, and their calibration."""
    labels = task.test.labels
    if distributed.is_main():
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


class Trainer:
    """The state of a run, as checkpoints keep it."""

    def __init__(self, job: Job, task: Task, training: Training, device: str) -> None:
        self.job, self.task, self.training, self.device = job, task, training, device
        settings = job.settings
        self.schedule = Checkpoints(**settings.checkpoint)
        self.environment = {
            **provenance.environment(task.digest, device),
            "processes": distributed.count(),
            "precision": settings.precision,
            **{key: name for key, name in job.system.backend(device).items() if name != "torch"},  # once the only one
            "micro_batch": job.system.recipe.micro_batch,
            "eval_batch": job.system.recipe.eval_batch,
        }
        self.inexact: list[str] = []
        self.resumes = 0
        self.pretrain: dict[str, Any] | None = None
        self.seconds = {"train": 0.0, "evaluate": 0.0}
        self.tokens = Tokens()
        self.last: dict[str, Any] | None = None
        self.best: dict[str, Any] | None = None
        self.best_weights: dict[str, Tensor] = {}
        self.end = EndOfTraining(StoppingRule.of(vars(job.system.recipe)))
        self.metrics: dict[str, Any] | None = None
        self._saved_at = time.monotonic()
        self.written = checkpoint.Background(job.folder)

    def begin(self, pretrain: dict[str, Any], lines: list[dict[str, Any]]) -> None:
        """Take over the entry of a pretraining in the record, and its lines of `metrics.jsonl`."""
        self.pretrain = pretrain
        with self._metrics() as metrics:
            for line in lines if metrics is not None else ():
                self.metrics = metrics.write(phase="pretrain", **line)

    def resume(self, saved: Generation) -> None:
        """Resume from a checkpoint. Raises UserError if it is of another run or environment."""
        try:
            self._load(saved)
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            raise UserError(
                f"{self.job.folder}: the checkpoint does not fit this run: {reason}; choose another out=..."
            ) from None

    def _load(self, saved: Generation) -> None:
        state, settings, folder = saved.state["course"], self.job.settings, self.job.folder
        others = identity_differences(state["identity"], settings)
        if others:
            raise UserError(
                f"{folder}: the checkpoint is of another run ({'; '.join(others)}); choose another out=..., or "
                f"delete {checkpoint.INDEX} there to train from the start"
            )
        changes = record.differences(state["environment"], self.environment)
        conditions = [f"{key}: {old}, then {new}" for key, old, new in changes]
        if any(key == "data_sha256" for key, *_ in changes):
            raise UserError(f"{folder} was paused on other data ({'; '.join(conditions)}); choose another out=...")
        if changes and settings.resume != "inexact":
            raise UserError(
                f"{folder} was paused under other conditions ({'; '.join(conditions)}); resume=inexact resumes it, and "
                "the record says so"
            )
        self.inexact = state["inexact"] + conditions
        self.training.load(saved.tensors, saved.state["training"])
        self.resumes = state["resumes"] + 1
        self.seconds, self.tokens, self.metrics = state["seconds"], Tokens(**state["tokens"]), state["metrics"]
        self.last, self.best, self.pretrain = state["last"], state["best"], state.get("pretrain")
        self.end.load(state.get("end"))
        best = {name.removeprefix("best/"): value for name, value in saved.tensors.items() if name.startswith("best/")}
        self.best_weights = best

    def due(self, step: int) -> bool:
        """True on all ranks if a checkpoint is due after `step`, by the clock of rank 0."""
        due = step >= self.end.step or self.schedule.due(step, time.monotonic() - self._saved_at)
        return distributed.all_reduce_sum(due and distributed.is_main()) == [1]

    def save(self, *, beside: bool = False) -> None:
        """Write a checkpoint on rank 0, in a thread if `beside`. Raises `Diverged` on all ranks if the last updates
        have numbers that are not finite."""
        self.training.look()
        if not distributed.is_main():
            return
        best = {f"best/{name}": value for name, value in self.best_weights.items()}
        course = {
            "identity": self.job.settings.identity,
            "environment": self.environment,
            "inexact": self.inexact,
            "resumes": self.resumes,
            "seconds": self.seconds,
            "tokens": asdict(self.tokens),
            "metrics": self.metrics,
            "last": self.last,
            "best": self.best,
            "end": self.end.state(),
            **self._before(),
        }
        state = {"training": self.training.state(), "course": course}
        now = Generation(step=self.training.step, tensors=self.training.tensors() | best, state=state)
        if beside:
            self.written.write(now)
        else:
            self.written.wait()
            checkpoint.write(self.job.folder, now)
        self._saved_at = time.monotonic()

    def follow(self, stop: StopFlag, loggers: Loggers) -> Diverged | None:
        """Run `fit` to its end, or to numbers that are not finite. Raises `Paused` after saving."""
        settings, recipe, title = self.job.settings, self.job.system.recipe, self.job.title
        diverged = None
        with self._metrics() as metrics, console.TrainingBar(title, recipe.steps, self.training.step) as bar, stop:
            if self.resumes:
                say(f"{title}: resumes from step {self.training.step}")
            loggers.start(metrics.read() if metrics is not None else b"")
            observer = _Observer(self, bar, stop)
            measurements = fit(
                self.training,
                self.task,
                recipe,
                seed=settings.seed,
                precision=settings.precision,
                on_step=observer.on_step,
                on_part=observer.on_part,
                on_micro_batch=bar.within,
                last_step=lambda: self.end.step,
            )
            try:
                for now in measurements:
                    self._take(now)
                    line = {**_metrics_line(now), **self._inside()}
                    if metrics is not None:
                        self.metrics = metrics.write(**line)
                    loggers.log(line)
                    bar.evaluated(f"{self.task.metric} {getattr(now.val, self.task.metric):.2f}")
            except Diverged as error:
                diverged = error
            finally:
                self.written.wait()
            if self.task.objective == "next_token" and distributed.is_main():
                save_array(self.job.folder / COSTS, np.array(self.training.losses, dtype=np.float32))
            if diverged is None:
                self.pause_if(stop.signalled())  # since the last step
        return diverged

    def pause_if(self, asked: Paused | None) -> None:
        """Save and raise on all ranks if one of them is asked to stop."""
        pause = distributed.first_from_any_rank(asked)
        if pause is not None:
            self.save()
            raise pause

    def _inside(self) -> dict[str, list[float | None]]:
        """Probe the blocks on the first validation examples, if `probe` is set."""
        settings = self.job.settings
        if settings.probe is None:
            return {}
        return probe(self.training.model, self.task.val, settings.probe, precision=settings.precision)

    def _metrics(self) -> AbstractContextManager[record.Metrics | None]:
        """Open `metrics.jsonl` on rank 0."""
        return record.Metrics(self.job.folder, self.metrics) if distributed.is_main() else nullcontext()

    def _take(self, now: Measurement) -> None:
        self.seconds["train"] += now.train_seconds
        self.seconds["evaluate"] += now.eval_seconds
        self.tokens += now.tokens
        self.last = entry(now.val, now.step)
        best = None if self.best is None else (self.best["accuracy"], self.best["loss"])
        if better((now.val.accuracy, now.val.loss), best, self.task.metric):
            self.best = self.last
            self.best_weights = {name: value.clone() for name, value in self.training.model.state_dict().items()}
        self.end.take(self.last, self.best["step"], self.tokens.computed, sum(self.seconds.values()))

    def _before(self) -> dict[str, Any]:
        """The entry of the pretraining, if there was one."""
        return {} if self.pretrain is None else {"pretrain": self.pretrain}

    def summary(self) -> dict[str, Any]:
        train = self.seconds["train"]
        return {
            "steps": self.training.step,
            **self.end.said(),
            "processes": distributed.count(),
            "validation": {"best": self.best, "last": self.last} if self.best else {},
            "seconds": self.seconds | ({"pretrain": sum(self.pretrain["seconds"].values())} if self.pretrain else {}),
            **self._before(),
            "tokens": asdict(self.tokens),
            "tokens_per_second": self.tokens.computed / train if train else None,
            "resumes": self.resumes,
            **({"inexact": self.inexact} if self.inexact else {}),
        }


class _Observer:
    """Between the parts of a training: move the bar, write checkpoints, stop if asked to."""

    def __init__(self, trainer: Trainer, bar: console.TrainingBar, stop: StopFlag) -> None:
        job = trainer.job
        self.trainer, self.bar, self.stop = trainer, bar, stop
        self.beside = is_asynchronous(torch.device(trainer.device))  # a CPU would only be shared
        self.sweep_time = SweepTime(job.settings, job.system, job.number)

    def on_step(self, step: int, loss: float, tokens: Tokens) -> None:
        self.bar.step(step, loss, tokens.computed)
        if self.trainer.due(step):
            self.trainer.save(beside=self.beside)
        self.trainer.written.check()
        self.trainer.pause_if(self.stop.pending() or self.sweep_time.on_step())

    def on_part(self, done: int, total: int) -> None:
        self.bar.evaluating(self.trainer.training.step, done, total)
        self.trainer.pause_if(self.stop.signalled())  # time limits wait for the next step, so that every start advances


def _metrics_line(now: Measurement) -> dict[str, Any]:
    return {
        "step": now.step,
        "epoch": now.epoch,
        "lr": now.lr,
        "train_loss": now.train_loss,
        "val_loss": now.val.loss,
        "val_accuracy": now.val.accuracy,
        "seconds": now.train_seconds + now.eval_seconds,
        "train_seconds": now.train_seconds,
        "tokens": now.tokens.computed,
        "tokens_real": now.tokens.real,
    }
