"""State of a run: training, measurements, best weights and checkpoints."""

import json
import time
from dataclasses import asdict
from typing import Any

from torch import Tensor

from lra.config.settings import Checkpoints
from lra.core import console
from lra.core.console import say
from lra.core.errors import UserError
from lra.core.files import write_atomic
from lra.core.signals import Paused, StopFlag
from lra.data import Task
from lra.ops import products
from lra.records import checkpoint, provenance, record
from lra.records.names import CHECKPOINT, METRICS
from lra.runs.build import Job
from lra.runs.course import EndOfTraining, SweepTime, better
from lra.runs.folder import INEXACT, identity_differences
from lra.runs.loggers import Loggers
from lra.training import distributed
from lra.training.batches import Tokens
from lra.training.block_probe import probe
from lra.training.evaluate import Score
from lra.training.fit import Measurement, Training, fit
from lra.training.update import Diverged

STATE = ("inexact", "resumes", "pretrain", "seconds", "last", "best", "lines")


def entry(score: Score, step: int) -> dict[str, Any]:
    """Return a score as an entry of records."""
    not_finite = {"not_finite": score.not_finite} if score.not_finite else {}
    return not_finite | {
        "accuracy": score.accuracy,
        "correct": score.correct,
        "examples": score.examples,
        "loss": score.loss,
        "perplexity": score.perplexity,
        "step": step,
    }


def say_if_not_finite(title: str, score: Score) -> None:
    """Print how many outputs of an evaluation are not finite, if there are any."""
    if score.not_finite:
        say(f"{title}: outputs of {score.not_finite} of {score.examples} are NaN or infinite; they count as wrong")


