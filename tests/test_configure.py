"""Configurations: values by choice, and mistakes, which end in one line that names the key and in exit code 2."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from inspect import Parameter, signature
from pathlib import Path

import pytest
import yaml
from omegaconf import OmegaConf
from support import Commands, composed, options

from lra import __main__ as start
from lra.cli import new, prepare, train
from lra.config.configure import dotted, plain
from lra.core.errors import UserError
from lra.core.paths import conf_dir
from lra.runs.build import assemble
from lra.runs.settings import settings_of

ATTENTION = "_target_: lra.mixers.softmax.Softmax\n_partial_: true\nscale: qkv_dim\n"


def refused(cli: Commands, *arguments: str, main: Callable = train.main) -> str:
    """Return the only line that a refused command prints."""
    code, out, err = cli(main, *arguments)
    assert (code, out, len(err.splitlines())) == (2, "", 1), err
    assert not list(Path(".").rglob("record.json"))
    return err.partition(": error: ")[2]


def write(files: dict[str, str], folder: str = "options") -> None:
    for name, text in files.items():
        path = Path(folder, f"{name}.yaml")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ("sed=2", ["sed", "'seed'"]),
        ("+train.lrr=2", ["train.lrr", "'lr'"]),
        ("attention.window=3", ["attention.window"]),
        ("hydra.launcher.n_jobs=1", ["hydra.launcher.n_jobs", "hydra/launcher=joblib"]),
        ("attention=simpel", ["attention=simpel", "'simple'"]),
        ("attention=[simple,softmax]", ["attention=[simple,softmax]"]),
        ("+experiment=smoke", ["+experiment"]),
        ("train.warmup=0", ["train.warmup=0", "at least 1"]),
        ("seed=abc", ["seed=abc", "integer"]),
        (f"seed={2**53 + 1}", [f"seed={2**53 + 1}"]),
        ("train.lr=1e-3x", ["train.lr=1e-3x", "number"]),
        ("model.norm=middle", ["model.norm=middle", "'pre', 'post' or 'none'"]),
        ("model.heads=7", ["model.heads=7", "model.qkv_dim=512"]),
        ("train.micro_batch=64", ["train.micro_batch=64", "batch_size=32"]),
        ("task=listops_files task.folder=nowhere", ["task.folder: nowhere"]),
        ("task=books data_dir=null", ["books: no data folder is set"]),
        ("rates=nowhere.yaml", ["rates=nowhere.yaml"]),
        ("experiment=small_listops task=books", ["no value for task=books, only for listops, "]),
        ("attention._target_=os.system", ["attention._target_=os.system", "lra.mixers.base.Mixer"]),
        ("seed=", ["seed="]),
        ("task", ["task", "key=value"]),
        ("--train.lr=0.1", ["--train.lr=0.1"]),
        ("hydra.run.dir=D", ["hydra.run.dir=D"]),
        ("seed=1,2", ["seed=1,2", "--multirun"]),
        ("--multirun --cfg job", ["--cfg"]),
        ("--multirun hydra.job.chdir=true seed=1,2", ["hydra.job.chdir=true"]),
        ("--multirun attention=simple,foo", ["attention=foo", "known: "]),
        ("--multirun model.dpeth=1,2", ["model.dpeth", "'model.depth'"]),
        ("--multirun seed=range(3,1)", ["seed=range(3,1)", "a list"]),
        ("--multirun experiment=smoke seed=1,x", ["seed=x", "integer"]),
        ("--multirun experiment=smoke out='~/x'", ["out=~/x", "a folder"]),
    ],
)
def test_one_line_and_exit_code_2(cli: Commands, arguments: str, names: list[str]) -> None:
    """The working folder stays empty."""
    line = refused(cli, *arguments.split())
    assert [name for name in names if name not in line] == [], line
    assert os.listdir() == []


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
            assert "\n" not in error.args[0]
            assert key.split(".")[-1] in message or key.split(".")[0] in message, (key, message)
        finally:
            OmegaConf.update(cfg, key, before, merge=False)


def test_a_misspelt_key_in_a_users_own_files(cli: Commands) -> None:
    write(
        {
            "experiment/mine": "# @package _global_\ntrain: {stepps: 3}\n",
            "attention/mine": ATTENTION + "scail: head_dim\n",
            "variant/mine": "# @package model\nout_prj: true\n",
            "task/mine": "# @package _global_\ndefaults: [listops, _self_]\ntask: {sede: 3}\n",
        }
    )
    keys = {
        "experiment": "train.stepps",
        "attention": "attention.scail",
        "variant": "model.out_prj",
        "task": "task.sede",
    }
    for group, key in keys.items():
        assert f"{key}: unknown key" in refused(cli, "--config-dir", "options", f"{group}=mine")


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (
            "from lra.mixers.softmax import Softmax\nclass A(Softmax):\n    def __init__(self, shape):\n"
            "        raise KeyError('depth')\n",
            "attention: theirs.py, line 4: KeyError: 'depth'",
        ),
        ("x = 1\ny = x +\n", "theirs.py, line 2: SyntaxError: invalid syntax"),
        ("class B:\n    pass\n", "theirs has no 'A'"),
    ],
)
def test_a_mistake_in_the_users_code_is_one_line(cli: Commands, code: str, message: str) -> None:
    write({"attention/mine": "_target_: theirs.A\n_partial_: true\n"})
    Path("theirs.py").write_text(code)
    words = ("--config-dir", "options", "experiment=smoke", "attention=mine", "describe=true")
    assert message in refused(cli, *words)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a: 1\n\tb: 2\n", "mine.yaml, line 2: found character '\\t'"),
        ("a: 1\na: 2\n", "mine.yaml, line 2: found duplicate key a"),
        ("defaults: softmax\n", "Invalid defaults list in 'attention/mine'"),
        ("defaults: [{size: smoke}]\n", "write `- /size: smoke`, with a slash"),
        ("scale: ${by_tsk:{text:head_dim}}\n", "attention.scale: Unsupported interpolation type by_tsk"),
    ],
)
def test_a_mistake_in_an_option_file_is_one_line(cli: Commands, content: str, message: str) -> None:
    write({"attention/mine": content})
    assert message in refused(cli, "--config-dir", "options", "attention=mine", "describe=true")


def test_an_option_file_sets_no_launcher_code(cli: Commands) -> None:
    content = "hydra: {launcher: {x: {_target_: joblib.load, filename: evil}}}"
    write({"experiment/mine": f"# @package _global_\ndefaults: [smoke, _self_]\n{content}\n"})
    words = ("--config-dir", "options", "experiment=mine", "describe=true")
    assert "launcher" in refused(cli, *words, "--multirun", "seed=1,2").lower()


def test_help_needs_no_torch_and_any_encoding_will_do() -> None:
    probe = (
        "import sys; from lra.__main__ import train\n"
        "sys.argv = ['lra-train', '--help']\n"
        "train()\n"
        "assert 'torch' not in sys.modules and 'datasets' not in sys.modules"
    )
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=False, env=ascii_only)
    assert done.returncode == 0, done.stderr
    assert f"attention: {', '.join(options('attention'))}" in done.stdout
    assert "variant: simple, simple_res, simple_resl, transformer" in done.stdout
    page = subprocess.run([sys.executable, "-m", "lra"], capture_output=True, check=False, env=ascii_only)
    assert (page.returncode, page.stderr) == (0, b"")


def test_a_reader_that_leaves_ends_a_command_quietly() -> None:
    """`lra-train --help | head -3`."""
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "lra", "train", "--help"]
    done = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, check=False)
    os.close(write)
    assert (done.returncode, done.stderr) == (1, b"")


@pytest.mark.parametrize("group", ["variant", "init", "pretrain", "case", "size", "experiment"])
def test_every_option_composes(group: str) -> None:
    """Tasks, attentions, systems and protocols are composed in other tests."""
    for name in options(group):
        assert composed(f"{group}={name}").hydra.runtime.choices[group] == name


def test_values_by_choice_are_listed_by_names_of_options() -> None:
    """A name in `${by_GROUP:{NAME:VALUE, ...}, ...}` that is no option would never be looked up."""
    tables = []
    for path in conf_dir().rglob("*.yaml"):
        text = re.sub(r"\$\{[\w.]+\}", "VALUE", path.read_text(encoding="utf-8"))
        tables += [(path, *match) for match in re.findall(r"by_(\w+):\{([^{}]*)\}", text)]
    assert len(tables) > 20
    for path, group, table in tables:
        names = {*re.findall(r"(?:^|,)\s*([\w/-]+):", table)}
        known = {*options(group), *(options("recipe") if group == "task" else ())}
        assert names and names <= known, (path, names - known)


def test_values_by_choice() -> None:
    """The command line and presets override them; they are looked up by the task, else by its recipe."""

    def rank(*overrides: str) -> int:
        return composed("attention=linformer", *overrides).attention.rank

    assert rank("task=image") == 16
    assert rank("task=listops") == 128
    assert rank("task=listops", "size=small") == 16
    assert rank("task=listops", "size=small", "attention.rank=7") == 7
    cfg = composed("task=text", "protocol=lra", "experiment=long_text")
    assert (cfg.task.max_length, cfg.train.eval_every) == (1000, 250), "presets go over protocols"
    small = composed("experiment=table1_small", "task=acl_matching", "attention=local")
    assert (small.task.max_length, small.train.steps, small.attention.window) == (128, 200, 8), "the recipe's"
    assert composed("task=matching", "protocol=s4").model.head_hidden == [256], "with its type"
    sized = composed("task=listops_short", "protocol=s4", "size=hour", "attention=s4d")
    assert sized.attention.state == 16, "sizes go over protocols"
    released = composed("task=pathfinder", "attention=linformer_lra_released")
    assert (released.model.heads, released.model.depth) == (2, 1), "those of the attention that it derives from"


def test_a_users_own_values_by_choice(cli: Commands) -> None:
    """`by_task` works in a user's attention, task and preset; options that derive from ours keep our tables."""
    write(
        {
            "attention/mine": ATTENTION.replace("qkv_dim", "${by_task:{own:head_dim}, qkv_dim}"),
            "attention/near": "defaults: [local, _self_]\n",
            "task/own": "# @package _global_\ndefaults: [listops, _self_]\n",
            "experiment/mine": "# @package _global_\ndefaults: [smoke, _self_]\nseed: ${by_task:{own:7}, 1}\n",
        }
    )

    def shown(*arguments: str) -> dict:
        code, out, err = cli(train.main, "--config-dir", "options", *arguments, "--cfg", "job", "--resolve")
        assert code == 0, err
        return yaml.safe_load(out)

    config = shown("attention=mine", "task=own", "experiment=mine")
    assert (config["attention"]["scale"], config["seed"], config["task"]["train_size"]) == ("head_dim", 7, 200)
    assert shown("attention=mine", "task=listops", "experiment=mine")["attention"]["scale"] == "qkv_dim"
    assert shown("attention=near", "task=own", "size=small")["attention"]["window"] == 4


