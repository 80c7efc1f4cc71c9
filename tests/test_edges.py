"""Every key of the configuration with values that nobody means, and sweeps over them: a line that names the key, or a
valid run; never a traceback, never an exit code of 0 without a result."""

import errno
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from omegaconf import OmegaConf
from support import Commands, composed

from lra import __main__ as start
from lra.cli import sweep, train
from lra.config.configure import dotted
from lra.config.settings import settings_of
from lra.core import console, files
from lra.core.errors import UserError
from lra.core.signals import ASKING
from lra.records import record
from lra.records.names import LOCK
from lra.runs.build import assemble
from lra.runs.describe import describe
from lra.runs.device import threads_at_hand

SMOKE = ("experiment=smoke", "train.steps=3", "train.warmup=1", "train.eval_every=3")
SWEEP = ("--multirun", *SMOKE)
OPTIONS = Path("options/attention")


def one_line(cli: Commands, *arguments: str, main=train.main) -> str:
    """What a refused command says."""
    code, out, err = cli(main, *arguments)
    assert (code, out) == (2, ""), err
    assert len(err.splitlines()) == 1, err
    return err


@pytest.mark.parametrize("value", [float("inf"), None, [7, "x"], 2**40], ids=str)
def test_every_key_with_a_value_that_nobody_means(value: object) -> None:
    """Composed once; each key is set in turn. What is accepted is described, and a number that is not finite is not."""
    cfg = composed("experiment=smoke", "attention=performer", "describe=true")
    OmegaConf.set_struct(cfg, False)
    cfg.pop("hydra")
    OmegaConf.resolve(cfg)
    for key, _ in list(dotted(OmegaConf.to_container(cfg))):
        before = OmegaConf.select(cfg, key)
        OmegaConf.update(cfg, key, value, merge=False)
        try:
            settings = settings_of(cfg)
            description = describe(assemble(settings)) if settings.describe else {}
            assert value != float("inf"), f"{key} is accepted"
            assert description.get("parameters", 1) > 0
        except UserError as error:
            message = str(error)
            assert "\n" not in message
            assert key.split(".")[-1] in message or key.split(".")[0] in message, (key, message)
        finally:
            OmegaConf.update(cfg, key, before, merge=False)


@pytest.mark.parametrize("group", ["attention", "task", "variant", "protocol"])
def test_no_option_of_a_group(cli: Commands, group: str) -> None:
    assert f"{group}=null: expected an option; known: " in one_line(cli, f"{group}=null")


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("attention=glob(typo*)", "attention=glob(typo*): there is no such value, so there is nothing to run"),
        ("seed=range(3,1)", "seed=range(3,1): there is no such value"),
        ("seed=glob(*)", "seed=glob(*): there is no such value"),
        ("out=a,b", "out=a,b: a sweep has one folder of results"),
        ("out=", "out=: expected a folder"),
        ("out='~/x'", "out=~/x: expected a folder"),
        ("out=~/x", "out=~/x: not readable as key=value"),
        ("seed=1,-1", "seed=-1: should be greater than or equal to 0"),
        ("seed=1,x", "seed=x: should be a valid integer"),
        ("seed=1,010", "seed='010': should be a valid integer"),
        ("+sweep.foo=1", "sweep.foo: unknown key"),
        ("sweep=null", "sweep=None: should be a valid dictionary"),
        ("model.dim=16,1099511627776", "model.dim=1099511627776: should be at most"),
        ("attention=simple,null", "attention=null: expected an option"),
        ("model.depth=interval(0,1)", "expected a list of values"),
        ("threads=1,100000", "threads=100000: should be less than or equal to 1024"),
        ("model.norm_eps=1,inf", "model.norm_eps=inf: should be a finite number"),
    ],
)
def test_a_sweep_that_cannot_be_meant(cli: Commands, argument: str, message: str) -> None:
    """The working folder is left as it was: it is no folder of results."""
    Path("README.md").write_text("mine")
    assert message in one_line(cli, *SWEEP, argument)
    assert os.listdir() == ["README.md"]
    assert Path("README.md").read_text() == "mine"


@pytest.mark.usefixtures("no_report")
@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["train.freeze=[qkv],[head]"], ["train.freeze=[head]", "train.freeze=[qkv]"]),
        (["++model.depth=1,2"], ["model.depth=1", "model.depth=2"]),
        ([f"generate.prompt={'a' * 300},{'a' * 299}b"], None),
    ],
)
def test_lists_groups_and_long_texts_have_folders_of_their_own(
    cli: Commands, arguments: list[str], names: list[str] | None
) -> None:
    code, _, err = cli(train.main, *SWEEP, "out=runs", *arguments, "max_hours=null")
    assert code == 0, err
    assert "2 of 2 runs finished" in err
    folders = sorted(path.parents[1].name for path in Path("runs").rglob(record.NAME))
    assert names is None or folders == names
    assert len(set(folders)) == 2
    assert all(len(name) <= 200 for name in folders)
    assert "2 runs, " not in cli(train.main, *SWEEP, "out=runs", *arguments)[2], "the names are the same again"


