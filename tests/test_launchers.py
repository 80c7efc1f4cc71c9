"""A sweep by Ray or submitit loses nothing when its workers are killed, its driver is killed, or a node's disk is full:
the same command goes on, and leaves what an undisturbed sweep leaves."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support import Commands
from test_sweep import SMOKE, command, launcher, left

from lra.cli import train

ELSEWHERE = ("ray", "submitit_local", "submitit_slurm")
NODES = (*SMOKE, "train.steps=20,40", "seed=1,2", "checkpoint.steps=15", "max_hours=null")

pytestmark = pytest.mark.launcher


def undisturbed(cli: Commands) -> dict[str, tuple]:
    """What a sweep in this process leaves."""
    assert cli(train.main, *NODES, "out=expected")[0] == 0
    return without_resumes(left(Path("expected")))


def without_resumes(found: dict[str, tuple]) -> dict[str, tuple]:
    return {
        path: ({key: value for key, value in run.items() if key != "resumes"}, lines)
        for path, (run, lines) in found.items()
    }


@pytest.mark.parametrize("name", ELSEWHERE)
def test_killed_workers_lose_nothing(cli: Commands, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Ray begins by itself again what died, and it goes on from its checkpoint. Without SLURM's accounting submitit
    waits for ever for a job that died, so there a run has a process of its own."""
    expected = undisturbed(cli)
    line = (*NODES, *launcher(name), *(("isolate=true",) if name == "submitit_slurm" else ()))
    monkeypatch.setenv("LRA_FAULT", "step:18:kill")
    code, err = command(*line)
    assert "Traceback" not in err
    if name == "ray":
        assert "4 of 4 runs finished" in err
    else:
        assert code == 1
        assert "0 of 4 runs finished, 4 killed" in err
        monkeypatch.delenv("LRA_FAULT")
        code, err = command(*line)
    assert code == 0, err
    kept = left(Path("runs"))
    assert all(run["resumes"] for run, _ in kept.values())
    assert without_resumes(kept) == expected


@pytest.mark.parametrize("name", ELSEWHERE)
def test_a_full_disk_loses_nothing(cli: Commands, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The shorter runs write two checkpoints, so they have room."""
    expected = undisturbed(cli)
    line = (*NODES, *launcher(name))
    monkeypatch.setenv("LRA_FAULT", "checkpoint written:3:full")
    code, err = command(*line)
    assert code == 1
    assert "No space left on device" in err
    assert "Traceback" not in err
    monkeypatch.delenv("LRA_FAULT")
    code, err = command(*line)
    assert code == 0, err
    assert without_resumes(left(Path("runs"))) == expected


@pytest.mark.parametrize("name", ELSEWHERE)
def test_a_killed_driver_loses_nothing(cli: Commands, name: str) -> None:
    expected = undisturbed(cli)
    line = (*NODES, *launcher(name))
    with subprocess.Popen(
        [sys.executable, "-m", "lra", "train", *line], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    ) as driver:
        while driver.poll() is None and not list(Path("runs").rglob("checkpoint.json")):
            time.sleep(0.05)
        driver.send_signal(signal.SIGKILL)
    assert driver.returncode == -signal.SIGKILL
    until = time.monotonic() + 300  # jobs that SLURM has begun may end by themselves
    while (asked := command(*line))[0] and time.monotonic() < until:
        time.sleep(1)
    assert asked[0] == 0, asked[1]
    assert without_resumes(left(Path("runs"))) == expected
