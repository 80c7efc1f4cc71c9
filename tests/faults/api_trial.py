"""Public functions of `lra` with wrong arguments, in hostile folders, and interrupted: only the errors that docs/api.md
names, and nothing of the process is another afterwards."""

import gc
import hashlib
import json
import locale
import logging
import os
import pickle
import random
import resource
import signal
import sys
import threading
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
import torch
from faults.harmless import bounded, visible
from faults.hostile import drawn, results, rewrite
from faults.hostile_runs import VALUES, spoiled
from faults.runs import TINY, command
from faults.trial import Case, Outcome, Verdict
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig

import lra
from lra.core.files import digest
from lra.core.signals import ASKING
from lra.records import record

NAMES = ("attention", "check", "compare", "compose", "load", "report", "train")
ARGUMENTS: list[Any] = [
    *VALUES, b"x", object(), len, lra, Path("nowhere"), Path("/dev/zero"), float("nan"), np.zeros(3), torch.zeros(2),
    {1, 2},
    int, "task=listops", "simple", ("a",), "\0", "x" * 10**5, "../precious", iter("ab"), lambda: 1 / 0,
]  # fmt: skip


def state(*, torch_draws: bool) -> dict[str, str]:
    """All that a function could leave otherwise in this process; `torch_draws`: it may draw from torch's generator."""
    wakeup = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(wakeup)
    values: dict[str, Any] = {
        "threads": sorted(thread.name for thread in threading.enumerate()),
        "signals": {number: repr(signal.getsignal(number)) for number in sorted(signal.valid_signals())},
        "wakeup": wakeup,
        "timer": signal.getitimer(signal.ITIMER_VIRTUAL),
        "python's random state": random.getstate(),
        "numpy's random state": pickle.dumps(np.random.get_state()),
        "torch's random state": b"" if torch_draws else torch.get_rng_state().numpy().tobytes(),
        "torch": [
            torch.get_default_dtype(), torch.get_num_threads(), torch.get_deterministic_debug_mode(),
            torch.is_grad_enabled(), torch.utils.deterministic.fill_uninitialized_memory, torch.get_default_device(),
            torch.get_float32_matmul_precision(), torch.distributed.is_initialized(), torch.is_inference_mode_enabled(),
        ],
        "working folder": os.getcwd(),
        "environment": sorted(item for item in os.environ.items() if not item[0].startswith("TORCHINDUCTOR_")),
        "warnings": warnings.filters[:],
        "logging": [logging.root.handlers, logging.root.level, logging.root.manager.disable, logging.raiseExceptions],
        "path": sys.path,
        "argv": sys.argv,
        "hooks": [sys.excepthook, threading.excepthook, sys.displayhook, sys.gettrace(), sys.getprofile()],
        "streams": [id(sys.stdout), id(sys.stderr), id(sys.stdin)],
        "files": sorted(_targets()),
        "children": sorted(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()),
        "mask": _mask(),
        "limits": [resource.getrlimit(kind) for kind in (resource.RLIMIT_NOFILE, resource.RLIMIT_STACK)],
        "locale": locale.setlocale(locale.LC_ALL),
        "numpy": [np.geterr(), np.get_printoptions()],
        "pandas": [pd.get_option("display.max_rows"), pd.get_option("display.width")],
        "matplotlib": dict(matplotlib.rcParams),
        "garbage": [gc.isenabled(), gc.get_threshold()],
        "digits": [sys.get_int_max_str_digits(), sys.getrecursionlimit()],
        "hydra": [GlobalHydra.instance().hydra, HydraConfig.instance().cfg],
    }  # fmt: skip
    return {name: hashlib.sha256(repr(value).encode()).hexdigest()[:8] for name, value in values.items()}


def _targets() -> list[str]:
    targets = []
    for path in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            targets.append(os.readlink(path))
    return [target for target in targets if not target.startswith("/proc/")]


def _mask() -> int:
    mask = os.umask(0o22)
    os.umask(mask)
    return mask


def changed(call: Callable[[], Any], *, torch_draws: bool = False) -> tuple[str, list[str]]:
    """How a call ended, and what of the process is another afterwards."""
    before = state(torch_draws=torch_draws)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            call()
        said = "returned"
    except BaseException as error:
        said = f"{type(error).__name__}: {error}"
    gc.collect()
    after = state(torch_draws=torch_draws)
    return said, [name for name in before if before[name] != after[name]]


def tried(injected: str, call: Callable[[], Any], allowed: tuple[str, ...], *, torch_draws: bool = False) -> Outcome:
    """The outcome of a call in a child."""

    def main() -> None:
        print(json.dumps(changed(call, torch_draws=torch_draws)))

    ended = command(main=main, inside=bounded)
    try:
        said, left = json.loads(ended.out.splitlines()[-1])
    except (ValueError, IndexError):
        if -ended.code in ASKING:  # it came before the run listened
            return Outcome(injected, f"ended by signal {-ended.code}", Verdict.REFUSED)
        return Outcome(injected, f"no answer: {ended.code}, {ended.err[-300:]}", Verdict.WRONG)
    kind = said.partition(":")[0]
    wrong = [f"{name} changed" for name in left] + ["more than a line"] * (not visible(said) or "\n" in said)
    wrong += ["an error of no documented kind"] * (kind not in ("returned", *allowed))
    if wrong:
        return Outcome(injected, f"{'; '.join(wrong)}: {said:.300}", Verdict.WRONG)
    return Outcome(injected, f"{said:.200}", Verdict.EQUAL if kind == "returned" else Verdict.REFUSED)