@pytest.fixture
def no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures take seconds, and are none of these tests' concern."""
    monkeypatch.setattr("lra.report.write_report", lambda out, tell: out / "sweep.json")


def test_a_report_that_fails_is_not_passed_over(cli: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_out: Path, tell: Callable) -> None:
        raise ValueError("no figure")

    monkeypatch.setattr("lra.report.write_report", fails)
    code, _, err = cli(train.main, *SWEEP, "out=runs")
    assert code == 1
    assert "no report: no figure" in err
    assert "1 of 1 runs finished, 1 no report" in err


def option(text: str, package: str | None = None) -> tuple[str, ...]:
    """An attention of the user's, and their code; the overrides that choose it."""
    OPTIONS.mkdir(parents=True, exist_ok=True)
    (OPTIONS / "mine.yaml").write_text(text)
    if package is not None:
        Path("theirs.py").write_text(package)
    return ("--config-dir", "options", "experiment=smoke", "attention=mine", "describe=true")


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("from torch import nn\nclass A(nn.Module):\n    pass\n", "expected a subclass of lra.ops.mixer.Mixer"),
        (
            "from lra.attention.softmax import Softmax\nclass A(Softmax):\n    def __init__(self, shape):\n"
            "        raise KeyError('depth')\n",
            "attention: theirs.py, line 4: KeyError: 'depth'",
        ),
        (
            "from lra.attention import Attention\nclass A(Attention):\n    pass\n",
            "theirs.A has no card: add card = Card(...) to the class",
        ),
        ("x = 1\ny = x +\n", "theirs.py, line 2: SyntaxError: invalid syntax"),
        ("import nothing_of_that_name\n", "theirs.py, line 1: ModuleNotFoundError"),
        ("class B:\n    pass\n", "theirs has no 'A'; known: B"),
    ],
)
def test_a_mistake_in_the_users_code_is_one_line(
    cli: Commands, monkeypatch: pytest.MonkeyPatch, code: str, message: str
) -> None:
    arguments = option("_target_: theirs.A\n_partial_: true\n", code)
    monkeypatch.syspath_prepend(".")
    assert message in one_line(cli, *arguments, "packages=[theirs]")
    assert message in one_line(cli, "--multirun", *arguments, "packages=[theirs]", "seed=1,2")


def test_a_package_that_is_not_there(cli: Commands) -> None:
    arguments = option("_target_: nowhere.A\n_partial_: true\n")
    assert "there is no module 'nowhere'" in one_line(cli, *arguments, "packages=[nowhere]")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a: 1\n\tb: 2\n", "mine.yaml, line 2: found character '\\t'"),
        (b"a: [1\n", "mine.yaml, line 2: expected ',' or ']'"),
        (b"a: 1\na: 2\n", "mine.yaml, line 2: found duplicate key a"),
        (b"defaults: softmax\n", "Invalid defaults list in 'attention/mine'"),
        (b"a: *x\n", "mine.yaml, line 1: found undefined alias"),
        (b"_target_: null\n", "attention: expected options with a _target_"),
    ],
)
def test_a_mistake_in_an_option_file_is_one_line(cli: Commands, content: bytes, message: str) -> None:
    arguments = option("")
    (OPTIONS / "mine.yaml").write_bytes(content)
    assert message in one_line(cli, *arguments)


@pytest.mark.parametrize(
    "content",
    [
        "hydra: {launcher: {x: {_target_: joblib.load, filename: evil}}}",
        "hydra: {launcher: {_target_: joblib.load, filename: evil}}",
        "packages: [joblib]",
    ],
)
def test_an_option_file_sets_no_launcher_code_and_no_packages(
    cli: Commands, monkeypatch: pytest.MonkeyPatch, content: str
) -> None:
    import joblib

    monkeypatch.setattr(joblib, "load", lambda **_: pytest.fail("it was run"))
    path = Path("options/experiment/mine.yaml")
    path.parent.mkdir(parents=True)
    path.write_text(f"# @package _global_\ndefaults: [smoke, _self_]\n{content}\n")
    key = re.match(r"(?:hydra: \{)?(\w+)", content)[1]
    arguments = ("--config-dir", "options", "experiment=mine", "describe=true")
    assert key in one_line(cli, *arguments).lower()
    assert key in one_line(cli, *arguments, "--multirun", "seed=1,2").lower()


