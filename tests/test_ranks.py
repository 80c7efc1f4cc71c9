"""Data parallel: any number of processes gives the numbers of one, and losing one loses nothing.

Ranks are forked from this process and meet over a file; what `launch` and torchrun add is tested with commands.
"""

import json
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from lra.core.subprocesses import die_with_parent
from support import TINY_MODEL, Commands, model_of, small_recipe, stub_task
from torch import distributed as process_groups

from lra.cli import train
from lra.core.signals import Paused
from lra.records import record
from lra.training import distributed
from lra.training.divergence import Diverged
from lra.training.evaluate import Predictions, Score, evaluate
from lra.training.fit import Training, fit

SYSTEMS = [
    ("attention=simple",),
    ("attention=softmax", "protocol=strict"),
    ("attention=performer", "attention.redraw_every=5"),
    ("attention=reformer", "attention.chunk=5"),
    ("attention=s4d",),
    ("attention=gmm_rks", "attention.samples=3"),
]


def together(processes: int, folder: Path, work: Callable[[], object]) -> list:
    """What `work()` returns on each of so many ranks."""
    children = []
    for number in range(processes):
        child = os.fork()
        if child:
            children.append(child)
            continue
        try:
            meet = f"file://{folder}/meet{processes}"
            process_groups.init_process_group("gloo", init_method=meet, rank=number, world_size=processes)
            (folder / f"{number}").write_bytes(pickle.dumps(work()))
            process_groups.destroy_process_group()
            os._exit(0)
        finally:
            os._exit(1)
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0] * processes
    return [pickle.loads((folder / f"{number}").read_bytes()) for number in range(processes)]


@pytest.mark.parametrize("system", SYSTEMS, ids=lambda system: system[0].removeprefix("attention="))
def test_any_number_of_ranks_trains_as_one(tmp_path: Path, system: tuple[str, ...]) -> None:
    """Losses of 11 steps with dropout, weights, tokens, and counts of an evaluation."""
    task = stub_task()
    recipe = small_recipe(steps=11, clip_norm=1.0)

    def work() -> tuple:
        torch.manual_seed(1)
        model = model_of(*TINY_MODEL, "model.dropout=0.3", *system, task=task).double()
        losses, tokens = [], []

        def on_step(_step: int, loss: float, seen: object) -> None:
            losses.append(loss)
            tokens.append(seen)

        training = Training(model, recipe)
        history = list(fit(training, task, recipe, seed=3, precision="fp32", on_step=on_step))
        weights = torch.cat([value.flatten() for value in model.state_dict().values() if value.is_floating_point()])
        return losses, tokens, [(now.val.correct, now.val.examples) for now in history], weights.numpy()

    losses, tokens, counts, weights = work()
    for processes in (2, 3):
        by_rank = together(processes, tmp_path, work)
        for of_rank in by_rank:
            np.testing.assert_allclose(of_rank[0], losses, rtol=0, atol=1e-9)
            assert [seen.real for seen in of_rank[1]] == [seen.real for seen in tokens]
            assert of_rank[2] == counts
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

            def agree(*_: int) -> None:
                """Takes all ranks, although the numbers of their parts differ."""
                distributed.first_from_any_rank(None)

            return evaluate(model, task.val, 5, precision="fp32", keep=keep, on_part=agree), keep

        alone, kept = work()
        folder = tmp_path / str(examples)
        folder.mkdir()
        for score, keep in together(3, folder, work):
            assert (score.correct, score.examples) == (alone.correct, alone.examples) == (alone.correct, examples)
            assert score.loss == pytest.approx(alone.loss, rel=1e-12)
            assert keep.classes.tolist() == kept.classes.tolist()
            np.testing.assert_allclose(keep.confidence, kept.confidence, rtol=1e-12)


def test_one_rank_asks_and_all_hear(tmp_path: Path) -> None:
    def work() -> tuple:
        pause = distributed.first_from_any_rank(Paused("SIGUSR1", 75) if distributed.rank() == 1 else None)
        return str(pause), pause.code, distributed.first_from_any_rank(None)

    assert together(3, tmp_path, work) == [("SIGUSR1", 75, None)] * 3


def test_a_loss_that_is_not_finite_in_one_share_stops_all(tmp_path: Path) -> None:
    """The poison is in a token that only one rank reads."""
    task = stub_task()
    recipe = small_recipe(batch_size=2, micro_batch=1)

    def work() -> str:
        torch.manual_seed(1)
        model = model_of(*TINY_MODEL, task=task).double()

        def poison(step: int, *_: object) -> None:
            if step == 2 and distributed.rank() == 1:
                with torch.no_grad():
                    model.head[0].bias[0] = float("nan")

        with pytest.raises(Diverged) as stop:
            list(fit(Training(model, recipe), task, recipe, seed=3, precision="fp32", on_step=poison))
        return str(stop.value)

    first, second = together(2, tmp_path, work)
    assert first == second
    assert "the loss of step 2 is nan" in first
    assert "in micro-batch 0, head.0 gives values up to nan" in first