def wrong_arguments(name: str) -> Case:
    """Arguments of any type; a TypeError is Python's own word for those that no signature knows."""

    def case(rng: Random, folder: Path) -> Outcome:
        values = [rng.choice(ARGUMENTS) for _ in range(rng.choice((1, 1, 2)))]
        options = {
            key: rng.choice(ARGUMENTS) for key in rng.sample(OPTIONS[name], rng.randrange(len(OPTIONS[name]) + 1))
        }
        if name == "attention" and rng.random() < 0.7:
            values = ["simple"]
            options = {"width": 8, "heads": 2, "max_len": 5} | options
        call = partial(getattr(lra, name), *values, **options)
        shown = f"lra.{name}({', '.join(f'{value!r:.30}' for value in values)}, {options!r:.60})"
        return tried(shown, call, ("UserError", "TypeError"), torch_draws=name == "attention")

    return case


OPTIONS = {
    "attention": ["width", "heads", "max_len", "dropout", "causal", "bias", "out_proj", "options"],
    "check": [],
    "compare": ["margin"],
    "compose": [],
    "load": ["selection"],
    "report": ["selection", "published"],
    "train": [],
}


def hostile_folder(rng: Random, folder: Path) -> Outcome:
    """One record of many is junk, and names are hostile."""
    paths = results(folder / "runs")
    for path in paths:
        rewrite(path, attention=drawn(rng))
    content = record.read(paths[0]) | {"schema": record.SCHEMA}
    where = spoiled(content, rng)
    paths[0].write_text(json.dumps({"sha256": digest(content), **content}))

    def read() -> None:
        loaded = lra.load("runs")
        assert len(loaded.table) and len(loaded.seeds) and loaded.curves is not None and loaded.predictions is not None
        rows = {name: loaded.system(name) for name in loaded.table.system}
        lra.compare(*list(rows.values())[:2])
        repr(loaded)

    call = rng.choice((read, partial(lra.report, "runs")))
    return tried(f"{where}: lra.{'load' if call is read else 'report'}", call, ("UserError",))


def repeated(rng: Random, folder: Path) -> Outcome:
    """The same call three times: what it takes does not grow."""
    results(folder / "runs")
    calls: dict[str, Callable[[], Any]] = {
        "compose": lambda: lra.compose("task=listops", "attention=simple").describe(),
        "train": lambda: lra.train(*TINY, "out=runs", f"seed={len(list(Path('runs').rglob('seed*')))}"),
        "load": lambda: lra.load("runs").seeds,
        "report": lambda: lra.report("runs"),
        "check": lambda: lra.check("simple", "growth=[]", "lengths=[3]"),
        "attention": lambda: lra.attention("performer", width=6, heads=2, max_len=5)(torch.zeros(1, 4, 6)),
    }
    name = rng.choice(sorted(calls))
    return tried(
        f"lra.{name} three times", lambda: [calls[name]() for _ in range(3)], (), torch_draws=name == "attention"
    )


def interrupted(rng: Random, folder: Path) -> Outcome:
    """KeyboardInterrupt, or a signal, after a number of lines of ours."""
    results(folder / "runs")
    calls: dict[str, Callable[[], Any]] = {
        "compose": lambda: lra.compose("task=listops", "attention=simple"),
        "train": lambda: lra.train(*TINY, "out=trained"),
        "load": lambda: lra.load("runs").table,
        "report": lambda: lra.report("runs"),
        "check": lambda: lra.check("simple", "growth=[]", "lengths=[3]"),
        "attention": lambda: lra.attention("simple", width=6, heads=2, max_len=5),
    }
    name = rng.choice(sorted(calls))
    how = rng.choice(("raised", "SIGINT", *(("SIGTERM", "SIGUSR1") if name == "train" else ())))
    lines = int(10 ** rng.uniform(1, 4.3))

    def call() -> None:
        with After(lines, how):
            calls[name]()

    allowed = ("KeyboardInterrupt", "UserError")
    return tried(f"lra.{name} interrupted by {how} after {lines} calls", call, allowed, torch_draws=name == "attention")


class After:
    """A context in which something happens at the `number`-th call of a function of ours in this thread."""

    def __init__(self, number: int, how: str) -> None:
        self.left, self.how = number, how

    def __enter__(self) -> None:
        sys.setprofile(self._called)

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _called(self, frame: Any, event: str, _: Any) -> None:
        if event != "call" or "/lra/" not in frame.f_code.co_filename:
            return
        self.left -= 1
        if self.left == 0:
            sys.setprofile(None)
            if self.how == "raised":
                raise KeyboardInterrupt
            os.kill(os.getpid(), getattr(signal, self.how))


INPUTS: dict[str, Case] = {
    **{f"lra.{name} with other arguments": wrong_arguments(name) for name in NAMES},
    "the API in a hostile folder": hostile_folder,
    "the API three times": repeated,
    "the API interrupted": interrupted,
}
