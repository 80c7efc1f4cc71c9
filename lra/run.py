"""One run: build, train, test. What it returns is the part of a record that only a run can fill."""

import ctypes
import io
import os
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import asdict
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from lra import checkpoint, console, faults, laws, locks, ranks, record, streams
from lra.batches import Tokens
from lra.checkpoint import WEIGHTS, Checkpoint
from lra.console import say
from lra.diagnostics import PREDICTIONS, calibration, calibration_error, diagnose, packed
from lra.errors import UserError
from lra.files import write_atomic
from lra.fit import Diverged, Measurement, Predictions, Score, Training, evaluate, fit
from lra.generate import SAMPLE, write_sample
from lra.loggers import Loggers
from lra.model import Model
from lra.outcome import another_run
from lra.probe import probe
from lra.recipe import Recipe
from lra.settings import Checkpoints, Generate, Settings, System
from lra.signals import Requests
from lra.tasks import Facts, Task, default_workers

COSTS = "costs.npy"
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_MMAP_MAX = -1, -3, -4  # of mallopt(3)


def device_of(name: str) -> str:
    """cpu or cuda, for auto, cpu or cuda."""
    available = torch.cuda.is_available()
    if name == "cuda" and not available:
        raise UserError("device=cuda: no CUDA device is available; use device=auto or device=cpu")
    return "cuda" if available and name != "cpu" else "cpu"


def reproducible() -> None:
    """Let PyTorch only use what gives the same numbers every time. It need not fill memory before: that shows who reads
    what was never written, and takes 1 % of a training step on a CPU."""
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False


def keep_memory() -> None:
    """Let glibc keep what tensors free. By default it gives blocks above 32 MiB back to the system and has them
    cleared anew for every operation, which takes a tenth to a third of a training step on a CPU."""
    _tell_malloc({M_MMAP_MAX: 0, M_TRIM_THRESHOLD: 2**31 - 1})


def release_memory() -> None:
    """Let glibc give every block above 128 KiB back to the system: the opposite of `keep_memory`."""
    _tell_malloc({M_MMAP_MAX: 65536, M_MMAP_THRESHOLD: 2**17})


def _tell_malloc(values: dict[int, int]) -> None:
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        for parameter, value in values.items():
            libc.mallopt(parameter, value)


@contextmanager
def placed(device: str, number: int) -> Iterator[None]:
    """Let the `number`-th job take a GPU where there are several; ranks of one job take the GPU of their number."""
    gpus = torch.cuda.device_count() if device == "cuda" and ranks.started_with() == 1 else 1
    with ExitStack() as stack:
        if gpus > 1:
            torch.cuda.set_device(_take_gpu(stack, number, gpus))
        yield


def _take_gpu(stack: ExitStack, number: int, gpus: int) -> int:
    """The first GPU from the `number`-th on that no other job of this user here has taken; the `number`-th where all
    are taken."""
    for gpu in ((number + further) % gpus for further in range(gpus)):
        name = f"lra-gpu-{os.getuid()}-{torch.cuda.get_device_properties(gpu).uuid}.lock"
        with suppress(locks.Held):
            stack.enter_context(locks.hold(Path(gettempdir()) / name, patience=0))
            return gpu
    return number % gpus


