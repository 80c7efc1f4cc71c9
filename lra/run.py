"""One run: build, train, test. What it returns is the part of a record that only a run can fill."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from lra import record, streams
from lra.console import Training, say
from lra.errors import UserError
from lra.fit import Diverged, Measurement, Recipe, Score, Tokens, evaluate, fit
from lra.generate import write_sample
from lra.model import Model
from lra.settings import Generate, Settings, System
from lra.tasks import Facts, Task, default_workers

COSTS = "costs.npy"


def device_of(name: str) -> str:
    """cpu or cuda, for auto, cpu or cuda."""
    available = torch.cuda.is_available()
    if name == "cuda" and not available:
        raise UserError("device=cuda: no CUDA device is available; use device=auto or device=cpu")
    return "cuda" if available and name != "cpu" else "cpu"


def initial(system: System, facts: Facts, seed: int) -> Model:
    """The model as it starts, drawn on the CPU so that every device starts alike."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(streams.key(seed, "init")[0] >> 1))
        return system.model(facts)


def train_and_test(
    settings: Settings, system: System, task: Task, folder: Path, device: str, title: str
) -> dict[str, Any]:
    """Train, select, test; writes `metrics.jsonl`, and for language models the cost of every batch and a sample."""
    recipe = system.recipe
    if recipe.selection == "best_test" and not task.validates_on_test:
        raise UserError(f"train.selection=best_test: {task.name} validates on a split of its own; use best_val or last")
    memory, clock = record.PeakMemory(device), record.Stopwatch()
    torch.use_deterministic_algorithms(True)
    torch.set_num_threads(settings.threads or default_workers())
    model = initial(system, task, settings.seed).to(device)
    course = _Course(model, task.metric)
    try:
        course.follow(settings, task, recipe, folder, title)
    finally:
        if task.objective == "next_token":
            np.save(folder / COSTS, np.array(course.costs, dtype=np.float32))
    results = {
        **course.summary(),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "baselines": task.baselines,
        "test": {},
        "resumes": 0,
    }
    if course.diverged:
        say(f"{title}: diverged: {course.diverged}")
        results["reason"] = str(course.diverged)
    else:
        results["test"] = _test(model, task, recipe, settings.precision, course)
        chosen = results["test"][recipe.selection]
        found = f"test {task.metric} {chosen[task.metric]:.2f} ({recipe.selection}, step {chosen['step']})"
        print(f"{title}: {found}, {clock.read():.0f} s", flush=True)
        if task.objective == "next_token":
            write_sample(model, task, folder, Generate(**settings.generate), settings.seed)
    results["peak_memory_bytes"] = memory.read()
    return results


class _Course:
    """What training left behind: measurements, the best weights so far, the cost of every batch."""

    def __init__(self, model: Model, metric: str) -> None:
        self.model, self.metric = model, metric
        self.history: list[Measurement] = []
        self.best: Measurement | None = None
        self.best_weights: dict[str, torch.Tensor] = {}
        self.costs: list[float] = []
        self.diverged: Diverged | None = None

    def follow(self, settings: Settings, task: Task, recipe: Recipe, folder: Path, title: str) -> None:
        """Run `fit` to its end, or to a loss that is not finite."""
        with record.Metrics(folder) as metrics, Training(title, recipe.steps) as bar:

            def on_step(step: int, loss: float, tokens: Tokens) -> None:
                self.costs.append(loss)
                bar.step(step, loss, tokens.computed)

            measurements = fit(
                self.model, task, recipe, seed=settings.seed, precision=settings.precision, on_step=on_step
            )
            try:
                for now in measurements:
                    self._take(now)
                    metrics.write(**_metrics_line(now))
                    bar.evaluated(f"{self.metric} {getattr(now.val, self.metric):.2f}")
            except Diverged as error:
                self.diverged = error

    def _take(self, now: Measurement) -> None:
        self.history.append(now)
        if now.val.better_than(self.best.val if self.best else None, self.metric):
            self.best = now
            self.best_weights = {name: value.clone() for name, value in self.model.state_dict().items()}

    def summary(self) -> dict[str, Any]:
        train_seconds = sum(now.train_seconds for now in self.history)
        tokens = sum((now.tokens for now in self.history), Tokens())
        ends = {"best": self.best, "last": self.history[-1]} if self.best else {}
        return {
            "status": "diverged" if self.diverged else "finished",
            "steps": self.history[-1].step if self.history else 0,
            "validation": {name: _entry(now.val, now.step) for name, now in ends.items()},
            "seconds": {"train": train_seconds, "evaluate": sum(now.eval_seconds for now in self.history)},
            "tokens": asdict(tokens),
            "tokens_per_second": tokens.computed / train_seconds if self.history else None,
        }


def _metrics_line(now: Measurement) -> dict[str, Any]:
    return {
        "step": now.step,
        "epoch": now.epoch,
        "lr": now.lr,
        "train_loss": now.train_loss,
        "val_loss": now.val.loss,
        "val_accuracy": now.val.accuracy,
        "seconds": now.train_seconds + now.eval_seconds,
        "tokens": now.tokens.computed,
        "tokens_real": now.tokens.real,
    }


def _entry(score: Score, step: int) -> dict[str, Any]:
    return {
        "accuracy": score.accuracy,
        "correct": score.correct,
        "examples": score.examples,
        "loss": score.loss,
        "perplexity": score.perplexity,
        "step": step,
    }


def _test(model: Model, task: Task, recipe: Recipe, precision: str, course: _Course) -> dict[str, Any]:
    """The last step and the best validation on the test split; the latter is `best_test`, too, where they are one."""
    last = evaluate(model, task.test, recipe.eval_batch, precision=precision)
    model.load_state_dict(course.best_weights)
    best = last
    if course.best.step != recipe.steps:
        best = evaluate(model, task.test, recipe.eval_batch, precision=precision)
    test = {"last": _entry(last, recipe.steps), "best_val": _entry(best, course.best.step)}
    return {**test, "best_test": test["best_val"]} if task.validates_on_test else test


def describe(system: System) -> dict[str, Any]:
    """The facts of a run that need neither data nor training."""
    recipe, facts = system.recipe, system.builder.facts
    with torch.device("meta"):
        model = system.model(facts).eval()
        tokens = torch.ones(facts.documents, facts.max_len, dtype=torch.long)
        with FlopCounterMode(display=False) as counter:
            model(tokens).sum().backward()
    steps = sorted({0, 1, recipe.warmup, recipe.steps})
    parameters = list(model.parameters())
    return {
        "parameters": sum(parameter.numel() for parameter in parameters),
        "trainable_parameters": sum(parameter.numel() for parameter in parameters if parameter.requires_grad),
        "learning_rate": [[step, recipe.learning_rate(step)] for step in steps],
        "tokens_per_step": recipe.batch_size * facts.documents * facts.max_len,
        "flops_per_step": counter.get_total_flops() * recipe.batch_size,
    }
