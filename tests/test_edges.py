"""Impossible values and commands: one line that names the key, or a valid run; never a traceback, never an exit code of
0 without a result."""

import json
import os
import re
from pathlib import Path

import pytest
from omegaconf import OmegaConf
from support import Commands, composed, options

from lra import __main__ as start
from lra.cli import prepare, train
from lra.config.configure import dotted, plain
from lra.config.settings import settings_of
from lra.core import files
from lra.core.errors import UserError
from lra.records.names import LOCK
from lra.runs.build import assemble
from lra.runs.device import threads_at_hand

SMOKE = ("experiment=smoke", "train.steps=3", "train.warmup=1", "train.eval_every=3")
SWEEP = ("--multirun", *SMOKE)
OPTIONS = Path("options/attention")


def one_line(cli: Commands, *arguments: str) -> str:
    """The error of a refused command."""
    code, out, err = cli(train.main, *arguments)
    assert (code, out) == (2, ""), err
    assert len(err.splitlines()) == 1, err
    return err


@pytest.mark.parametrize("value", [float("inf"), None, [7, "x"]], ids=str)
def test_every_key_with_an_impossible_value(value: object) -> None:
    """Each key is set in turn: it is named in one line, or a system can be built. Infinity is refused everywhere."""
    cfg = OmegaConf.create(plain(composed("experiment=smoke", "attention=performer")))
    for key, _ in list(dotted(OmegaConf.to_container(cfg))):
        before = OmegaConf.select(cfg, key)
        OmegaConf.update(cfg, key, value, merge=False)
        try:
            assemble(settings_of(cfg))
            assert value != float("inf"), f"{key} is accepted"
        except UserError as error:
            message = str(error)
            assert "\n" not in message
            assert key.split(".")[-1] in message or key.split(".")[0] in message, (key, message)
        finally:
            OmegaConf.update(cfg, key, before, merge=False)


@pytest.mark.parametrize(
    ("words", "key"),
    [
        ("hydra.run.dir=D", "hydra.run.dir=D"),
        ("--multirun hydra.sweep.dir=D", "hydra.sweep.dir=D"),
        ("--multirun hydra.job.chdir=true seed=1,2", "hydra.job.chdir=true"),
        ("--multirun --cfg job", "--cfg"),
        ("--experiment smoke", "--experiment"),
        ("--train.lr=0.1", "--train.lr=0.1"),
        ("attention=[simple,softmax]", "attention=[simple,softmax]"),
        ("+experiment=smoke", "+experiment"),
        ("--multirun hydra.launcher.n_job=2", "hydra.launcher.n_job"),
        ("train.lr=${oc.env:RATE,0.003}", "train.lr=0.003"),
        ("rates=nowhere.yaml", "rates=nowhere.yaml"),
    ],
)
def test_a_habit_of_hydra_that_fails_is_one_line(cli: Commands, words: str, key: str) -> None:
    assert key in one_line(cli, *words.split())
    assert os.listdir() == []


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("attention=simple,foo", "attention=foo: no such option; known: "),
        ("model.dpeth=1,2", "model.dpeth: unknown key; did you mean 'model.depth'?"),
        ("attention=null", "attention=null: expected the name of an option"),
        ("seed=range(3,1)", "seed=range(3,1): expected a list"),
        ("out=a,b", "differs between the runs of this sweep (a, b)"),
        ("out='~/x'", "out=~/x: expected a folder"),
        ("seed=1,x", "seed=x: should be a valid integer"),
        ("+sweep.foo=1", "sweep.foo: unknown key"),
        ("model.depth=interval(0,1)", "expected a list of values"),
        ("model.norm_eps=1,inf", "model.norm_eps=inf: should be a finite number"),
    ],
)
def test_an_impossible_sweep_is_refused(cli: Commands, argument: str, message: str) -> None:
    """The working folder is left as it was."""
    Path("README.md").write_text("mine")
    assert message in one_line(cli, *SWEEP, argument)
    assert os.listdir() == ["README.md"]
    assert Path("README.md").read_text() == "mine"


def test_lists_have_folders_of_their_own(cli: Commands) -> None:
    code, out, err = cli(train.main, *SMOKE, "--multirun", "train.freeze=[qkv],[head]", "describe=true")
    assert code == 0, err
    folders = sorted(Path(folder).parent.name for folder in re.findall('"run_folder": "(.*?)"', out))
    assert folders == ["train.freeze=[head]", "train.freeze=[qkv]"]
    assert not Path("runs").exists()


@pytest.fixture
def no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lra.reports.write_report", lambda out: out / "sweep.json")