def test_options_stand_anywhere_and_the_version_is_ours(cli: Commands) -> None:
    code, out, _ = cli(train.main, "experiment=smoke", "--multirun", "seed=1,2", "describe=true")
    assert (code, out.count('"run_folder"')) == (0, 1)  # one for the cell
    assert not Path("runs").exists()
    assert cli(train.main, "--version")[1].startswith("lra ")


@pytest.mark.parametrize("line", [SMOKE, (*SWEEP, "seed=1,2")])
def test_a_folder_of_results_that_cannot_be_is_named_once(
    cli: Commands, monkeypatch: pytest.MonkeyPatch, line: tuple[str, ...]
) -> None:
    Path("afile").touch()
    assert "out=afile: afile is a file; expected a folder" in one_line(cli, *line, "out=afile")
    assert "out=afile/x/y: afile is a file; expected a folder" in one_line(cli, *line, "out=afile/x/y")
    assert os.listdir() == ["afile"]
    *_, last = cli(train.main, *line, "out=/proc/x", "max_hours=null")[2].splitlines()
    assert re.fullmatch(
        r"lra-train: error: /proc/x\S*: cannot make this folder: no such file or directory; choose another out=...",
        last,
    )

    def refuse(path: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr("lra.runs.folder.read_json", refuse)
    said = cli(train.main, *line, "out=runs")[2]
    assert "seed1/config.json: permission denied" in said
    assert "damaged" not in said


def test_half_a_launcher_in_the_environment(cli: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert "WORLD_SIZE=2: expected a number, with RANK, " in one_line(cli, *SMOKE)


def test_threads_as_openmp_writes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3,2")
    assert threads_at_hand() == 3
    monkeypatch.setenv("OMP_NUM_THREADS", "many")
    with pytest.raises(UserError, match="OMP_NUM_THREADS=many: expected a number"):
        threads_at_hand()


@pytest.mark.parametrize("folder", ["hub:", "hub:a/b/c", "hub:a b", "hub:/a"])
def test_a_model_of_the_hub_has_a_name(cli: Commands, folder: str) -> None:
    assert "expected hub:OWNER/NAME" in one_line(cli, *SMOKE, "init=bert", f"init.folder='{folder}'")


@pytest.mark.usefixtures("no_report")
def test_a_second_driver_begins_with_runs_that_nobody_holds(cli: Commands) -> None:
    held = Path("runs/listops/paper/simple/simple/seed1")
    held.mkdir(parents=True)
    with files.hold(held / LOCK, 0):
        code, out, err = cli(train.main, *SWEEP, "out=runs", "seed=1,2,3")
    assert code == 75, err
    assert "error" not in err
    assert "another process holds" in err
    assert "2 of 3 runs finished, 1 running" in err
    assert out.index("seed 2: test accuracy") < out.index("seed 3: test accuracy")


@pytest.mark.usefixtures("no_report")
def test_a_finished_run_of_a_sweep_is_not_launched_again(cli: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    line = (*SWEEP, "out=runs", "seed=range(1,4)")
    assert cli(train.main, *line)[0] == 0
    honest, launched = sweep._launch_all, []
    monkeypatch.setattr(sweep, "_launch_all", lambda *words: launched.extend(words[4]) or honest(*words))
    code, _, err = cli(train.main, *line)
    assert (code, err.count("nothing to do"), launched) == (0, 3, [])


def test_no_bars_where_several_processes_write(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console.sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr(console, "_bars", True)
    assert console.Bar("a", 3)._live is not None
    console.without_bars()
    assert console.Bar("a", 3)._live is None


def test_a_machine_without_affinity(monkeypatch: pytest.MonkeyPatch) -> None:
    from lra.data import default_workers

    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 7)
    assert default_workers() == 7


def test_windows_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start.sys, "platform", "win32")
    with pytest.raises(SystemExit, match="lra runs on Linux and macOS"):
        start.train()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_while_a_command_is_imported(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture, number: signal.Signals, code: int
) -> None:
    before = [signal.getsignal(number) for number in ASKING]
    monkeypatch.setattr(start, "import_module", lambda _name: os.kill(os.getpid(), number))
    try:
        with pytest.raises(SystemExit) as stop:
            start.train()
    finally:
        for other, handler in zip(ASKING, before, strict=True):
            signal.signal(other, handler)
    assert stop.value.code == code
    assert capfd.readouterr().err == f"\nlra-train: stopped before it began ({number.name})\n"


@pytest.mark.parametrize("line", [(), ("train", "--help"), ("train", *SMOKE, "--cfg", "job")], ids=len)
def test_a_reader_that_leaves_is_no_fault(line: tuple[str, ...]) -> None:
    """As in `lra ... | head`; here nobody reads from the beginning."""
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "lra", *line], stdout=writer, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")
