"""What a training step costs this machine besides the device's work: the loop of a run, part by part, on a device that
takes no time (`lra.bench.instant`).

Every part has the seconds of its own calls, without those of another part within it. What no part has is a row, too.
"""

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from functools import wraps
from itertools import count, pairwise
from pathlib import Path
from pkgutil import resolve_name
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, TypeVar
from unittest.mock import patch

import torch
from torch import Tensor

from lra.bench.instant import cpu_as_accelerator, shorten, shrunk
from lra.bench.measure import Result
from lra.bench.settings import BenchSettings
from lra.config import configure
from lra.config.cell import Cell
from lra.config.compose import compose
from lra.config.settings import RESULT_KEYS, Settings, checked
from lra.core.errors import UserError
from lra.core.signals import StopFlag
from lra.data import Place, Task, TaskSpec
from lra.records import checkpoint
from lra.records.checkpoint import Generation
from lra.runs.build import Job, assemble
from lra.runs.device import keep_memory, reproducible, restore_torch_state
from lra.runs.loggers import LoggedRun, Loggers
from lra.runs.stand_in import stand_in
from lra.runs.trainer import Trainer
from lra.training.batches import prefetch
from lra.training.evaluate import Score
from lra.training.fit import Training

STEPS = 20  # of a round; after its last one comes a measurement and a checkpoint
CHOOSE, READ, WAIT = "choosing and cutting the batch", "reading and padding", "waiting for the next batch"
REST, SAVE = "the rest of the loop", "a checkpoint"
MEASURE = "a measurement: best weights, metrics.jsonl"
FORWARD, BACKWARD = "forward", "backward"
CALLS = {  # by part, who does it
    READ: ("lra.training.batches.read",),
    "copies to the device": ("lra.training.batches.to_device", "lra.ops.noise.to_device"),
    "which noise: keys, words, features": (
        "lra.ops.dropout.StepKeys.__init__", "lra.ops.dropout.StepKeys.set", "lra.ops.noise.StepWords.of",
        "lra.model.model.Model.redraw",
    ),
    FORWARD: ("lra.training.update.predict", "lra.training.update.summed_loss"),
    BACKWARD: ("torch.Tensor.backward",),
    "adding up losses, freeing what micro-batches kept": ("lra.training.update.accumulate",),
    "the optimiser, and the norm of the gradient": ("lra.training.fit.update",),
    "the numbers of a step": ("lra.training.update.AsyncNumbers", "lra.training.fit.Training.look"),
    "between steps: bar, memory, signals": (
        "lra.runs.trainer._Observer.on_step",
    ),
    MEASURE: (
        "lra.training.fit._measured", "lra.runs.trainer.Trainer._take", "lra.records.record.Metrics.write",
        "lra.runs.loggers.Loggers.log", "lra.core.console.TrainingBar.evaluated",
    ),
    SAVE: ("lra.runs.trainer.Trainer.save",),  # its memory is given back after the step
}  # fmt: skip
AHEAD = (CHOOSE, READ)  # in a thread of its own, while the device works
MODEL = (FORWARD, BACKWARD)
RARE = (MEASURE, SAVE)  # once in a round

Item = TypeVar("Item")
Spent = dict[str, tuple[float, float]]
"""By part, seconds of the thread that it runs in, and seconds that went by."""


class PartClock:
    """What each part takes, in every thread by itself."""

    def __init__(self) -> None:
        self._spent: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
        self._at = threading.local()

    def enter(self, part: str | None) -> str | None:
        """This thread is at this part from now on; returns where it was."""
        now = time.thread_time(), time.perf_counter()
        before = getattr(self._at, "part", None)
        if before is not None:
            spent = self._spent[before]
            for kind, since in enumerate(self._at.since):
                spent[kind] += now[kind] - since
        self._at.part, self._at.since = part, now
        return before

    def timed(self, part: str, call: Callable[..., Item]) -> Callable[..., Item]:
        """The same call, as a part."""

        @wraps(call)
        def timed(*given: Any, **named: Any) -> Item:
            before = self.enter(part)
            try:
                return call(*given, **named)
            finally:
                self.enter(before)

        return timed

    def drawn(self, part: str, items: Iterable[Item]) -> Iterator[Item]:
        """The same items, each of which is made as a part."""
        items, over = iter(items), object()
        following = self.timed(part, next)
        while (item := following(items, over)) is not over:
            yield item

    def read(self) -> Spent:
        """The time of each part until now."""
        self.enter(self._at.part)
        return {part: (spent[0], spent[1]) for part, spent in self._spent.items()}


