"""The wheel, built here and run somewhere else."""

import os
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from lra.core.paths import CHECKOUT

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not (CHECKOUT / "pyproject.toml").exists(), reason="not a checkout")]


def call(*command: str, cwd: Path, **environment: str) -> str:
    done = subprocess.run(
        command, cwd=cwd, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the source distribution, and the wheel that is built from it."""
    folder = tmp_path_factory.mktemp("built")
    call(sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), cwd=CHECKOUT)
    return folder


@pytest.fixture(scope="module")
def site(built: Path) -> Path:
    """The wheel, installed into a folder of its own."""
    [wheel] = built.glob("*.whl")
    install = ("-m", "pip", "install", "--quiet", "--no-deps", "--disable-pip-version-check", "--no-compile")
    call(sys.executable, *install, "--target", str(built / "site"), str(wheel), cwd=built)
    return built / "site"


def test_an_index_would_take_both_packages(built: Path) -> None:
    [wheel], [source] = built.glob("*.whl"), built.glob("*.tar.gz")
    said = call(sys.executable, "-m", "twine", "check", "--strict", str(wheel), str(source), cwd=built)
    assert said.count("PASSED") == 2
    checked = call(
        sys.executable, "-m", "check_wheel_contents", "--ignore", "W009", str(wheel), cwd=built
    )  # hydra_plugins
    assert ": OK" in checked


def test_the_wheel_says_the_version_that_it_is(built: Path, site: Path) -> None:
    [wheel] = built.glob("*.whl")
    out = call(sys.executable, "-m", "lra", "train", "--version", cwd=built, PYTHONPATH=str(site))
    assert wheel.name == f"{out.strip().replace(' ', '-')}-py3-none-any.whl"


@pytest.mark.parametrize("entry", [["-m", "lra", "train"], ["bin/lra-train"]], ids=["module", "script"])
def test_runs_in_an_empty_folder(site: Path, tmp_path: Path, entry: list[str]) -> None:
    start = [str(site / entry[0])] if entry[0].startswith("bin") else entry
    out = call(
        sys.executable, *start, "--multirun", "experiment=smoke", "system=simple", "seed=1,2",
        cwd=tmp_path, PYTHONPATH=str(site), LRA_CACHE=str(tmp_path / "cache"),
    )  # fmt: skip
    assert "# Results: smoke" in out
    assert (site / "lra" / "py.typed").exists()
    assert "| Simple |" in (tmp_path / "runs/smoke/README.md").read_text()
    assert call(sys.executable, "-m", "lra", "report", "runs/smoke", cwd=tmp_path, PYTHONPATH=str(site)) in out + "\n"


def test_an_attention_of_ones_own_needs_no_checkout(site: Path, tmp_path: Path) -> None:
    here = {"cwd": tmp_path, "PYTHONPATH": str(site)}
    call(sys.executable, str(site / "bin/lra-new"), "attention", "mine", **here)
    out = call(sys.executable, str(site / "bin/lra-check"), "attention=mine", "lengths=[2]", **here)
    assert out.endswith("all laws are kept\n")
    call(sys.executable, "-m", "pytest", "-q", "test_mine.py", **here)


def installed_with(requirements: list[str]) -> set[str]:
    """The distributions that pip installs for these requirements, as far as they are here."""
    installed: set[str] = set()
    waiting = [(Requirement(each), "") for each in requirements]
    while waiting:
        wanted, extra = waiting.pop()
        name = canonicalize_name(wanted.name)
        if (wanted.marker is None or wanted.marker.evaluate({"extra": extra})) and name not in installed:
            try:
                inner = [Requirement(each) for each in requires(name) or []]
            except PackageNotFoundError:
                continue
            installed.add(name)
            waiting += [(each, chosen) for each in inner for chosen in ("", *wanted.extras)]
    return installed


def test_a_user_who_only_trains_needs_no_extra(tmp_path: Path) -> None:
    """Where no module can be imported but Python's and what `pip install lra` brings, a sweep ends with its report, and
    each logger in one line that says what to install."""
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    plain = installed_with(project["dependencies"]) | {"lra"}
    known = packages_distributions()
    refused = [name for name, owners in known.items() if not {*map(canonicalize_name, owners)} & plain]
    assert {"wandb", "tensorboard", "pytest"} <= set(refused)
    assert not {"torch", "hydra_plugins", "sklearn"} & set(refused)
    program = f"import sys; sys.modules.update(dict.fromkeys({refused!r})); from lra.__main__ import train; train()"
    line = (sys.executable, "-c", program, "--multirun", "experiment=smoke", "system=simple", "seed=1,2")
    environment = {"PYTHONPATH": str(CHECKOUT), "LRA_CACHE": str(tmp_path / "cache")}
    assert "# Results: smoke" in call(*line, cwd=tmp_path, **environment)
    for name in ("wandb", "tensorboard"):
        alone = [*line[:3], "experiment=smoke", "attention=simple", "seed=3", f"logger={name}"]
        done = subprocess.run(alone, cwd=tmp_path, env={**os.environ, **environment}, capture_output=True, text=True)
        said = f"lra-train: error: logger={name}: {name} is not installed; pip install 'lra[{name}]'\n"
        assert (done.returncode, done.stderr) == (2, said)
