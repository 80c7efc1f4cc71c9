"""A command that is killed at random moments and run again leaves the results of an undisturbed one."""

import os
import signal
import sys
from collections.abc import Callable
from contextlib import chdir, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from time import monotonic, sleep
from typing import Any

import pytest
from forked import TINY, Child, children, results

import lra.__main__ as commands
import lra.runs.run  # noqa: F401  # children have it: a kill at a random moment seldom meets them while they import

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="children are found in /proc")

HERE = ("out=runs", "cache=cache", "workers=1", "data_dir=null", "max_hours=null")
DATA = tuple(option for option in TINY if option.startswith("task"))
SWEEP = ("--multirun", *TINY, *HERE, "seed=1,2,3", "train.steps=12")


@dataclass(frozen=True)
class Stage:
    """A command of the program `main` to kill; `children`: kill one of its child processes now and then."""

    words: tuple[str, ...]
    main: Callable = commands.train
    children: bool = False

    def start(self) -> Child:
        return Child(*self.words, main=self.main)


STAGES = {
    "plain": Stage((*TINY, *HERE, "train.micro_batch=7", "model.dropout=0")),
    "accumulated": Stage((*TINY, *HERE, "model.dropout=0")),
    "dropout": Stage((*TINY, *HERE, "model.dropout=0.3", "attention=softmax")),
    "pretraining": Stage((*TINY, *HERE, "pretrain=masked", "pretrain.train.steps=12", "pretrain.train.warmup=3")),
    "sweep": Stage(SWEEP),
    "preparation": Stage((*DATA, "task.train_size=1997", "cache=cache", "workers=2"), commands.prepare, children=True),
    "early stopping": Stage((*TINY, *HERE, "train.patience=2", "train.progress=0.999", "train.schedule=constant")),
    "joblib": Stage((*SWEEP, "hydra/launcher=joblib", "hydra.launcher.n_jobs=2"), children=True),
}
QUICK = ("preparation", "pretraining", "sweep")  # with one kill each


@cache
def undisturbed(name: str) -> tuple[dict[str, Any], float]:
    """Return the results of a stage that nothing disturbs, and its seconds."""
    with TemporaryDirectory() as folder, chdir(folder):
        begun = monotonic()
        ended = STAGES[name].start().ends()
        assert ended.code == 0, ended.err
        return results(), monotonic() - begun


def descendants(process: int) -> list[int]:
    """Return the processes that a process has started, and those that these have started."""
    started = children(process)
    return [*started, *(further for child in started for further in descendants(child))]


@pytest.mark.parametrize(
    ("name", "kills"),
    [*((name, 1) for name in QUICK), *(pytest.param(name, 6, marks=pytest.mark.slow) for name in STAGES)],
)
def test_killed_at_random_moments(name: str, kills: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kill a command one to three times, then let it end: its results are those of an undisturbed one."""
    stage, (expected, seconds) = STAGES[name], undisturbed(name)
    assert expected
    rng, done, commands_run = Random(f"{name} {kills}"), 0, 0
    while done < kills:
        folder = tmp_path / str(commands_run)
        folder.mkdir()
        monkeypatch.chdir(folder)
        for _ in range(min(rng.choice((1, 2, 3)), kills - done)):
            child, number = stage.start(), rng.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGTERM))
            sleep(rng.uniform(0, 0.95) * seconds)
            further = descendants(child.process) if stage.children and number == signal.SIGKILL else []
            with suppress(ProcessLookupError):
                os.kill(rng.choice([child.process, *further]), number)
            ended = child.ends()
            assert "Traceback" not in ended.err
            done += ended.code != 0
        ended = stage.start().ends()
        assert ended.code == 0, ended.err
        assert results() == expected
        commands_run += 1
    print(f"{name}: {done} kills, {commands_run} commands ended with equal bytes")
