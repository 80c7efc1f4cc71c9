"""scripts/background.sh: what has finished comes into the checkout's results, and nothing that stands there goes."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support import Commands

from lra.cli import train
from lra.core.paths import CHECKOUT
from lra.records.names import RECORD, SWEEP

SCRIPT = CHECKOUT / "scripts" / "background.sh"
pytestmark = pytest.mark.skipif(not SCRIPT.exists() or sys.platform != "linux", reason="not a checkout on Linux")


def test_what_was_packed_goes_on_with_the_code_that_it_began_with(tmp_path: Path) -> None:
    """On another machine there is no code yet; a run that is half done decides which."""

    def git(*words: str, folder: Path) -> str:
        named = ("-c", "user.name=lra", "-c", "user.email=lra@localhost")
        done = subprocess.run(["git", "-C", folder, *named, *words], check=True, capture_output=True, text=True)
        return done.stdout.strip()

    checkout, state = tmp_path / "checkout", tmp_path / "state"
    (checkout / "scripts").mkdir(parents=True)
    shutil.copy(SCRIPT, checkout / "scripts")
    git("init", "--quiet", folder=checkout)
    git("add", ".", folder=checkout)
    git("commit", "--quiet", "-m", "then", folder=checkout)
    then = git("rev-parse", "HEAD", folder=checkout)

    def background(*words: str, home: Path = state) -> subprocess.CompletedProcess:
        command = ["bash", str(checkout / "scripts" / "background.sh"), *words]
        return subprocess.run(command, env={**os.environ, "LRA_BACKGROUND": str(home)}, capture_output=True, text=True)

    assert background("update").returncode == 0
    (state / "runs" / "a" / "seed1").mkdir(parents=True)
    (state / "runs" / "a" / "seed1" / "checkpoint.json").write_text("{}")
    assert background("pack", str(tmp_path / "packed.tgz")).stdout.strip() == then
    git("commit", "--quiet", "--allow-empty", "-m", "now", folder=checkout)
    refused = background("update")
    assert (refused.returncode, "a run is half done" in refused.stderr) == (1, True)
    there = tmp_path / "there"
    assert background("unpack", str(tmp_path / "packed.tgz"), home=there).returncode == 0
    assert background("update", home=there).returncode == 0
    assert git("rev-parse", "HEAD", folder=there / "code") == then


@pytest.mark.slow
def test_finished_runs_are_collected_beside_those_that_stand_there(cli: Commands) -> None:
    """A run that is half done stays where it is; what either folder declares is declared."""
    smoke = ("--multirun", "experiment=smoke", "protocol=strict", "system=simple")
    assert cli(train.main, *smoke, "seed=3", "out=results/small")[0] == 0
    assert cli(train.main, *smoke, "seed=1,2", "out=state/results/small")[0] == 0
    cell = Path("results/small/listops/strict/simple/simple")
    here = {path: path.read_bytes() for path in cell.rglob("*") if path.is_file()}
    (Path("state") / cell / "seed2" / RECORD).unlink()
    shutil.copytree("state/results/small", "state/results/begun", ignore=shutil.ignore_patterns(RECORD))

    Path("scripts").mkdir()
    shutil.copy(SCRIPT, "scripts")
    Path(".venv").symlink_to(sys.prefix)
    state = {"LRA_BACKGROUND": str(Path("state").resolve())}
    subprocess.run(["bash", "scripts/background.sh", "collect"], check=True, env={**os.environ, **state})
    assert sorted(path.parent.name for path in Path("results").rglob(RECORD)) == ["seed1", "seed3"]
    assert {path: path.read_bytes() for path in here} == here
    [declared] = json.loads(Path("results/small", SWEEP).read_bytes())["cells"]
    assert declared["seeds"] == [1, 2, 3]
    assert "2/3" in Path("results/small/README.md").read_text()
