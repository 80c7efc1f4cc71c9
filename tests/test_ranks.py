"""Data parallel: any number of processes gives the numbers of one, and a killed process loses no result.

Ranks are forked from this process and meet over a file; what torchrun adds is tested with commands.
"""

import json
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from forked import children, exit_code, fork
from support import TINY_MODEL, Commands, model_of, small_recipe, stub_task, train_model
from torch import distributed as process_groups

from lra.cli import train
from lra.core.signals import Paused, StopFlag
from lra.records import record
from lra.records.names import METRICS
from lra.training import distributed
from lra.training.evaluate import Predictions, Score, evaluate
from lra.training.optimizer import Diverged
from lra.training.trainer import Trainer

SYSTEMS = [
    ("attention=simple",),
    pytest.param(("attention=softmax", "protocol=strict"), marks=pytest.mark.slow),
    ("attention=performer", "attention.redraw_every=5"),
    pytest.param(("attention=s4d",), marks=pytest.mark.slow),
    pytest.param(("attention=reformer", "attention.chunk=5"), marks=pytest.mark.slow),
    pytest.param(("attention=gmm_rks", "attention.samples=3"), marks=pytest.mark.slow),
]


def together(processes: int, folder: Path, work: Callable[[], object]) -> list:
    """Return the results of `work()` on each rank."""

    def rank(number: int) -> int:
        meet = f"file://{folder}/meet{processes}"
        process_groups.init_process_group("gloo", init_method=meet, rank=number, world_size=processes)
        (folder / f"{number}").write_bytes(pickle.dumps(work()))
        process_groups.destroy_process_group()
        return 0

    started = [fork(partial(rank, number)) for number in range(processes)]
    assert [exit_code(child) for child in started] == [0] * processes
    return [pickle.loads((folder / f"{number}").read_bytes()) for number in range(processes)]


@pytest.mark.parametrize("system", SYSTEMS, ids=lambda system: system[0].removeprefix("attention="))
def test_any_number_of_ranks_trains_as_one(tmp_path: Path, system: tuple[str, ...]) -> None:
    """Losses of 11 steps with dropout, weights, tokens, and counts of an evaluation."""
    task = stub_task()
    recipe = small_recipe(steps=11, clip_norm=1.0)

    def work() -> tuple:
        torch.manual_seed(1)
        model = model_of(*TINY_MODEL, "model.dropout=0.3", *system, task=task).double()
        trainer = train_model(model, task, recipe)
        weights = torch.cat([value.flatten() for value in model.state_dict().values() if value.is_floating_point()])
        return trainer.losses, trainer.tokens, [line["val_accuracy"] for line in trainer.lines], weights.numpy()

    losses, tokens, accuracies, weights = work()
    for processes in (2, 3):
        by_rank = together(processes, tmp_path, work)
        for of_rank in by_rank:
            np.testing.assert_allclose(of_rank[0], losses, rtol=0, atol=1e-9)
            assert of_rank[1].real == tokens.real
            assert of_rank[2] == accuracies
            np.testing.assert_allclose(of_rank[3], weights, rtol=1e-6, atol=1e-9)
            assert (of_rank[3] == by_rank[0][3]).all(), "ranks hold the same weights to the bit"


@pytest.mark.parametrize("protocol", ["paper", "strict"])
def test_an_evaluation_counts_every_example_once(tmp_path: Path, protocol: str) -> None:
    """Splits that no number of ranks divides, and one with fewer examples than ranks."""
    for examples in (23, 2):
        task = stub_task(examples)
        torch.manual_seed(1)
        model = model_of(*TINY_MODEL, f"protocol={protocol}", task=task).double()

        def work(task=task, model=model) -> tuple[Score, Predictions]:
            keep = Predictions(len(task.val))
            # The flag takes all ranks, although the numbers of their parts differ.
            return evaluate(model, task.val, 5, precision="fp32", keep=keep, stop=StopFlag()), keep

        alone, kept = work()
        folder = tmp_path / str(examples)
        folder.mkdir()
        for score, keep in together(3, folder, work):
            assert (score.correct, score.examples) == (alone.correct, alone.examples) == (alone.correct, examples)
            assert score.loss == pytest.approx(alone.loss, rel=1e-12)
            assert keep.classes.tolist() == kept.classes.tolist()