@pytest.mark.parametrize(
    "variables", [distributed.TORCHRUN_VARIABLES, distributed.SLURM_VARIABLES], ids=["torchrun", "srun"]
)
def test_a_sweep_in_every_rank_is_refused(
    cli: Commands, monkeypatch: pytest.MonkeyPatch, variables: tuple[str, ...]
) -> None:
    for variable in variables:
        monkeypatch.setenv(variable, "2")
    code, _, err = cli(train.main, "--multirun", "experiment=smoke", "seed=1,2")
    assert code == 2
    assert "start it once, without torchrun or srun, with train.processes=2" in err
    code, _, err = cli(train.main, "experiment=smoke", "train.processes=3")
    assert code == 2
    assert "train.processes=3, but 2 processes were started" in err


def test_variables_of_slurm_become_those_of_torchrun() -> None:
    variables = {
        "SLURM_PROCID": "3",
        "SLURM_STEP_NUM_TASKS": "4",
        "SLURM_LOCALID": "1",
        "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
        "SLURM_STEP_NODELIST": "gpu-[07-08]",
        "SLURM_JOB_ID": "11",
        "SLURM_STEP_ID": "0",
    }
    distributed._from_slurm(variables)
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    assert [variables[name] for name in names] == ["3", "4", "1", "2", "gpu-07", "20077"]
    variables["RANK"] = "torchrun's"
    distributed._from_slurm(variables)
    assert variables["RANK"] == "torchrun's"


def test_ranks_leave_their_group_after_an_exception_too(monkeypatch: pytest.MonkeyPatch) -> None:
    left = []
    for variable in distributed.TORCHRUN_VARIABLES:
        monkeypatch.setenv(variable, "2")
    monkeypatch.setattr(process_groups, "init_process_group", lambda *_, **__: None)
    monkeypatch.setattr(process_groups, "destroy_process_group", lambda: left.append(True))
    with pytest.raises(ValueError, match="fire"), distributed.joined("cpu"):
        raise ValueError("fire")
    assert left == [True]


@pytest.mark.parametrize("asked", [signal.SIGINT, signal.SIGTERM])
def test_a_rank_that_has_returned_is_not_ended_by_a_signal(asked: signal.Signals) -> None:
    """It waits until the launcher has its result; were it gone, the launcher would wait for it for ever."""
    child = os.fork()
    if not child:
        result = 99
        try:
            result = distributed._child(os.getppid(), lambda: 3)
            os.kill(os.getpid(), asked)
        finally:
            os._exit(result)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3


@pytest.mark.parametrize("early", [True, False], ids=["before it asks for that", "after"])
def test_a_child_ends_with_the_process_that_started_it(tmp_path: Path, early: bool) -> None:
    """However that ends."""
    parent = os.fork()
    if parent == 0:
        try:
            os.setpgid(0, 0)
            pid = os.getpid()
            if os.fork() == 0:
                (tmp_path / "begun").touch()
                while early and os.getppid() == pid:
                    time.sleep(0.01)
                die_with_parent(pid)
                (tmp_path / "asked").touch()
            time.sleep(60)
        finally:
            os._exit(99)
    wait_for(tmp_path / ("begun" if early else "asked"))
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        try:
            os.killpg(parent, 0)
        except ProcessLookupError:
            return
        time.sleep(0.01)
    os.killpg(parent, signal.SIGKILL)
    pytest.fail("the child lives on")


# ---------------------------------------------------------------- commands

LONG = ("experiment=smoke", "train.steps=900", "train.eval_every=150", "checkpoint.steps=20", "train.batch_size=9")
FOLDER = Path("runs/listops/paper/simple/simple/seed1")


def start(*arguments: str, module: tuple[str, ...] = ()) -> subprocess.Popen:
    command = [sys.executable, *module, "-m", "lra", "train", *LONG, "out=runs", *arguments]
    return subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 120
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.05)


def children(parent: int) -> list[int]:
    pids = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rsplit(")", 1)[1].split()
            command = (path.parent / "cmdline").read_text()
        except OSError:
            continue
        if int(fields[1]) == parent and "spawn_main" in command:
            pids.append(int(path.parent.name))
    return sorted(pids)