def threads_at_hand() -> int:
    """The cores that this process may use: what its launcher granted, shared among the ranks here."""
    for name in ("OMP_NUM_THREADS", "SLURM_CPUS_PER_TASK"):
        granted = os.environ.get(name)
        if not granted:
            continue
        first = granted.partition(",")[0].strip()  # OpenMP takes a list, one number for each level of nesting
        if not first.isdecimal() or int(first) < 1:
            raise UserError(f"{name}={granted}: expected a number of threads; set it anew, or say threads=...")
        return int(first)
    return max(1, default_workers() // ranks.local()[1])


def initial(system: System, facts: Facts, seed: int) -> Model:
    """The model as it starts, drawn on the CPU so that every device starts alike."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(streams.key(seed, "init")[0] >> 1))
        return system.model(facts)


def first_weights(system: System, model: Model, task: Task, title: str) -> dict[str, Any]:
    """Let the model start where `init` says; returns what the record says of it: nothing where weights are drawn."""
    if system.start is None:
        return {}
    report = system.start.load(model, task)
    left = "; ".join(f"{sum(names.values())} as drawn: {reason}" for reason, names in report["left"].items())
    say(f"{title}: {sum(report['taken'].values())} tensors from {system.start.path}{left and f'; {left}'}")
    return {"init": report}


def parameters(model: Model) -> dict[str, int]:
    """How many there are, and how many are trained."""
    every = list(model.parameters())
    return {
        "parameters": sum(parameter.numel() for parameter in every),
        "trainable_parameters": sum(parameter.numel() for parameter in every if parameter.requires_grad),
    }


def train_and_test(
    settings: Settings,
    system: System,
    task: Task,
    folder: Path,
    device: str,
    title: str,
    requests: Requests,
    loggers: Loggers,
) -> dict[str, Any]:
    """Train on from the last checkpoint, select, test.

    Writes `metrics.jsonl`, checkpoints, and for language models the cost of every batch and a sample. Raises `Paused`,
    with the state saved, when `requests` says so.
    """
    recipe = system.recipe
    if recipe.selection == "best_test" and not task.validates_on_test:
        raise UserError(f"train.selection=best_test: {task.name} validates on a split of its own; use best_val or last")
    memory, clock = record.PeakMemory(device), record.Stopwatch()
    reproducible()
    keep_memory()
    torch.set_num_threads(settings.threads or threads_at_hand())
    first = initial(system, task, settings.seed)
    start = first_weights(system, first, task, title)
    checked = laws.check(first)
    course = _Course(Training(first.to(device), recipe), settings, task, folder, device)
    course.resume()
    diverged = course.follow(recipe, title, requests, loggers)
    model = course.training.model
    results = {
        **course.summary(),
        "status": "diverged" if diverged else "finished",
        **parameters(model),
        "full_pattern": system.full_pattern,
        **start,
        **({"checked": checked} if checked else {}),
        "baselines": task.baselines,
        "test": {},
    }
    if diverged:
        say(f"{title}: diverged: {diverged}")
        results["reason"] = str(diverged)
    else:
        results["test"], predictions = _test(model, task, recipe, settings.precision, course, title)
        if predictions is not None:
            results |= _diagnosed(predictions, system, task, folder)
        chosen = results["test"][recipe.selection]
        found = f"test {task.metric} {chosen[task.metric]:.2f} ({recipe.selection}, step {chosen['step']})"
        say(f"{title}: {found}, {clock.read():.0f} s", to_stdout=True)
        if task.objective == "next_token" and ranks.leads():
            write_sample(model, task, folder, Generate(**settings.generate), settings.seed)
        if course.schedule.keep and ranks.leads():
            write_atomic(folder / WEIGHTS, save(model.state_dict()))
    results["files"] = record.sha256(folder, record.METRICS, PREDICTIONS, COSTS, SAMPLE, WEIGHTS)
    results["peak_memory_bytes"] = memory.read()
    return results


class _Course:
    """The way of one run: its training, what it measured, the best weights, and its checkpoints."""

    def __init__(self, training: Training, settings: Settings, task: Task, folder: Path, device: str) -> None:
        self.training, self.settings, self.task, self.folder = training, settings, task, folder
        self.metric = task.metric
        self.schedule = Checkpoints(**settings.checkpoint)
        self.environment = {
            **record.environment(task.digest, device),
            "processes": ranks.count(),
            "precision": settings.precision,
            "micro_batch": settings.train["micro_batch"],
            "eval_batch": settings.train["eval_batch"],
        }
        self.inexact: list[str] = []
        self.resumes = 0
        self.seconds = {"train": 0.0, "evaluate": 0.0}
        self.tokens = Tokens()
        self.last: dict[str, Any] | None = None
        self.best: dict[str, Any] | None = None
        self.best_weights: dict[str, Tensor] = {}
        self.metrics: dict[str, Any] | None = None
        self._saved_at = time.monotonic()

    def resume(self) -> None:
        """Go on from the newest checkpoint, if there is one. Raises UserError where it belongs to other conditions."""
        found = checkpoint.read(self.folder)
        if found is None:
            return
        try:
            self._load(found)
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            raise UserError(
                f"{self.folder}: its checkpoint is not of this run: {reason}; choose another out=..."
            ) from None

    def _load(self, found: Checkpoint) -> None:
        own = found.state["course"]
        others = another_run(own["identity"], self.settings)
        if others:
            raise UserError(
                f"{self.folder}: its checkpoint is of another run ({'; '.join(others)}); choose another out=..., or "
                f"delete {checkpoint.INDEX} there to train from the start"
            )
        changes = record.differences(own["environment"], self.environment)
        found_here = [f"{key}: {old}, then {new}" for key, old, new in changes]
        if any(key == "data_sha256" for key, *_ in changes):
            raise UserError(f"{self.folder} was paused on other data ({'; '.join(found_here)}); choose another out=...")
        if changes and self.settings.resume != "inexact":
            raise UserError(
                f"{self.folder} was paused under other conditions ({'; '.join(found_here)}); resume=inexact goes on "
                "and says so in the record"
            )
        self.inexact = own["inexact"] + found_here
        self.training.load(found.tensors, found.state["training"])
        self.resumes = own["resumes"] + 1
        self.seconds, self.tokens, self.metrics = own["seconds"], Tokens(**own["tokens"]), own["metrics"]
        self.last, self.best = own["last"], own["best"]
        best = {name.removeprefix("best/"): value for name, value in found.tensors.items() if name.startswith("best/")}
        self.best_weights = best

    def save(self) -> None:
        """Write a checkpoint of this moment; the leader does."""
        if not ranks.leads():
            return
        best = {f"best/{name}": value for name, value in self.best_weights.items()}
        own = {
            "identity": self.settings.identity,
            "environment": self.environment,
            "inexact": self.inexact,
            "resumes": self.resumes,
            "seconds": self.seconds,
            "tokens": asdict(self.tokens),
            "metrics": self.metrics,
            "last": self.last,
            "best": self.best,
        }
        state = {"training": self.training.state(), "course": own}
        checkpoint.write(
            self.folder, Checkpoint(step=self.training.step, tensors=self.training.tensors() | best, state=state)
        )
        self._saved_at = time.monotonic()

    def follow(self, recipe: Recipe, title: str, requests: Requests, loggers: Loggers) -> Diverged | None:
        """Run `fit` to its end, or to numbers that are not finite. Raises `Paused` after saving."""
        settings = self.settings
        with self._metrics() as metrics, console.Training(title, recipe.steps, self.training.step) as bar:
            if self.resumes:
                say(f"{title}: goes on from step {self.training.step}")

            def on_step(step: int, loss: float, tokens: Tokens) -> None:
                bar.step(step, loss, tokens.computed)
                faults.point("step")
                if step == recipe.steps or self.schedule.due(step, time.monotonic() - self._saved_at):
                    self.save()
                self._pause_if_asked(requests)

            def on_part(done: int, total: int) -> None:
                bar.evaluating(done, total)
                faults.point("evaluation")
                self._pause_if_asked(requests)

            def on_cut() -> None:
                faults.point("micro-batch")
                if requests.heard():
                    self._pause_if_asked(requests)

            requests.patiently(True)
            loggers.start(metrics.read() if metrics is not None else [])
            measurements = fit(
                self.training,
                self.task,
                recipe,
                seed=settings.seed,
                precision=settings.precision,
                on_step=on_step,
                on_part=on_part,
                on_cut=on_cut,
            )
            try:
                for now in measurements:
                    self._take(now)
                    line = {**_metrics_line(now), **self._inside()}
                    if metrics is not None:
                        self.metrics = metrics.write(**line)
                    loggers.log(line)
                    bar.evaluated(f"{self.metric} {getattr(now.val, self.metric):.2f}")
                diverged = None
            except Diverged as error:
                diverged = error
        if self.task.objective == "next_token" and ranks.leads():
            _save_array(self.folder / COSTS, np.array(self.training.losses, dtype=np.float32))
        requests.patiently(False)
        pause = ranks.first(requests.pending())
        if pause is not None:
            raise pause
        return diverged

    def _pause_if_asked(self, requests: Requests) -> None:
        """Save and raise, on all ranks where one of them is asked."""
        pause = ranks.first(requests.pending())
        if pause is not None:
            self.save()
            raise pause

    def _inside(self) -> dict[str, list[float | None]]:
        """What happens inside the blocks, on the first validation examples, where that is wanted."""
        settings = self.settings
        if settings.probe is None:
            return {}
        return probe(self.training.model, self.task.val, settings.probe, precision=settings.precision)

    def _metrics(self) -> AbstractContextManager[record.Metrics | None]:
        """The file of the measurements, for the leader."""
        return record.Metrics(self.folder, self.metrics) if ranks.leads() else nullcontext()

    def _take(self, now: Measurement) -> None:
        self.seconds["train"] += now.train_seconds
        self.seconds["evaluate"] += now.eval_seconds
        self.tokens += now.tokens
        self.last = _entry(now.val, now.step)
        best = None if self.best is None else Score(**{key: self.best[key] for key in ("correct", "examples", "loss")})
        if now.val.better_than(best, self.metric):
            self.best = self.last
            self.best_weights = {name: value.clone() for name, value in self.training.model.state_dict().items()}

    def summary(self) -> dict[str, Any]:
        train = self.seconds["train"]
        return {
            "steps": self.training.step,
            "processes": ranks.count(),
            "validation": {"best": self.best, "last": self.last} if self.best else {},
            "seconds": self.seconds,
            "tokens": asdict(self.tokens),
            "tokens_per_second": self.tokens.computed / train if train else None,
            "resumes": self.resumes,
            **({"inexact": self.inexact} if self.inexact else {}),
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


def _save_array(path: Path, values: np.ndarray) -> None:
    buffer = io.BytesIO()
    np.save(buffer, values)
    write_atomic(path, buffer.getvalue())


def _entry(score: Score, step: int) -> dict[str, Any]:
    return {
        "accuracy": score.accuracy,
        "correct": score.correct,
        "examples": score.examples,
        "loss": score.loss,
        "perplexity": score.perplexity,
        "step": step,
    }


def _test(
    model: Model, task: Task, recipe: Recipe, precision: str, course: _Course, title: str
) -> tuple[dict[str, Any], Predictions | None]:
    """The last step and the best validation on the test split; the latter is `best_test`, too, where they are one.

    The model is left with the weights that the protocol selects; the predictions, of a classification, are theirs.
    """

    def look() -> tuple[Score, Predictions | None]:
        keep = Predictions(len(task.test)) if task.objective == "classify" else None
        with console.Parts(f"{title}, test") as bar:
            return evaluate(model, task.test, recipe.eval_batch, precision=precision, keep=keep, on_part=bar), keep

    last_weights = {name: value.clone() for name, value in model.state_dict().items()}
    last = best = look()
    model.load_state_dict(course.best_weights)
    if course.best["step"] != recipe.steps:
        best = look()
    if recipe.selection == "last":
        model.load_state_dict(last_weights)
    test = {"last": _entry(last[0], recipe.steps), "best_val": _entry(best[0], course.best["step"])}
    if task.validates_on_test:
        test["best_test"] = test["best_val"]
    return test, (last if recipe.selection == "last" else best)[1]


def _diagnosed(predictions: Predictions, system: System, task: Task, folder: Path) -> dict[str, Any]:
    """Keep the test predictions; their accuracy by group of examples, and their calibration."""
    labels = task.test.labels
    if ranks.leads():
        _save_array(folder / PREDICTIONS, packed(predictions.classes, labels))
    groups, guesses = system.builder.groups(task.test), system.builder.guesses(task)
    bins = calibration(predictions.confidence, predictions.classes == labels)
    return {
        "diagnostics": diagnose(groups, predictions.classes, labels, guesses),
        "calibration": bins,
        "calibration_error": calibration_error(bins),
    }


def describe(system: System) -> dict[str, Any]:
    """The facts of a run that need neither data nor training."""
    recipe, facts = system.recipe, system.builder.facts
    with torch.device("meta"):
        model = system.model(facts).eval()
        tokens = torch.ones(facts.documents, facts.max_len, dtype=torch.long)
        with FlopCounterMode(display=False) as counter:
            model(tokens).sum().backward()
    steps = sorted({0, 1, recipe.warmup, recipe.steps})
    return {
        **parameters(model),
        "full_pattern": system.full_pattern,
        "learning_rate": [[step, recipe.learning_rate(step)] for step in steps],
        "tokens_per_step": recipe.batch_size * facts.documents * facts.max_len,
        "flops_per_step": counter.get_total_flops() * recipe.batch_size,
    }
