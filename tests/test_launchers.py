"""Sweeps by every launcher leave the same records and lose nothing when workers are killed.

Launchers that are not there are skipped: pip install '.[submitit,ray]'; bash scripts/slurm.sh start.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest
from forked import results
from support import Commands

from lra.cli import train
from lra.core.files import holder
from lra.records import record
from lra.records.names import CONFIG, LOCK, RECORD

pytestmark = pytest.mark.launcher

SMOKE = ("--multirun", "experiment=smoke", "out=runs")
SIX = (*SMOKE, "system=simple,transformer,linear", "seed=1,2")
PLUGINS = {"joblib": "joblib", "submitit_local": "submitit", "submitit_slurm": "submitit", "ray": "ray"}

BAD = '''
import os, signal
from pathlib import Path
from lra.mixers.softmax import Softmax

class Bad(Softmax):
    """From its first evaluation on, and until a file `repaired` is there, it fails or is killed."""

    def __init__(self, shape, *, what: str) -> None:
        super().__init__(shape, scale="head_dim")
        self.what = what

    def attend(self, q, k, v, key_mask):
        measured = Path(f"runs/listops/paper/{self.what}/transformer/seed1/metrics.jsonl")
        if self.training and measured.exists() and not Path("repaired").exists():
            if self.what == "fails":
                raise RuntimeError("the machine is on fire")
            if self.what == "dies":
                os.kill(os.getpid(), signal.SIGKILL)
        return super().attend(q, k, v, key_mask)
'''


def launcher(name: str) -> tuple[str, ...]:
    """Return the overrides that choose a launcher; the test is skipped where the launcher is missing."""
    if name == "basic":
        return ()
    if not find_spec(f"hydra_plugins.hydra_{PLUGINS[name]}_launcher"):
        pytest.skip(f"hydra-{PLUGINS[name]}-launcher is not installed")
    if name != "submitit_slurm":
        return (f"hydra/launcher={name}",)
    if not shutil.which("sinfo") or subprocess.run(["sinfo"], capture_output=True, check=False).returncode:
        pytest.skip("no SLURM answers")
    return ("hydra/launcher=submitit_slurm", "hydra.launcher.cpus_per_task=1")


def command(*arguments: str) -> tuple[int, str]:
    """Exit code and standard error of lra-train in a process of its own."""
    line = [sys.executable, "-m", "lra", "train", *arguments]
    done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=500)
    return done.returncode, done.stderr


def session(leader: int) -> list[str]:
    """The command lines of the processes that still belong to a session."""
    lines = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, number = path.read_text().rsplit(")", 1)[1].split()[:4]
            if int(number) == leader and state != "Z":
                lines.append((path.parent / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return lines


@pytest.mark.parametrize("name", PLUGINS)
def test_every_launcher_leaves_the_same_records(cli: Commands, name: str) -> None:
    overrides = launcher(name)
    assert cli(train.main, *SIX)[0] == 0
    expected = results(Path("runs"))
    assert sum(RECORD in path for path in expected) == 6
    code, err = command(*SIX, "out=second", *overrides)
    assert code == 0, err
    assert "6 of 6 runs finished" in err
    assert results(Path("second")) == expected


@pytest.mark.parametrize("name", ["joblib", "submitit_local"])
def test_a_sweep_survives_a_failing_and_a_killed_run(cli: Commands, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    overrides = launcher(name)
    Path("bad.py").write_text(BAD)
    options = Path("options/attention")
    options.mkdir(parents=True)
    for what in ("fails", "dies"):
        text = f"_target_: bad.Bad\n_partial_: true\nwhat: {what}\n"
        (options / f"{what}.yaml").write_text(text)
    monkeypatch.setenv("PYTHONPATH", f"{Path.cwd()}:{Path(train.__file__).parents[2]}")
    line = ("--config-dir", "options", *SMOKE, "attention=dies,fails,simple", *overrides)
    code, err = command(*line)
    assert code == 1, err
    assert "Traceback" not in err
    assert "runs/listops/paper/dies/transformer/seed1: killed: the process ended without a record" in err
    Path("repaired").touch()
    code, err = command(*line)
    assert code == 0, err
    assert "3 of 3 runs finished" in err
    assert {record.read(path)["status"] for path in Path("runs").rglob(RECORD)} == {"finished"}


@pytest.mark.parametrize("asked", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("name", ["basic", "joblib"])
def test_a_stopped_sweep_leaves_no_process_behind(cli: Commands, name: str, asked: signal.Signals) -> None:
    """Ctrl-C as a terminal sends it, to the whole group; SIGTERM to the driver alone."""
    line = (*SMOKE, "seed=1,2,3", "train.eval_every=10", "checkpoint.steps=10", "max_hours=null", *launcher(name))
    line += ("hydra.launcher.n_jobs=2",) if name == "joblib" else ()
    driver = subprocess.Popen(
        [sys.executable, "-m", "lra", "train", *line, "train.steps=1000000"],
        stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, start_new_session=True,
    )  # fmt: skip
    first = Path("runs/listops/paper/simple/simple/seed1/checkpoint.safetensors")
    while not first.exists() and driver.poll() is None:
        time.sleep(0.05)
    if asked == signal.SIGINT:
        os.killpg(driver.pid, asked)
    else:
        driver.send_signal(asked)
    _, err = driver.communicate(timeout=300)
    assert driver.returncode == 128 + asked, err
    assert "Traceback" not in err
    assert "0 of 3 runs finished" in err
    deadline = time.monotonic() + 120
    while session(driver.pid) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert session(driver.pid) == []
    assert not any(holder(path.parent / LOCK) for path in Path("runs").rglob(CONFIG))
