"""Runs and commands in forked children: everything is imported already, so a tiny run takes a fraction of a second."""

import errno
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from tempfile import TemporaryFile
from time import sleep
from typing import Any

import torch
from hydra.core.global_hydra import GlobalHydra
from support import composed, job_of, strip_times

import lra
from lra.__main__ import train
from lra.core.errors import UserError
from lra.core.signals import Paused
from lra.records import record
from lra.records.names import METRICS, RECORD, WEIGHTS
from lra.runs.run import run
from lra.training.progress import TrainingBar

TINY = (
    "task=listops",
    *(f"task.{key}" for key in ("train_size=53", "val_size=23", "test_size=29", "min_length=5", "max_length=30")),
    "task.max_depth=4",
    *(f"model.{key}" for key in ("dim=12", "heads=3", "depth=1", "mlp_dim=17")),
    *(f"train.{key}" for key in ("steps=16", "batch_size=7", "micro_batch=3", "eval_batch=9", "eval_every=5")),
    "train.warmup=4",
    "threads=1",
    "train.selection=last",
    "checkpoint.steps=3",
    "checkpoint.keep=true",
)
POINTS = {
    "step": (TrainingBar, "step"),  # after a step, before its checkpoint
    "evaluation": (TrainingBar, "evaluating"),
    "file written": (os, "fsync"),  # of a temporary file; every second call is of its folder
    "file renamed": (os, "replace"),  # before a temporary file gets its name
}
ACTIONS = {"kill": signal.SIGKILL, "term": signal.SIGTERM, "int": signal.SIGINT, "hup": signal.SIGHUP}


def fork(work: Callable[[], int]) -> int:
    """Start a child of this process that ends with the exit code of `work`, or 99 after an error; returns its id."""
    child = os.fork()
    if child == 0:
        code = 99
        try:
            code = work()
        finally:  # a child never returns to the tests
            os._exit(code)
    return child


def exit_code(child: int) -> int:
    """Wait for a child; returns its exit code, or minus the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def children(process: int) -> list[int]:
    """Return the processes that a process has started and that still run."""
    with suppress(OSError):
        return [int(word) for word in Path(f"/proc/{process}/task/{process}/children").read_text().split()]
    return []


@cache
def warm() -> None:
    """Import in this process all that commands and the first step of a training import later."""
    libraries = ("pyarrow.parquet", "safetensors.torch", "sklearn.feature_extraction.text", "torch.utils.flop_counter")
    for name in (*(module.name for module in walk_packages(lra.__path__, "lra.")), *libraries):
        if "__main__" not in name and "kernel" not in name and "templates" not in name:
            with suppress(ModuleNotFoundError):  # of Triton, where it is not installed
                import_module(name)
    weight = torch.nn.Parameter(torch.ones(3))
    weight.sum().backward()
    torch.optim.AdamW([weight], fused=True).step()
    torch.nn.utils.get_total_norm([weight.grad])


def inject(fault: str) -> None:
    """Act in a child when it passes a point for the N-th time; POINT:N:ACTION, one of ACTIONS or `full` (the disk)."""
    if fault:
        point, number, action = fault.split(":")
        when(*POINTS[point], int(number), no_space if action == "full" else sending(ACTIONS[action]))()


def no_space(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def when(place: Any, name: str, number: int, act: Callable) -> Callable[[], None]:
    """Return a function that makes the `number`-th call of `name` in a module or class call `act` first."""

    def change() -> None:
        original, calls = getattr(place, name), []

        def changed(*arguments: Any, **named: Any) -> Any:
            calls.append(1)
            if len(calls) == number:
                act(*arguments)
            return original(*arguments, **named)

        setattr(place, name, changed)

    return change


def sending(*numbers: int) -> Callable:
    """Return a function that sends these signals to its process, one after the other."""

    def act(*_: Any) -> None:
        for number in numbers:
            os.kill(os.getpid(), number)
            sleep(0.01)  # Python handles a signal between two of its instructions

    return act


# ---------------------------------------------------------------- runs


def trained(*overrides: str, fault: str = "") -> int:
    """Do a tiny run in a child; returns its exit code, or minus the signal that ended it."""
    warm()
    composed(*TINY, *overrides)  # the child finds it in the cache

    def work() -> int:
        inject(fault)
        silence = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silence, 1), os.dup2(silence, 2)
        try:
            return {"finished": 0, "skipped": 0}.get(run(job_of(*TINY, *overrides)), 1)
        except Paused as pause:
            return pause.code
        except UserError:
            return 2

    return exit_code(fork(work))


def run_folder(out: str | Path = "runs") -> Path:
    return next(Path(out).rglob("seed1"))


def results(folder: Path = Path()) -> dict[str, Any]:
    """Return records, evaluations, weights and arrays below a folder by path, without times and resumes."""
    kept: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.name == RECORD:
            kept[name] = strip_times(record.read(path)) | {"resumes": None}
        elif path.name == METRICS:
            kept[name] = [strip_times(json.loads(line)) for line in path.read_text().splitlines()]
        elif path.name == WEIGHTS or path.suffix == ".npy":
            kept[name] = path.read_bytes()
    return kept


def result(out: str | Path = "runs") -> dict[str, Any]:
    """Return `results` of the only run below a folder, and the names of its files."""
    folder = run_folder(out)
    kept = results(folder)
    del kept[RECORD]["settings"]  # keys that a sweep varies or a command sets
    return kept | {"files": {path.name for path in folder.iterdir() if not path.name.startswith(".")}}


# ---------------------------------------------------------------- commands


@dataclass(frozen=True)
class Ended:
    """A command that ended: its exit code, or minus the signal that ended it, and its output."""

    code: int
    out: str
    err: str


class Child:
    """A command that runs in a child, which calls `inside` first."""

    def __init__(self, *arguments: str, main: Callable = train, inside: Callable[[], object] = lambda: None) -> None:
        warm()
        self._files = TemporaryFile(), TemporaryFile()  # noqa: SIM115

        def work() -> int:
            signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it in background commands
            for number, file in enumerate(self._files, start=1):
                os.dup2(file.fileno(), number)
            sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1) for number in (1, 2))
            sys.argv = ["lra", *arguments]
            return _code(main, inside)

        self.process = fork(work)

    def ends(self) -> Ended:
        """Wait for it."""
        code, output = exit_code(self.process), []
        for file in self._files:
            with file:
                file.seek(0)
                output.append(file.read().decode())
        return Ended(code, *output)


def command(*arguments: str, **how: Any) -> Ended:
    """Run a command to its end."""
    return Child(*arguments, **how).ends()


def _code(main: Callable, inside: Callable) -> int:
    code = 99
    try:
        GlobalHydra.instance().clear()
        inside()
        main()
        code = 0
    except SystemExit as stop:
        code = stop.code or 0
    except BaseException:
        traceback.print_exc()
    with suppress(OSError):
        sys.stdout.flush()
    return code