@pytest.mark.parametrize(("task", "norm"), [("ag_news", "post"), ("books", "none"), ("text", "pre"), ("image", "pre")])
def test_every_protocol_keeps_the_block_of_the_tasks_paper(task: str, norm: str) -> None:
    """AG News has BERT's norms after the sums and rates that decay from layer to layer; the books have no norms."""
    for protocol in set(options("protocol")) - {"s4"}:  # which has blocks of its own
        cfg = composed(f"task={task}", f"protocol={protocol}")
        assert (cfg.model.norm, cfg.train.layer_decay) == (norm, 0.9 if task == "ag_news" else None), protocol


@pytest.mark.parametrize(("protocol", "eval_every"), [("paper", 250), ("strict", 250), ("lra", 20), ("s4", 3000)])
def test_table1_changes_the_interval_of_evaluations_of_its_own_protocols_only(protocol: str, eval_every: int) -> None:
    assert composed("experiment=table1", "task=listops", f"protocol={protocol}").train.eval_every == eval_every


def own_option(name: str, module: str) -> None:
    """An attention of the working folder, and the module that it names."""
    write({f"attention/{name}": f"_target_: {module}.Own\n_partial_: true\n"}, "lra_options")
    Path(f"{module}.py").write_text("raise RuntimeError('it runs')\n")