def test_a_pause_of_one_rank_reaches_all(tmp_path: Path) -> None:
    def work() -> tuple:
        pause = distributed.first_from_any_rank(Paused("SIGTERM", 143) if distributed.rank() == 1 else None)
        return str(pause), pause.code, distributed.first_from_any_rank(None)

    assert together(3, tmp_path, work) == [("SIGTERM", 143, None)] * 3


def test_a_loss_that_is_not_finite_in_one_share_stops_all(tmp_path: Path) -> None:
    """One of the ranks gets a weight that is NaN."""
    task = stub_task()
    recipe = small_recipe(batch_size=2, micro_batch=1)

    def work() -> str:
        torch.manual_seed(1)
        model = model_of(*TINY_MODEL, task=task).double()

        trainer = Trainer(model, task, recipe, seed=3, precision="fp32")

        def poison(*_: object) -> None:
            if trainer.step == 2 and distributed.rank() == 1:
                with torch.no_grad():
                    model.head[0].bias[0] = float("nan")

        with pytest.raises(Diverged) as error:
            trainer.train(StopFlag(), poison)
        return str(error.value)

    first, second = together(2, tmp_path, work)
    assert first == second
    assert "the loss of step 2 is nan" in first


def test_a_sweep_in_every_rank_is_refused(cli: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in distributed.VARIABLES:
        monkeypatch.setenv(variable, "2")
    code, _, err = cli(train.main, "--multirun", "experiment=smoke", "seed=1,2")
    assert (code, err.count("\n")) == (2, 1)
    assert "torchrun" in err


@pytest.mark.parametrize("more", [("train.batch_size=1", "train.micro_batch=1"), ("protocol=s4",)])
def test_more_ranks_than_can_share_a_batch_are_refused(
    cli: Commands, monkeypatch: pytest.MonkeyPatch, more: tuple[str, ...]
) -> None:
    """A norm over the batch has the moments of one rank only."""
    for variable in distributed.VARIABLES:
        monkeypatch.setenv(variable, "2")
    code, _, err = cli(train.main, "experiment=smoke", *more)
    assert (code, err.count("\n")) == (2, 1)
    assert "torchrun started 2 processes: at most 1 can share a batch" in err


# ---------------------------------------------------------------- commands

LONG = ("experiment=smoke", "train.steps=900", "train.eval_every=150", "checkpoint.steps=20", "train.batch_size=9")
FOLDER = Path("runs/listops/paper/simple/simple/train.batch_size=9,train.eval_every=150,train.steps=900/seed1")


def start(ranks: int, *arguments: str) -> subprocess.Popen:
    torchrun = ("torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)) if ranks > 1 else ()
    command = [sys.executable, *(("-m", *torchrun) if torchrun else ()), "-m", "lra", "train", *LONG, *arguments]
    return subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)


def ended(process: subprocess.Popen) -> str:
    _, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return err


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 120
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.05)


def measured(folder: Path) -> list[dict]:
    lines = [json.loads(line) for line in (folder / METRICS).read_text().splitlines()]
    return [{key: line[key] for key in ("step", "val_accuracy", "tokens")} for line in lines]


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_rank_ends_the_run_and_the_same_command_resumes_it(cli: Commands, victim: int) -> None:
    launcher = start(3, "out=runs")
    wait_for(FOLDER / "checkpoint.safetensors")
    os.kill(sorted(children(launcher.pid))[victim], signal.SIGKILL)
    launcher.communicate(timeout=300)
    assert launcher.returncode == 1
    assert "resumes from step" in ended(start(3, "out=runs"))
    run = record.read(FOLDER / record.NAME)
    assert (run["status"], run["processes"], run["resumes"]) == ("finished", 3, 1)
    assert [line["step"] for line in measured(FOLDER)] == list(range(150, 901, 150))


@pytest.mark.slow
def test_ranks_of_torchrun_measure_what_one_process_does(cli: Commands) -> None:
    short = ("train.steps=100", "train.eval_every=10")
    for ranks in (1, 2):
        ended(start(ranks, f"out=r{ranks}", *short))
    alone, shared = (next(Path(f"r{ranks}").rglob("seed1")) for ranks in (1, 2))
    assert measured(alone) == measured(shared)
    assert record.read(shared / record.NAME)["processes"] == 2