class Trainer:
    """State of a run, as checkpoints keep it. `lines`: evaluations, the lines of `metrics.jsonl`."""

    def __init__(self, job: Job, task: Task, training: Training, device: str) -> None:
        self.job, self.task, self.training, self.device = job, task, training, device
        settings = job.settings
        self.schedule = Checkpoints(**settings.checkpoint)
        self.environment = {
            **provenance.environment(task.digest, device),
            "processes": distributed.count(),
            "precision": settings.precision,
            **job.system.backend(device),
            **products.entry(device),
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
        self.lines: list[dict[str, Any]] = []
        self.end = EndOfTraining(job.system.recipe)
        self._sweep_time = SweepTime(settings, job.system, job.number)
        self._saved_at = time.monotonic()

    def begin(self, pretrain: dict[str, Any], lines: list[dict[str, Any]]) -> None:
        """Add a pretraining: its entry in the record, and its lines of `metrics.jsonl`."""
        self.pretrain = pretrain
        self.lines = [{"phase": "pretrain", **line} for line in lines]

    def resume(self, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
        """Resume from a checkpoint. Raises UserError if it is of another run, of other data, or of other conditions
        without `resume=inexact`."""
        run, folder, settings = state["run"], self.job.folder, self.job.settings
        if others := identity_differences(run["config"], settings, INEXACT):
            raise UserError(f"{folder / CHECKPOINT} is of another run ({'; '.join(others)}); {checkpoint.REMEDY}")
        earlier = {"products": "mkl"} if self.device == "cpu" else {}  # of a checkpoint without this key
        changes = record.differences(earlier | run["environment"], self.environment)
        conditions = [f"{key}: {old}, then {new}" for key, old, new in changes]
        if run["environment"]["data_sha256"] != self.environment["data_sha256"]:
            raise UserError(f"{folder} was paused on other data ({'; '.join(conditions)}); choose another out=...")
        if conditions and settings.resume != "inexact":
            raise UserError(
                f"{folder} was paused under other conditions ({'; '.join(conditions)}); resume=inexact resumes it, and "
                "the record says so"
            )
        self.training.load(tensors, state["training"])
        for key in STATE:
            setattr(self, key, run[key])
        self.inexact += conditions
        self.resumes += 1
        self.tokens = Tokens(**run["tokens"])
        vars(self.end).update(run["end"])
        self.best_weights = {
            name.removeprefix("best/"): value for name, value in tensors.items() if name.startswith("best/")
        }

    def due(self, step: int) -> bool:
        """Return True on all ranks if a checkpoint is due after `step`, by the clock of rank 0."""
        due = step >= self.end.step or self.schedule.due(step, time.monotonic() - self._saved_at)
        return distributed.all_reduce_sum(due and distributed.is_main()) == [1]

    def save(self) -> None:
        """Write a checkpoint on rank 0.

        Raises:
            Diverged: on all ranks, if the last updates have numbers that are not finite.
        """
        self.training.look()
        if not distributed.is_main():
            return
        best = {f"best/{name}": value for name, value in self.best_weights.items()}
        run = {
            "config": self.job.settings.identity,
            "environment": self.environment,
            **{key: getattr(self, key) for key in STATE},
            "tokens": asdict(self.tokens),
            "end": self.end.state(),
        }
        state = {"training": self.training.state(), "run": run}
        checkpoint.write(self.job.folder, self.training.tensors() | best, state)
        self._saved_at = time.monotonic()

    def follow(self, stop: StopFlag, loggers: Loggers) -> Diverged | None:
        """Run `fit` to its end, or to a divergence, which is returned. Raises `Paused` after saving."""
        settings, recipe, title = self.job.settings, self.job.system.recipe, self.job.title
        with console.TrainingBar(title, recipe.steps, self.training.step) as bar, stop:
            self._bar, self._stop = bar, stop
            say(f"{title}: {recipe.rate_in_words()}")
            if self.resumes:
                say(f"{title}: resumes from step {self.training.step}")
            self.write_metrics()
            loggers.start(self.lines)
            measurements = fit(
                self.training,
                self.task,
                recipe,
                seed=settings.seed,
                precision=settings.precision,
                on_step=self.on_step,
                on_part=self.on_part,
                last_step=lambda: self.end.step,
            )
            try:
                for now in measurements:
                    self._take(now)
                    loggers.log(self.lines[-1])
                    bar.evaluated(f"{self.task.metric} {getattr(now.val, self.task.metric):.2f}")
            except Diverged as error:
                return error
            self.pause_if(stop.signalled())  # since the last step
        return None

    def on_step(self, step: int, loss: float, tokens: Tokens) -> None:
        """After a step: move the bar, save if a checkpoint is due, stop if that is asked for."""
        self._bar.step(step, loss, tokens.computed)
        if self.due(step):
            self.save()
        self.pause_if(self._stop.pending() or self._sweep_time.on_step())

    def on_part(self, done: int, total: int) -> None:
        """Within an evaluation: move the bar, stop after a signal."""
        self._bar.evaluating(self.training.step, done, total)
        self.pause_if(self._stop.signalled())  # the time limit waits for the next step, so that every start advances

    def pause_if(self, requested: Paused | None) -> None:
        """Save and raise on all ranks if one of them is asked to stop."""
        pause = distributed.first_from_any_rank(requested)
        if pause is not None:
            self.save()
            raise pause

    def _take(self, now: Measurement) -> None:
        """Add a measurement and write it."""
        self.seconds["train"] += now.train_seconds
        self.seconds["evaluate"] += now.eval_seconds
        self.tokens += now.tokens
        self.last = entry(now.val, now.step)
        say_if_not_finite(f"{self.job.title}, step {now.step}, validation", now.val)
        best = None if self.best is None else (self.best["accuracy"], self.best["loss"])
        if better((now.val.accuracy, now.val.loss), best, self.task.metric):
            self.best = self.last
            self.best_weights = {name: value.clone() for name, value in self.training.model.state_dict().items()}
        self.end.take(self.last, self.best["step"], self.tokens.computed, sum(self.seconds.values()))
        line = _metrics_line(now)
        if examples := self.job.settings.probe:
            line |= probe(self.training.model, self.task.val, examples, precision=self.job.settings.precision)
        self.lines.append(record.finite(line))
        self.write_metrics()

    def write_metrics(self) -> None:
        """Write `metrics.jsonl` on rank 0."""
        if distributed.is_main():
            text = "".join(json.dumps(line) + "\n" for line in self.lines)
            write_atomic(self.job.folder / METRICS, text.encode())

    def summary(self) -> dict[str, Any]:
        """Return the part of the record about the training."""
        train = self.seconds["train"]
        values = {
            "steps": self.training.step,
            **self.end.entries(),
            "processes": distributed.count(),
            "validation": {"best": self.best, "last": self.last} if self.best else {},
            "seconds": self.seconds,
            "tokens": asdict(self.tokens),
            "tokens_per_second": self.tokens.computed / train if train else None,
            "resumes": self.resumes,
        }
        if self.pretrain is not None:
            values["pretrain"] = self.pretrain
            values["seconds"] = {**self.seconds, "pretrain": sum(self.pretrain["seconds"].values())}
        if self.inexact:
            values["inexact"] = self.inexact
        return values


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