def test_an_option_of_the_working_folder_names_any_module_and_hides_none_of_ours(cli: Commands) -> None:
    own_option("kind", "kind")
    own_option("other", "hidden")
    assert "kind.py, line 1: RuntimeError: it runs" in refused(cli, "experiment=smoke", "attention=kind")
    assert "hidden.py, line 1: RuntimeError: it runs" in refused(cli, "experiment=smoke", "attention=other")
    own_option("simple", "simple")
    line = refused(cli, "experiment=smoke", "attention=simple")
    assert "lra_options/attention/simple.yaml: lra has an option of this name" in line


@pytest.mark.parametrize("name", ["simple", "json", "My-own", "class"])
def test_a_name_that_cannot_be_new_is_refused(name: str, cli: Commands) -> None:
    code, out, err = cli(new.main, "attention", name)
    assert (code, out) == (2, "")
    assert f"error: {name}: " in err
    assert list(Path().iterdir()) == []


def test_new_keeps_files(cli: Commands) -> None:
    Path("test_own.py").write_text("mine")
    code, _, err = cli(new.main, "task", "own")
    assert (code, "test_own.py: already exists" in err) == (2, True)
    assert [path.name for path in Path().iterdir()] == ["test_own.py"]


def test_a_folder_of_results_that_cannot_be_made(cli: Commands) -> None:
    Path("afile").touch()
    for words in ((), ("--multirun",)):
        *_, last = cli(train.main, *words, "experiment=smoke", "out=afile/x")[2].splitlines()
        assert re.fullmatch(r"lra-train: error: afile/x\S*: .*not a directory.*", last)


