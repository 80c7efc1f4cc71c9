"""Loggers show what a run measures in other tools, while it runs. No number comes from them.

They are told what stands in `metrics.jsonl`, each on a thread of its own, and the run waits for none of them. One that
raises, or is not done `patience` seconds after the run, is named in one line and hears nothing more of this run.
"""

import json
import math
import os
import shutil
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Literal

from pydantic import PositiveFloat

from lra.config import configure
from lra.config.settings import Settings
from lra.core.console import say
from lra.core.errors import UserError
from lra.core.files import digest

GROUPS = {  # by the name in `metrics.jsonl`
    "epoch": "train/epoch",
    "lr": "train/lr",
    "train_loss": "train/loss",
    "tokens": "train/tokens",
    "tokens_real": "train/tokens_real",
    "val_loss": "val/loss",
    "val_accuracy": "val/accuracy",
    "seconds": "speed/seconds",
}


@dataclass(frozen=True, kw_only=True)
class LoggedRun:
    """What a logger is told of a run before it starts. `name`: its cell and seed; `group`: its sweep and cell, as its
    seeds have them; `config`: what decides its numbers."""

    folder: Path
    name: str
    group: str
    config: dict[str, Any]


class Logger(ABC):
    """`open`, then `log` for every evaluation, then `close`; all from one thread, and free to raise or to take long.

    A run that goes on from a checkpoint is opened again and told everything from its first step on: what an earlier
    process wrote is replaced.
    """

    patience: float

    @abstractmethod
    def open(self, run: LoggedRun) -> None: ...

    @abstractmethod
    def log(self, step: int, values: dict[str, float]) -> None: ...

    @abstractmethod
    def close(self, step: int, test: dict[str, float]) -> None:
        """The test scores of the weights of `step`; there are none where the run did not finish."""


