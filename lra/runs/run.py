"""Train and test one run in its folder, on every rank under torchrun."""

import multiprocessing
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch

from lra.checks import check_before_run
from lra.config import configure
from lra.core.console import ProgressBar, say
from lra.core.errors import UserError
from lra.core.files import explained, write_atomic
from lra.core.signals import Paused, StopFlag
from lra.datasets.splits import seen
from lra.datasets.task import DataConfig, Task
from lra.ops import products
from lra.records import checkpoint, provenance, record, tensors
from lra.records.names import CHECKPOINT, COSTS, ERRORS, METRICS, PREDICTIONS, SAMPLE, TOKENIZER, WEIGHTS
from lra.records.record import RunRecord
from lra.records.runs import write_array
from lra.runs.build import Job
from lra.runs.describe import parameters
from lra.runs.device import PeakMemory, assign_gpu, device_of, keep_memory, reproducible, threads_at_hand
from lra.runs.initial_weights import draw_model, pretrain, trainer_of, training_summary
from lra.runs.loggers import Loggers, log_finished
from lra.runs.run_folder import RunFolder, Status, prepared
from lra.runs.sweep_time import SweepTime
from lra.training import distributed
from lra.training.evaluate import Predictions, Score, diagnose, evaluate, sample
from lra.training.optimizer import Diverged
from lra.training.trainer import Trainer


@dataclass
class Attempt:
    """State of one attempt to train a run, from which its record is written."""

    loggers: Loggers
    status: Status | None = None  # None while the run trains
    conditions: dict[str, Any] = field(default_factory=dict)  # backend of the recurrence, library of matrix products
    data_sha256: str | None = None  # None until the data are prepared
    results: dict[str, Any] = field(default_factory=dict)  # entries of the record so far
    released: bool = False  # True once the other ranks have been told to train or to leave

    def release(self, to_train: bool) -> None:
        """Let the other ranks train or leave; they wait in `_attempt`. Only the first call on rank 0 has an effect."""
        if distributed.is_main() and not self.released:
            self.released = True
            distributed.all_reduce_sum(to_train)


def run(job: Job) -> Status:
    """Train and test a run in its folder, and return its status.

    Returns:
        finished, skipped (finished before), diverged or failed.

    Raises:
        UserError: a mistake in the configuration or the data.
        Locked: another process trains the run.
        Paused: a signal or a time limit stopped the run; the same command resumes it from its checkpoint, if any.
    """
    _check_ranks(job)
    settings, components, device = job.settings, job.components, device_of(job.settings.device)
    if not RunFolder.of(job).is_done:
        # Raises UserError if data are missing, before the run's folder is made.
        components.builder.locate(DataConfig.of(settings))
    # torchrun and joblib forward the terminal's signals, so a signal may arrive twice, and a second one is ignored.
    repeated = distributed.started_with() > 1 or multiprocessing.parent_process() is not None
    stop = StopFlag(settings.sweep_minutes, repeated=repeated)
    keep_memory()  # before the first matrix product, which reads the variables that this sets
    try:
        assign_gpu(device, job.number)
        with distributed.joined(device):
            with _attempt(job, device, stop) as attempt:  # writes the record, also of a failed run
                if attempt.status is not None:  # there is nothing to train
                    return attempt.status
                attempt.conditions = _conditions(job, device)
                task = prepared(components.builder, settings)
                attempt.data_sha256 = task.digest
                attempt.release(True)  # the other ranks read the data that rank 0 has prepared
                with products.using(attempt.conditions.get("products", "mkl")):
                    memory, began = PeakMemory(device), time.monotonic()
                    trainer = _trainer(job, task, device, stop, attempt)
                    try:
                        if not RunFolder.of(job).resume(trainer) and (phase := components.pretraining) is not None:
                            pretrain(job, phase, trainer, device, stop)
                        with stop:  # outside `with stop` a signal ends the process at once
                            if distributed.is_main():
                                attempt.loggers.start(trainer.lines)
                            trainer.train(stop, SweepTime(job).on_step)
                        status = Status.FINISHED
                    except Diverged as error:
                        say(f"{job.title}: diverged: {error}")
                        status = Status.DIVERGED
                        attempt.results |= {"reason": str(error), "test": {}}
                    if task.objective == "next_token" and distributed.is_main():
                        write_array(job.folder / COSTS, np.array(trainer.losses, dtype=np.float32))
                    if status == Status.FINISHED:
                        attempt.results |= _test(job, trainer, began)
                        attempt.loggers.tested(attempt.results["test"][settings.train.selection], task.best_baseline)
                    attempt.results |= _summary(job, trainer)
                    attempt.results["peak_memory_bytes"] = memory.read()
                    # Call `seen` after the peak memory is read, because `seen` reads both splits into memory.
                    attempt.results["test_in_train"] = seen(task.train, task.test)
                    attempt.status = status
            if attempt.status != Status.FAILED:  # the other ranks wait until rank 0 has written everything
                distributed.all_reduce_sum(0)
            return attempt.status
    except OSError as error:
        raise explained(error, job.folder, written=False) from error


