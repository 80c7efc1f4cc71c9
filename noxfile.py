"""Release checks: `.venv/bin/nox` runs all, `.venv/bin/nox -s package` one; arguments behind `--` go to pytest."""

import sys
import tomllib
from pathlib import Path
from tempfile import TemporaryDirectory

import nox
from packaging.requirements import Requirement

PYTHON = sys.executable  # of .venv, where scripts/install.sh has installed lra
INSTALL = (PYTHON, "-m", "pip", "install", "--quiet", "-c", "constraints.txt", "-e")
SLURM_CONF = "/var/tmp/lra-slurm/slurm.conf"


@nox.session(venv_backend="none")
def tests(session: nox.Session) -> None:
    """Style, types, imports and the default tests."""
    session.run("bash", "scripts/test.sh", *session.posargs)


@nox.session(venv_backend="none")
def slow(session: nox.Session) -> None:
    """Tests of minutes, and the demo."""
    session.run(PYTHON, "-m", "pytest", "-n", "auto", "-m", "slow", *session.posargs)
    with TemporaryDirectory() as folder:
        session.run("bash", "scripts/demo.sh", f"out={folder}/demo")


@nox.session(venv_backend="none")
def oracles(session: nox.Session) -> None:
    """Attentions against the implementations of other libraries."""
    session.run(*INSTALL, ".[oracles]")
    session.run(PYTHON, "-m", "pytest", "-m", "oracle", "tests/oracles", *session.posargs)


@nox.session(venv_backend="none")
def launchers(session: nox.Session) -> None:
    """Sweeps with joblib, submitit, Ray and a SLURM of one node (Debian, as root: apt-get install slurm-wlm munge)."""
    session.run(*INSTALL, ".[submitit,ray]")
    session.run("bash", "scripts/slurm.sh", "start")
    try:
        session.run(PYTHON, "-m", "pytest", "-m", "launcher", *session.posargs, env={"SLURM_CONF": SLURM_CONF})
    finally:
        session.run("bash", "scripts/slurm.sh", "stop")


@nox.session
def package(session: nox.Session) -> None:
    """Build both packages; the wheel, installed without extras, trains and reports in an empty folder."""
    folder = Path(session.create_tmp())
    session.install("build", "twine", "check-wheel-contents")
    session.run("python", "-m", "build", "--outdir", str(folder / "dist"), silent=True)
    [wheel], [source] = (folder / "dist").glob("*.whl"), (folder / "dist").glob("*.tar.gz")
    session.run("twine", "check", "--strict", str(wheel), str(source))
    session.run("check-wheel-contents", "--ignore", "W009", str(wheel))  # hydra_plugins beside lra
    session.run("python", "-m", "venv", "--clear", str(folder / "venv"))
    clean = folder / "venv" / "bin"
    install = (str(clean / "pip"), "install", "--quiet", "-c", "constraints.txt", "torch", str(wheel))
    session.run(*install, external=True)
    with session.chdir(folder):
        train = ("venv/bin/lra-train", "--multirun", "experiment=smoke", "system=simple,transformer", "seed=1,2")
        session.run(*train, "out=smoke", external=True, env={"LRA_CACHE": str(folder / "cache")})
        session.run("venv/bin/lra-report", "--verify", "smoke", external=True)
        session.run("venv/bin/lra-new", "attention", "mine", external=True)
        session.run("venv/bin/lra-check", "attention=mine", "lengths=[2]", external=True)


@nox.session
@nox.parametrize("end", ["lowest", "newest"], ids=["lowest", "newest"])
def versions(session: nox.Session, end: str) -> None:
    """A part of the tests, and all of compiled and packed blocks, with the lowest or newest packages that are allowed.

    The newest torch is that of constraints.txt.
    """
    project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
    wanted = [Requirement(each) for each in project["dependencies"]]
    wanted += [Requirement(project["optional-dependencies"][name][0]) for name in ("tensorboard", "wandb")]
    if end == "lowest":
        bounds = {each.name: next(s.version for s in each.specifier if s.operator == ">=") for each in wanted}
        pins = [f"{name}=={version}" for name, version in bounds.items()]
    else:
        pins = [line for line in Path("constraints.txt").read_text().splitlines() if line.startswith("torch==")]
    constraints = Path(session.create_tmp()) / "constraints.txt"
    constraints.write_text("\n".join(pins) + "\n")
    session.install("-c", str(constraints), "torch")
    tools = ("pytest", "pytest-xdist", "hatchling", "hatch-vcs", "editables")
    session.install("-c", str(constraints), "-e", ".[tensorboard,wandb]", *tools)
    names = ("attention", "model", "train", "report")
    chosen = "not test_attention or simple or softmax"
    files = [f"tests/test_{name}.py" for name in names]
    session.run("pytest", "-n", "auto", "-k", chosen, *files, *session.posargs)
    slow = [f"tests/test_{name}.py" for name in ("compiled", "packing", "fit", "cuda_code")]
    session.run("pytest", "-n", "auto", "-m", "slow or not (slow or gpu)", *slow, *session.posargs)
