"""The wheel, built here and run somewhere else."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from lra.core.paths import CHECKOUT

pytestmark = pytest.mark.skipif(not (CHECKOUT / "pyproject.toml").exists(), reason="not a checkout")


def call(*command: str, cwd: Path, **environment: str) -> str:
    done = subprocess.run(
        command, cwd=cwd, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, installed into a folder of its own."""
    folder = tmp_path_factory.mktemp("wheel")
    call(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), cwd=CHECKOUT)
    [wheel] = folder.glob("*.whl")
    install = ("-m", "pip", "install", "--quiet", "--no-deps", "--disable-pip-version-check", "--no-compile")
    call(sys.executable, *install, "--target", str(folder / "site"), str(wheel), cwd=folder)
    return folder / "site"


@pytest.mark.parametrize("entry", [["-m", "lra", "train"], ["bin/lra-train"]], ids=["module", "script"])
def test_runs_in_an_empty_folder(site: Path, tmp_path: Path, entry: list[str]) -> None:
    start = [str(site / entry[0])] if entry[0].startswith("bin") else entry
    out = call(
        sys.executable, *start, "--multirun", "experiment=smoke", "system=simple,transformer", "seed=1,2",
        cwd=tmp_path, PYTHONPATH=str(site), LRA_CACHE=str(tmp_path / "cache"),
    )  # fmt: skip
    assert "# Results: smoke" in out
    assert "| Simple |" in (tmp_path / "runs/smoke/README.md").read_text()
    assert call(sys.executable, "-m", "lra", "report", "runs/smoke", cwd=tmp_path, PYTHONPATH=str(site)) in out + "\n"


def test_the_installed_package_is_the_one_that_ran(site: Path, tmp_path: Path) -> None:
    where = call(
        sys.executable,
        "-c",
        "import lra.core.paths; print(lra.core.paths.conf_dir())",
        cwd=tmp_path,
        PYTHONPATH=str(site),
    )
    assert Path(where.strip()) == site / "lra" / "conf"
    assert (site / "lra" / "py.typed").exists()


def test_an_attention_of_ones_own_needs_no_checkout(site: Path, tmp_path: Path) -> None:
    here = {"cwd": tmp_path, "PYTHONPATH": str(site)}
    call(sys.executable, str(site / "bin/lra-new"), "attention", "mine", **here)
    out = call(sys.executable, str(site / "bin/lra-check"), "attention=mine", "growth=[]", "lengths=[2]", **here)
    assert out.endswith("all laws are kept\n")


@pytest.mark.slow
def test_your_attention_in_ten_minutes(site: Path, tmp_path: Path) -> None:
    """The commands of the page as they stand, and the test that they write."""
    here = {"cwd": tmp_path, "PYTHONPATH": str(site), "LRA_CACHE": str(tmp_path / "cache")}
    page = (CHECKOUT / "docs" / "your-attention.md").read_text()
    for block in re.findall(r"^```bash\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
        for line in block.splitlines():
            program, *words = shlex.split(line)
            call(sys.executable, str(site / "bin" / program), *words, **here)
    assert "| Mine | O(L D Dh) |" in (tmp_path / "results/mine/README.md").read_text()
    call(sys.executable, "-m", "pytest", "-q", "test_mine.py", **here)