def _check_ranks(job: Job) -> None:
    """Raise UserError if torchrun started more ranks than can share a batch."""
    ranks, batch_size = distributed.started_with(), job.settings.train.batch_size
    norm_over = job.settings.model.norm_over
    max_ranks = 1 if norm_over == "batch" else batch_size  # batch norm needs the whole batch on one rank
    if ranks > max_ranks:
        raise UserError(
            f"torchrun started {ranks} processes: at most {max_ranks} can share a batch of train.batch_size="
            f"{batch_size} with model.norm_over={norm_over}"
        )


@contextmanager
def _attempt(job: Job, device: str, stop: StopFlag) -> Iterator[Attempt]:
    """On every rank, yield the state of an attempt to train a run. Rank 0 locks the folder and writes the record."""
    attempt = Attempt(Loggers(job))
    if not distributed.is_main():
        if distributed.all_reduce_sum(0) == [0]:  # rank 0 leaves without training: its status decides the exit code
            attempt.status = Status.SKIPPED
        with suppress(distributed.Lost):  # if another rank died, it has printed its error, and this attempt fails
            yield attempt
        attempt.status = attempt.status or Status.FAILED
        return
    folder = RunFolder.of(job)
    try:
        # Do not lock a complete run, because its folder may be read-only.
        with nullcontext() if folder.is_done else folder.lock():
            if not folder.is_done:
                with attempt.loggers, _recorded(job, folder, device, stop, attempt):
                    yield attempt
                return
            # It was complete before, or another process has finished it before the lock was free.
            attempt.status, _ = folder.status()
            # An earlier command that was refused may have left error.log. On a read-only disk `unlink(missing_ok=True)`
            # would fail even without the file.
            if (errors := folder.path / ERRORS).exists():
                errors.unlink()
            say(f"{job.title}: {attempt.status} before, nothing to do ({folder.path})")
            if attempt.status == Status.FINISHED:
                attempt.status = Status.SKIPPED
                checkpoint.remove(folder.path)  # an earlier process may have been killed before it removed this file
                log_finished(job)
            yield attempt
    finally:
        attempt.release(False)  # also after an error; else the other ranks would wait for PATIENCE


@contextmanager
def _recorded(job: Job, folder: RunFolder, device: str, stop: StopFlag, attempt: Attempt) -> Iterator[None]:
    """Write the record when the body finishes, pauses or fails; after a UserError, write only error.log."""
    started, config = provenance.now(), job.settings.config_key
    paused: Paused | None = None
    folder.clear()  # from here on, config.json without a record means that the run was killed
    try:
        yield
    except UserError as error:
        folder.write_error(f"{error}\n")
        raise
    except Paused as pause:
        paused = pause
    except Exception as error:
        paused = stop.signalled()  # a signal to pause may also have killed a compiler process, causing this error
        if paused is None:
            folder.write_error(traceback.format_exc())
            reason = f"{type(error).__name__}: {configure.first_line(error)}"
            say(f"{job.title}: failed: {reason} (traceback in {folder.path / ERRORS})")
            attempt.status, attempt.results = Status.FAILED, {"reason": reason}
    if paused is not None:
        attempt.status, attempt.results = Status.PAUSED, {"reason": str(paused)}
    # Not reached after a UserError: a refused run has no record.
    made = provenance.provenance(config, attempt.data_sha256, device, job.settings.precision, started)
    entries = {"status": str(attempt.status), "config": config, "provenance": attempt.conditions | made}
    record.write(folder.path, RunRecord.model_validate(job.labels | attempt.results | entries).values())
    if paused is not None:
        raise paused
    if attempt.status == Status.FINISHED:  # after the record is written, so that a kill loses nothing
        checkpoint.remove(folder.path)


def _conditions(job: Job, device: str) -> dict[str, Any]:
    """Return backend and, on a CPU, library of matrix products. Raises UserError if either cannot run here."""
    if device != "cpu":
        return job.components.backend(device)
    asked = job.settings.products
    # `auto` depends on the processor. A run that resumes on another one keeps the library of its first steps, because
    # the two libraries round differently.
    if asked == "auto" and (job.folder / CHECKPOINT).exists() and (saved := checkpoint.read(job.folder)):
        asked = saved[1]["run"]["environment"]["products"]
    return {**job.components.backend(device), "products": products.choose(asked)}


