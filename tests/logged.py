"""Runs that loggers listen to, and what they are told."""

import json
import os
import signal
from collections.abc import Iterable
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from faults.runs import inject
from support import composed, job_of
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from lra.config.cell import cell_of
from lra.config.settings import settings_of
from lra.core.signals import Paused
from lra.records import record
from lra.runs.folder import run
from lra.runs.loggers import LoggedRun

SHORT = (
    "task=listops",
    *(f"task.{key}" for key in ("train_size=97", "val_size=31", "test_size=37", "min_length=5", "max_length=40")),
    "task.max_depth=4",
    *(f"model.{key}" for key in ("dim=6", "heads=3", "depth=1", "mlp_dim=7")),
    *(f"train.{key}" for key in ("steps=18", "batch_size=7", "micro_batch=7", "eval_every=4", "warmup=5")),
    "threads=1",
    "checkpoint.steps=5",
    "checkpoint.keep=true",
)
FOLDER = Path("runs/listops/paper/simple/simple/seed1")
SHOWN = {
    "train/epoch": "epoch",
    "train/lr": "lr",
    "train/loss": "train_loss",
    "train/tokens": "tokens",
    "train/tokens_real": "tokens_real",
    "val/loss": "val_loss",
    "val/accuracy": "val_accuracy",
    "speed/seconds": "seconds",
}  # by the name in other tools, that in metrics.jsonl


class StandIn:
    """In the place of the module wandb and of its run. At the call `trouble`, `act` is called before anything else."""

    __spec__ = ModuleSpec("wandb", loader=None)

    def __init__(self, trouble: str = "", act=lambda: None, step: int = 0) -> None:
        self.trouble, self.act, self.step = trouble, act, step
        self.called: list[str] = []
        self.told: dict = {}
        self.lines: list[tuple[int, dict]] = []
        self.summary = SimpleNamespace(update=lambda values: self._called("summary", {"summary": values}))

    def _called(self, call: str, told: dict | None = None) -> None:
        self.called.append(call)
        if call == self.trouble:
            self.act()
        self.told |= told or {}

    def Settings(self, **settings: object) -> dict:
        return settings

    def init(self, **options: object) -> "StandIn":
        self._called("init", options)
        return self

    def log(self, values: dict, step: int) -> None:
        self._called("log")
        assert step >= self.step
        self.step = step + 1
        self.lines.append((step, values))

    def finish(self, exit_code: int) -> None:
        self._called("finish", {"exit_code": exit_code})


def perform(*overrides: str) -> str:
    """A run in this process; the outcome, or the exit code of a pause."""
    cfg = composed(*SHORT, *overrides)
    try:
        return run(job_of(settings_of(cfg), cell_of(cfg, cfg.hydra, [])))
    except Paused as pause:
        return str(pause.code)


def stopped(fault: str, *overrides: str) -> None:
    """The same in a process of its own, which a fault ends."""
    child = os.fork()
    if child == 0:
        code = 99
        try:
            inject(fault)
            code = 0 if perform(*overrides) in ("finished", "143") else 1
        finally:
            os._exit(code)  # not the hooks of pytest
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == (-signal.SIGKILL if "kill" in fault else 0)


def metrics(seed: str = "seed1") -> list[dict]:
    return [json.loads(line) for line in (FOLDER.with_name(seed) / record.METRICS).read_text().splitlines()]


def events(folder: Path) -> EventAccumulator:
    return EventAccumulator(str(folder)).Reload()


def scalars(accumulator: EventAccumulator, names: Iterable[str] = ()) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard shows under these names, or under those of `shown`."""
    names = names or [*SHOWN, "speed/tokens_per_second"]
    return {name: [(event.step, event.value) for event in accumulator.Scalars(name)] for name in names}


def shown(line: dict) -> dict[str, float]:
    """What tools show of a line of metrics.jsonl."""
    rate = line["tokens"] / line["train_seconds"]
    return {**{name: line[key] for name, key in SHOWN.items()}, "speed/tokens_per_second": rate}


def expected(lines: list[dict]) -> dict[str, list[tuple[int, float]]]:
    """TensorBoard keeps float32."""
    return {name: [(line["step"], float(np.float32(shown(line)[name]))) for line in lines] for name in shown(lines[0])}


def a_run(folder: Path) -> LoggedRun:
    return LoggedRun(folder=folder, name="n", group="g", config={"train": {"lr": 0.1, "betas": [0.9], "clip": None}})