def test_lra_lists_every_option_with_its_first_sentence(cli: Commands) -> None:
    write({"attention/mine": "# Equal weights (Doe et al. 2021). And more.\n_target_: mine.Mine\n"}, "lra_options")
    code, out, err = cli(start.main, "--all")
    assert (code, err) == (0, "")
    described = {name: text for name, *text in (line.split(maxsplit=1) for line in out.splitlines() if line)}
    names = {name for group in ("task", "attention", "experiment") for name in options(group)}
    assert names <= {name for name, text in described.items() if text}
    assert described["mine"] == ["Equal weights (Doe et al. 2021)"]
    code, _, err = cli(start.main, "trian")
    assert code == 2 and "did you mean 'train'?" in err


def test_a_new_task_shares_no_example_between_its_splits(cli: Commands) -> None:
    assert cli(new.main, "task", "own")[0] == 0
    code, _, err = cli(prepare.main, "task=own")
    assert (code, "more than one split" in err) == (0, False), err


@pytest.mark.parametrize("group", ["attention", "task"])
def test_constructors_have_no_defaults(group: str) -> None:
    """YAML owns every value of an attention and of a task."""
    for name in options(group):
        target = yaml.safe_load((conf_dir() / group / f"{name}.yaml").read_text(encoding="utf-8"))
        target = (target.get("task") or target if group == "task" else target).get("_target_")
        if target is not None:
            module, _, kind = target.rpartition(".")
            parameters = signature(getattr(import_module(module), kind)).parameters.values()
            assert all(parameter.default is Parameter.empty for parameter in parameters), target