def option(text: str, package: str | None = None) -> tuple[str, ...]:
    """Write an attention of the user and its code, and return the overrides that choose it."""
    OPTIONS.mkdir(parents=True, exist_ok=True)
    (OPTIONS / "mine.yaml").write_text(text)
    if package is not None:
        Path("theirs.py").write_text(package)
    return ("--config-dir", "options", "experiment=smoke", "attention=mine", "describe=true")


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (
            "from lra.mixers.softmax import Softmax\nclass A(Softmax):\n    def __init__(self, shape):\n"
            "        raise KeyError('depth')\n",
            "attention: theirs.py, line 4: KeyError: 'depth'",
        ),
        (
            "from lra.mixers import Attention\nclass A(Attention):\n    pass\n",
            "theirs.A has no info: add info = MixerInfo(...) to the class",
        ),
        ("x = 1\ny = x +\n", "theirs.py, line 2: SyntaxError: invalid syntax"),
        ("class B:\n    pass\n", "theirs has no 'A'"),
    ],
)
def test_a_mistake_in_the_users_code_is_one_line(
    cli: Commands, monkeypatch: pytest.MonkeyPatch, code: str, message: str
) -> None:
    arguments = option("_target_: theirs.A\n_partial_: true\n", code)
    monkeypatch.syspath_prepend(".")
    assert message in one_line(cli, *arguments)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a: 1\n\tb: 2\n", "mine.yaml, line 2: found character '\\t'"),
        (b"a: 1\na: 2\n", "mine.yaml, line 2: found duplicate key a"),
        (b"defaults: softmax\n", "Invalid defaults list in 'attention/mine'"),
    ],
)
def test_a_mistake_in_an_option_file_is_one_line(cli: Commands, content: bytes, message: str) -> None:
    arguments = option("")
    (OPTIONS / "mine.yaml").write_bytes(content)
    assert message in one_line(cli, *arguments)


def test_an_option_file_sets_no_launcher_code(cli: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    import joblib

    monkeypatch.setattr(joblib, "load", lambda **_: pytest.fail("it was run"))
    path = Path("options/experiment/mine.yaml")
    path.parent.mkdir(parents=True)
    content = "hydra: {launcher: {x: {_target_: joblib.load, filename: evil}}}"
    path.write_text(f"# @package _global_\ndefaults: [smoke, _self_]\n{content}\n")
    arguments = ("--config-dir", "options", "experiment=mine", "describe=true")
    assert "key 'x' not in" in one_line(cli, *arguments, "--multirun", "seed=1,2").lower()


def test_a_folder_of_results_that_cannot_be_made(cli: Commands) -> None:
    Path("afile").touch()
    for words in (SMOKE, SWEEP):
        *_, last = cli(train.main, *words, "out=afile/x")[2].splitlines()
        assert re.fullmatch(r"lra-train: error: afile/x\S*: .*not a directory.*", last)


def test_half_a_launcher_in_the_environment(cli: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert "WORLD_SIZE=2: expected a number, with RANK, " in one_line(cli, *SMOKE)


def test_threads_as_openmp_writes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3,2")
    assert threads_at_hand() == 3


@pytest.mark.usefixtures("no_report")
def test_a_second_command_begins_with_free_runs(cli: Commands) -> None:
    held = Path("runs/listops/paper/simple/simple/seed1")
    held.mkdir(parents=True)
    with files.hold(held / LOCK, 0):
        code, out, err = cli(train.main, *SWEEP, "out=runs", "seed=1,2,3")
    assert code == 75, err
    assert "error" not in err
    assert "another process trains it" in err
    assert "2 of 3 runs finished, 1 running" in err
    assert out.index("seed 2: test accuracy") < out.index("seed 3: test accuracy")


def test_a_finished_run_is_not_launched_again(cli: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a sweep whose report failed, which is an error of its own."""

    def fail(*_: object, **__: object) -> None:
        raise ValueError("no figure")

    with monkeypatch.context() as patch:
        patch.setattr("lra.reports.write_report", fail)
        code, _, err = cli(train.main, *SWEEP, "out=runs")
    assert code == 1
    assert "no report: no figure" in err
    monkeypatch.setattr("lra.reports.write_report", lambda out: out / "sweep.json")
    code, _, err = cli(train.main, *SWEEP, "out=runs")
    assert (code, "1 run, 0 to train" in err) == (0, True)


def test_lra_lists_everything_and_names_a_mistyped_command(cli: Commands) -> None:
    path = Path("lra_options/attention/mine.yaml")
    path.parent.mkdir(parents=True)
    path.write_text("# Equal weights (Doe et al. 2021). And more.\n_target_: mine.Mine\n")
    code, out, err = cli(start.main, "--all")
    assert (code, err) == (0, "")
    described = {name: text for name, *text in (line.split(maxsplit=1) for line in out.splitlines() if line)}
    names = {name for group in ("task", "attention", "experiment") for name in options(group)}
    assert names <= {name for name, text in described.items() if text}
    assert described["mine"] == ["Equal weights (Doe et al. 2021)"]
    code, _, err = cli(start.main, "trian")
    assert code == 2 and "did you mean 'train'?" in err


def test_prepare_prints_json_for_programs(cli: Commands) -> None:
    code, out, _ = cli(prepare.main, "experiment=smoke", "json=true")
    assert code == 0
    assert json.loads(out)["rows"] == {"train": 200, "val": 50, "test": 70}