def run(settings: BenchSettings) -> Iterator[Result]:
    """Measure each part: the seconds of one time in each round, of its thread (`cpu`) and that went by (`wall`), and
    how often a step has it. A checkpoint comes after so much time, at the pace of this loop."""
    with TemporaryDirectory() as folder, restore_torch_state():
        reproducible()
        keep_memory()
        measured, minutes = _settings_of_run(settings, folder)
        rounds = [_between(*two) for two in pairwise(_loop(measured, _task(settings), settings))]
    step = median(sum(spent[part][0] for part in spent if part not in (*AHEAD, *RARE)) / STEPS for spent in rounds)
    often = {MEASURE: 1 / settings.train["eval_every"], SAVE: step / (60 * minutes)}
    every = {MEASURE: f"{settings.train['eval_every']} steps", SAVE: f"{minutes:g} minutes"}
    for part in (CHOOSE, *CALLS, WAIT, REST):
        times = 1 if part in RARE else STEPS
        cpu, wall = ([spent[part][kind] / times for spent in rounds] for kind in range(2))
        group = "ahead" if part in AHEAD else "model" if part in MODEL else "loop"
        fields = {"part": part, "group": group, "every": every.get(part), "in_a_step": often.get(part, 1)}
        yield {**fields, "cpu": cpu, "wall": wall}


def _settings_of_run(settings: BenchSettings, folder: str) -> tuple[Settings, float]:
    """The settings of a small model, with one round that does not count and those that do; and the minutes between two
    checkpoints of other runs."""
    values = configure.plain(compose("train"))
    minutes = values["checkpoint"]["minutes"]
    given = (*RESULT_KEYS, "packages", "cache", "data_dir", "workers")
    values |= {key: getattr(settings, key) for key in given} | {"out": folder}
    values["model"] = shrunk(settings.model)
    values["checkpoint"] |= {"steps": STEPS}
    steps = STEPS * (1 + settings.rounds)
    values["train"] = {**settings.train, "steps": steps, "eval_every": STEPS, "stop_in_warmup": True}
    return checked(values), minutes


def _task(settings: BenchSettings) -> Task:
    """Real data, or as many documents of full length as a round reads."""
    builder = assemble(settings).builder
    facts: TaskSpec = builder.facts
    if facts.objective != "classify":
        raise UserError(f"what=host shortens documents: expected a task that classifies, {facts.name} is another")
    if settings.data == "real":
        return builder.build(Place.of(settings))
    split = stand_in(facts, STEPS * settings.train["batch_size"], settings.seed)
    return Task(
        **asdict(facts), train=split, val=split, test=split, baselines={}, digest="", folder=Path(), source="random"
    )


def _loop(settings: Settings, task: Task, full: BenchSettings) -> list[Spent]:
    """What every part has taken by the end of each round of a run with these settings; its checkpoints are of the
    sizes of a model of the `full` ones."""
    clock, rounds = PartClock(), []
    cell = Cell(settings.task["_target_"], "", "", "", {})
    job = Job(settings=settings, system=assemble(settings), cell=cell, title=task.name)
    with torch.device("meta"):
        sizes = {name: value.shape for name, value in assemble(full).model(task).state_dict().items()}
    model = job.system.model(task)
    shorten(model)
    with cpu_as_accelerator(full.model["dim"], model.dim), _timed(clock, rounds, sizes):
        trainer = Trainer(job, task, Training(model, job.system.recipe), "cpu")
        silent = Loggers({}, LoggedRun(folder=job.folder, name=job.title, group="", config={}))
        clock.enter(REST)
        trainer.follow(StopFlag(), silent)
        clock.enter(None)
    return rounds


@contextmanager
def _timed(clock: PartClock, rounds: list[Spent], sizes: dict[str, torch.Size]) -> Iterator[None]:
    """Within, the calls of each part are timed, an evaluation takes no time, and each checkpoint ends a round."""
    read, write, scores = resolve_name("lra.training.fit._read"), checkpoint.write, count()
    made: dict[str, Tensor] = {}

    def of_full_size(path: str, value: Tensor) -> Tensor:
        name = path.partition("/")[2]
        size = sizes.get(name, sizes.get(name.rpartition("/")[0]))  # a weight, or what the optimiser keeps of it
        if size is None or value.dim() == 0:
            return value
        if path not in made:
            made[path] = torch.randn(size)
        return made[path]

    def written(folder: Path, saved: Generation) -> None:
        tensors = {path: of_full_size(path, value) for path, value in saved.tensors.items()}
        write(folder, replace(saved, tensors=tensors))

    timed = {call: clock.timed(part, resolve_name(call)) for part, calls in CALLS.items() for call in calls}

    def saved(trainer: Trainer, **how: bool) -> None:
        timed["lra.runs.trainer.Trainer.save"](trainer, **how)
        rounds.append(clock.read())

    others = {
        "lra.training.fit.prefetch": lambda items: prefetch(clock.drawn(CHOOSE, items)),
        "lra.training.fit._read": lambda *given: clock.drawn(WAIT, read(*given)),
        "lra.training.fit.evaluate": lambda *_, **__: Score(correct=next(scores), examples=1 << 30, loss=1.0),
        "lra.records.checkpoint.write": written,
        "lra.runs.trainer.Trainer.save": saved,
    }
    with ExitStack() as stack:
        for call, other in (timed | others).items():
            stack.enter_context(patch(call, other))
        yield


def _between(earlier: Spent, later: Spent) -> Spent:
    """What a round took."""
    return {part: (cpu - earlier[part][0], wall - earlier[part][1]) for part, (cpu, wall) in later.items()}