class TensorBoard(Logger):
    """An event file in the run's folder: scalars, and a row of the HPARAMS tab."""

    def __init__(self, *, patience: PositiveFloat) -> None:
        _refuse_absent("tensorboard")
        self.patience = patience

    def open(self, run: LoggedRun) -> None:
        from tensorboard.compat.proto.event_pb2 import SessionLog
        from torch.utils.tensorboard.summary import hparams

        for earlier in run.folder.glob("events.out.tfevents.*"):
            if earlier.lstat().st_size and not earlier.is_symlink():
                os.truncate(earlier, 0)  # a server that is reading it would stumble over its absence
            else:
                earlier.unlink()
        # not SummaryWriter: its thread prints a traceback where the disk is full; its add_hparams makes another run
        self._path = run.folder / f"events.out.tfevents.{time.time_ns()}"
        self._write(0, file_version="brain.Event:2")
        self._write(0, session_log=SessionLog(status=SessionLog.START))  # that server forgets what it has read
        metrics = dict.fromkeys(f"{split}/{name}" for split in ("val", "test") for name in ("accuracy", "loss"))
        experiment, start, self._end = hparams(_flat(run.config), metrics)
        self._write(0, summary=experiment)
        self._write(0, summary=start)

    def log(self, step: int, values: dict[str, float]) -> None:
        from torch.utils.tensorboard.summary import scalar

        for name, value in values.items():
            self._write(step, summary=scalar(name, value))

    def close(self, step: int, test: dict[str, float]) -> None:
        if test:
            self.log(step, test)
            self._write(step, summary=self._end)

    def _write(self, step: int, **content: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.record_writer import RecordWriter

        event = Event(wall_time=time.time(), step=step, **content)
        with open(self._path, "ab", buffering=0) as file:
            RecordWriter(file).write(event.SerializeToString())


@dataclass(kw_only=True)
class Wandb(Logger):
    """A run of Weights & Biases, by default in a folder of the run's, for `wandb sync` to send.

    Its id is that of the configuration and folder, so that a run goes on under one id. The key is known to wandb
    alone, from WANDB_API_KEY or `wandb login`.
    """

    mode: Literal["offline", "online"]
    project: str
    entity: str | None
    tags: list[str]
    init_seconds: PositiveFloat
    patience: PositiveFloat

    def __post_init__(self) -> None:
        _refuse_absent("wandb")

    def open(self, run: LoggedRun) -> None:
        import wandb

        wandb.setup(wandb.Settings(silent=True))
        if self.mode == "online" and not wandb.login(prompt=False, verify=False):
            raise RuntimeError("no API key; set WANDB_API_KEY, or run: wandb login")
        name = digest({"config": run.config, "folder": run.folder.as_posix()})[:16]
        for earlier in (run.folder / "wandb").glob(f"offline-run-*-{name}"):
            shutil.rmtree(earlier)
        self._run = wandb.init(
            mode=self.mode,
            project=self.project,
            entity=self.entity,
            tags=self.tags,
            id=name,
            resume="allow",
            reinit="create_new",
            group=run.group,
            name=run.name,
            job_type="train",
            config=run.config,
            dir=run.folder,
            settings=wandb.Settings(
                console="off",
                init_timeout=self.init_seconds,
                finish_timeout=self.patience,
                finish_timeout_raises=True,
            ),
        )

    def log(self, step: int, values: dict[str, float]) -> None:
        if step >= self._run.step:  # what was sent before is there, and cannot be sent again
            self._run.log(values, step=step)

    def close(self, step: int, test: dict[str, float]) -> None:
        if test:
            self._run.summary.update({**test, "test/step": step})
        self._run.finish(exit_code=0 if test else 1)


def _refuse_absent(package: str) -> None:
    """Raises UserError where this package, which our extra of its name installs, is not there."""
    if find_spec(package) is None:
        raise UserError(f"logger={package}: {package} is not installed; pip install 'lra[{package}]'")


def loggers_of(settings: Settings) -> dict[str, Logger]:
    """The loggers that are wanted, by name. Raises UserError where one cannot be built."""
    nodes = settings.logger.items()
    return {name: configure.build(node, f"logger.{name}", settings.packages)() for name, node in nodes}


class Loggers:
    """All loggers of one run; a context manager. Nothing here raises or waits, but for their patience at the end."""

    def __init__(self, loggers: dict[str, Logger], run: LoggedRun, title: str) -> None:
        self._run = run
        self._workers = [_Worker(name, logger, title) for name, logger in loggers.items()]
        self._step, self._test = 0, {}

    def start(self, history: bytes) -> None:
        """`history`: `metrics.jsonl` as it stands, which holds lines where the run goes on."""
        for worker in self._workers:
            worker.start()
            worker.do(partial(worker.logger.open, self._run))
            worker.do(partial(_replay, worker.logger, history))

    def log(self, line: dict[str, Any]) -> None:
        """A line of `metrics.jsonl`."""
        for worker in self._workers:
            worker.do(partial(_log, worker.logger, line))

    def tested(self, score: dict[str, Any]) -> None:
        """An entry `test` of the record: the run has finished."""
        self._step = score["step"]
        self._test = _finite({f"test/{name}": score[name] for name in ("accuracy", "loss")})

    def __enter__(self) -> "Loggers":
        return self

    def __exit__(self, *_: object) -> None:
        started = [worker for worker in self._workers if worker.ident is not None]
        for worker in started:
            worker.do(partial(worker.logger.close, self._step, self._test))
            worker.do(None)
        asked = time.monotonic()
        for worker in started:
            worker.join(max(0.0, asked + worker.logger.patience - time.monotonic()))
            if worker.is_alive():
                worker.give_up(f"not done after {worker.logger.patience:g} s")


class _Worker(threading.Thread):
    """Calls one logger, in order, until it fails."""

    def __init__(self, name: str, logger: Logger, title: str) -> None:
        super().__init__(name=name, daemon=True)
        self.logger, self.title = logger, title
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._given_up = False

    def do(self, call: Callable[[], None] | None) -> None:
        """Queue a call; None is the end."""
        if not self._given_up:
            self._calls.put(call)

    def run(self) -> None:
        while (call := self._calls.get()) is not None and not self._given_up:
            try:
                call()
            except (Exception, SystemExit) as error:
                self.give_up(" ".join(f"{type(error).__name__}: {error}".split()))

    def give_up(self, reason: str) -> None:
        """Say so, once, and call no more."""
        with self._lock:
            if not self._given_up:
                self._given_up = True
                say(f"{self.title}: logger.{self.name}: {reason}; the run goes on without it")
        self._calls.put(None)


def _replay(logger: Logger, history: bytes) -> None:
    for text in history.splitlines():
        line = json.loads(text)
        if "phase" not in line:  # the steps of a pretraining are counted by themselves
            _log(logger, line)


def _log(logger: Logger, line: dict[str, Any]) -> None:
    logger.log(line["step"], grouped(line))


def grouped(line: dict[str, Any]) -> dict[str, float]:
    """A line of `metrics.jsonl` as tools show it: train/, val/, speed/, and under blocks/ what a probe measured in each
    block. Numbers that are not finite are left out."""
    values = {GROUPS[name]: value for name, value in line.items() if name in GROUPS}
    inside = {name: value for name, value in line.items() if isinstance(value, list)}
    values |= {f"blocks/{name}/{block}": value for name, each in inside.items() for block, value in enumerate(each, 1)}
    if line.get("train_seconds"):
        values["speed/tokens_per_second"] = line["tokens"] / line["train_seconds"]
    return _finite(values)


def _finite(values: dict[str, float | None]) -> dict[str, float]:
    return {name: value for name, value in values.items() if isinstance(value, int | float) and math.isfinite(value)}


def _flat(config: dict[str, Any]) -> dict[str, Any]:
    """Dotted keys with the values that TensorBoard takes; others as JSON."""
    leaves = ((key, value) for key, value in configure.dotted(config) if not isinstance(value, dict))
    return {key: value if isinstance(value, bool | int | float | str) else json.dumps(value) for key, value in leaves}