def measured(folder: Path) -> list[dict]:
    lines = [json.loads(line) for line in (folder / record.METRICS).read_text().splitlines()]
    return [{key: line[key] for key in ("step", "val_accuracy", "tokens")} for line in lines]


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_killing_a_rank_ends_the_run_and_the_same_command_goes_on(cli: Commands, victim: int) -> None:
    launcher = start("train.processes=3")
    wait_for(FOLDER / "checkpoint.json")
    os.kill(children(launcher.pid)[victim], signal.SIGKILL)
    _, err = launcher.communicate(timeout=300)
    assert launcher.returncode == 1
    assert f"failed: rank {victim} of 3 ended with SIGKILL; the same command goes on" in err
    assert "Traceback" not in err
    if victim:
        run = record.read(FOLDER / record.NAME)
        assert (run["status"], run["reason"]) == ("failed", "Lost: another rank was lost")
    again = start("train.processes=3")
    _, err = again.communicate(timeout=300)
    assert again.returncode == 0, err
    assert "goes on from step" in err
    run = record.read(FOLDER / record.NAME)
    assert (run["status"], run["processes"], run["resumes"]) == ("finished", 3, 1)
    assert [line["step"] for line in measured(FOLDER)] == list(range(150, 901, 150))
    assert {path.name for path in FOLDER.iterdir()} <= {
        "config.json",
        "metrics.jsonl",
        "predictions.npy",
        "record.json",
        ".run.lock",
    }


@pytest.mark.slow
@pytest.mark.parametrize(("asked", "code"), [(signal.SIGTERM, 75), (signal.SIGUSR1, 75), (signal.SIGINT, 130)])
def test_a_signal_pauses_all_ranks(cli: Commands, asked: signal.Signals, code: int) -> None:
    """SIGINT as a terminal sends it, to the whole group; nothing is left behind."""
    launcher = start("train.processes=2")
    wait_for(FOLDER / "checkpoint.json")
    theirs = children(launcher.pid)
    for process in [*(theirs if asked == signal.SIGINT else []), launcher.pid]:
        os.kill(process, asked)
    wait_for(FOLDER / record.NAME)
    _, err = launcher.communicate(timeout=25)  # torch's launcher gives ranks 30 s to end, and waits for all of them
    assert launcher.returncode == code, err
    assert "Traceback" not in err
    assert "torch/distributed" not in err
    run = record.read(FOLDER / record.NAME)
    assert (run["status"], run["reason"]) == ("paused", asked.name)
    assert not [process for process in theirs if Path(f"/proc/{process}").exists()]
    again = start("train.processes=2")
    again.communicate(timeout=300)
    assert again.returncode == 0
    assert record.read(FOLDER / record.NAME)["resumes"] == 1


@pytest.mark.slow
def test_nothing_outlives_the_process_that_started_the_ranks(cli: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a process nor a folder for what is temporary."""
    Path("temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(Path("temporary").absolute()))
    launcher = start("train.processes=2")
    wait_for(FOLDER / "checkpoint.json")
    theirs = children(launcher.pid)
    assert len(theirs) == 2
    launcher.kill()
    launcher.wait()
    launcher.stderr.close()
    deadline = time.monotonic() + 120
    while any(Path(f"/proc/{process}").exists() for process in theirs) and time.monotonic() < deadline:
        time.sleep(0.05)
    left = [process for process in theirs if Path(f"/proc/{process}").exists()]
    for process in left:
        os.kill(process, signal.SIGKILL)
    assert (left, list(Path("temporary").glob("lra-*"))) == ([], [])


@pytest.mark.slow
def test_every_rank_of_a_call_from_python_has_the_record(cli: Commands) -> None:
    """Twice: the second call finds the run finished."""
    options = ("experiment=smoke", "attention=simple", "out=called", "seed=1")
    told = "open('rank' + os.environ['RANK'], 'a').write(f'{lra.train(*OPTIONS).score} ')"
    Path("call.py").write_text(f"import lra, os\nOPTIONS = {options}\nif __name__ == '__main__':\n    {told}\n")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "call.py"]
    for _ in range(2):
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
    scores = [Path(f"rank{rank}").read_text().split() for rank in range(2)]
    assert scores[0] == scores[1] == 2 * scores[0][:1]


@pytest.mark.slow
def test_the_ranks_of_torchrun_are_those_of_launch(cli: Commands) -> None:
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    runs = []
    for number, (module, extra) in enumerate([((), "train.processes=2"), (torchrun, "seed=1"), ((), "isolate=true")]):
        launcher = start(extra, f"out=r{number}", "train.steps=100", "train.eval_every=10", module=module)
        _, err = launcher.communicate(timeout=300)
        assert launcher.returncode == 0, err
        folder = Path(f"r{number}") / FOLDER.relative_to("runs")
        runs.append((measured(folder), record.read(folder / record.NAME)["processes"]))
    assert runs[0] == runs[1]
    assert runs[2] == (runs[0][0], 1)