def _trainer(job: Job, task: Task, device: str, stop: StopFlag, attempt: Attempt) -> Trainer:
    """Return the trainer of a run at step 0. Raises UserError if the run cannot train with its task and options."""
    settings, components = job.settings, job.components
    if settings.train.selection == "best_test" and not task.validates_on_test:
        raise UserError(f"train.selection=best_test: {task.name} has a separate validation split; use best_val or last")
    reproducible()  # process-wide, before the first operation on weights
    torch.set_num_threads(settings.threads or threads_at_hand())
    model = draw_model(components, task, settings.seed)
    if (start := settings.start) is not None:
        report = start.load(model, task)
        left = [f"; {sum(names.values())} keep random values: {reason}" for reason, names in report["left"].items()]
        say(f"{job.title}: {sum(report['taken'].values())} tensors from {start.path}{''.join(left)}")
        attempt.results["init"] = report
    # Before the model moves to the device: the checks compute on copies of the mixer on the CPU.
    if checked := check_before_run(model.blocks[0].mixer, masked=model.masks_padding, device=device):
        attempt.results["checked"] = checked
    with stop:  # if a signal comes while the trainer is made, which may run a compiler, the run pauses
        trainer = trainer_of(job, task, model.to(device), device, attempt.loggers.log)
    distributed.pause_all(stop.signalled())
    return trainer


def _summary(job: Job, trainer: Trainer) -> dict[str, Any]:
    """Return the record's entries about the model, the task and the training."""
    task = trainer.task
    return {
        **training_summary(trainer),
        **parameters(trainer.model),
        "full_pattern": job.components.full_pattern,
        "baselines": task.baselines,
        "spec": asdict(task.spec),
        **({"classes": job.components.builder.class_names()} if task.objective == "classify" else {}),
        "files": record.sha256(job.folder, METRICS, PREDICTIONS, COSTS, SAMPLE, WEIGHTS, TOKENIZER),
    }


def _test(job: Job, trainer: Trainer, began: float) -> dict[str, Any]:
    """Test the model, print the score, write predictions, sample and weights, and return the record's test entries."""
    task, model, selection = trainer.task, trainer.model, trainer.recipe.selection
    test, predictions = _evaluate_on_test(job, trainer)
    entries: dict[str, Any] = {"test": test}
    if predictions is not None:
        builder, labels = job.components.builder, task.test.labels
        groups, baseline_predictions = builder.groups(task.test), builder.baseline_predictions(task)
        entries["diagnostics"] = diagnose(groups, predictions.classes, labels, baseline_predictions)
        if distributed.is_main():
            both = np.stack([predictions.classes, labels])  # [2, n]
            # The smallest integer type that fits: `keep_runs` joins these arrays of thousands of runs in one file.
            write_array(job.folder / PREDICTIONS, both.astype(np.min_scalar_type(both.max())))
    split, rule, chosen = ("validation", "best", trainer.best) if job.search else ("test", selection, test[selection])
    score = f"{split} {task.metric} {chosen[task.metric]:.2f} ({rule}, step {chosen['step']})"
    if task.best_baseline is not None and not job.search:
        name, baseline = task.best_baseline
        score += f"; best trivial baseline {baseline:.2f} ({name})"
    say(f"{job.title}: {score}; {time.monotonic() - began:.0f} s; {job.folder}", to_stdout=True)
    if distributed.is_main():
        if task.objective == "next_token":
            text = sample(model, task, job.settings.generate, job.settings.seed)
            write_atomic(job.folder / SAMPLE, text.encode())
        if job.settings.checkpoint.keep:
            write_atomic(job.folder / WEIGHTS, tensors.encode(model.state_dict()))
            if (task.folder / TOKENIZER).exists():
                write_atomic(job.folder / TOKENIZER, (task.folder / TOKENIZER).read_bytes())
    return entries


def _evaluate_on_test(job: Job, trainer: Trainer) -> tuple[dict[str, Any], Predictions | None]:
    """Test the last weights and those of the best validation, and leave the selected ones in the model.

    Return the scores by selection rule, and the predictions of the selected weights (None if the
    metric is not accuracy).
    """
    task, model, recipe, precision = trainer.task, trainer.model, trainer.recipe, trainer.precision
    best_step, last_step = trainer.best["step"], trainer.step

    def tested() -> tuple[Score, Predictions | None]:
        keep = Predictions(len(task.test.labels)) if task.metric == "accuracy" else None
        with ProgressBar(f"{job.title}, test") as bar:
            score = evaluate(model, task.test, recipe.eval_batch, precision=precision, keep=keep, progress=bar)
        score.say_if_not_finite(f"{job.title}, test")
        return score, keep

    last_weights = {name: value.clone() for name, value in model.state_dict().items()}
    last = best = tested()  # both scores are recorded under every protocol, so that tables can use either
    model.load_state_dict(trainer.best_weights)
    if best_step != last_step:
        best = tested()
    if recipe.selection == "last":
        model.load_state_dict(last_weights)
    test = {"last": last[0].entry(last_step), "best_val": best[0].entry(best_step)}
    if task.validates_on_test:  # one split: the weights of the best validation are those of the best test
        test["best_test"] = test["best_val"]
    return test, (last if recipe.selection == "last" else best)[1]
