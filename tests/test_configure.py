"""Mistakes in the configuration: one line, the key, the nearest valid one, exit code 2, nothing written."""

import json
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from inspect import Parameter, signature
from pathlib import Path

import pytest
import yaml
from hydra.errors import MissingConfigException
from support import Commands, composed, options

from lra.cli import bench, check, new, prepare, train
from lra.core.paths import conf_dir, systems_file, table1_file


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["sed=2"], "sed: unknown key; did you mean 'seed'?"),
        (["+sead=2"], "sead: unknown key; did you mean 'seed'?"),
        (["model.dpeth=2"], "model.dpeth: unknown key; did you mean 'model.depth'?"),
        (["+model.dpeth=2"], "model.dpeth: unknown key; did you mean 'depth'?"),
        (["train.lrr=2"], "train.lrr: unknown key; did you mean 'train.lr'?"),
        (["+train.lrr=2"], "train.lrr: unknown key; did you mean 'lr'?"),
        (["+task.train_sise=2"], "task.train_sise: unknown key; did you mean 'train_size'?"),
        (["+attention.scael=none"], "attention.scael: unknown key; did you mean 'scale'?"),
        (["+protocol.simple_scael=none"], "protocol.simple_scael: unknown key; did you mean 'simple_scale'?"),
        (["model.wwwwwwwwwwww=2"], "model.wwwwwwwwwwww: unknown key; known: model.attention_bias, model.bias, "),
        (["attention.wwwwww=3"], "attention.wwwwww: unknown key; known: attention._partial_, attention._target_, "),
        (["attention.window=3"], "attention that is chosen has no such key; attention=local or longformer has it"),
        (["init.take=[qkv]"], "init.take: the init that is chosen has no such key; init=bert or checkpoint has it"),
        (["lr=1"], "lr: unknown key; did you mean 'train.lr'?"),
        (["steps=1"], "steps: unknown key; did you mean 'checkpoint.steps' or 'train.steps'?"),
        (["wwwwww=1"], "wwwwww: unknown key; known: also, attention, cache, case, checkpoint, data_dir, "),
        (["attention=local", "attention.windw=3"], "attention.windw: unknown key; did you mean 'attention.window'?"),
        (["hydra.launcher.n_jobs=1"], "launcher that is chosen has no such key; hydra/launcher=joblib has it"),
        (
            ["hydra.launcher.ray.remote.num_gpus=1"],
            "launcher that is chosen has no such key; hydra/launcher=ray has it",
        ),
        (["hydra.launcher.nodes=1"], "no such key; hydra/launcher=submitit_local or submitit_slurm has it"),
        (
            ["hydra.launcher.njobs=1"],
            "hydra.launcher.njobs: the launcher that is chosen has no such key; nor has joblib, ",
        ),
        (["experiment=hour", "train.lr=1,2", "sed=2"], "sed: unknown key; did you mean 'seed'?"),
        (["attention=simpel"], "attention=simpel: no such option; did you mean 'simple'?"),
        (["experiment=dmeo"], "experiment=dmeo: no such option; did you mean 'demo'?"),
        (["atention=simple"], "atention: unknown key; did you mean 'attention'?"),
        (["seed=abc"], "seed=abc: should be a valid integer"),
        (["seed=-1"], "seed=-1: should be greater than or equal to 0"),
        ([f"seed={2**53 + 1}"], f"seed={2**53 + 1}: should be less than or equal to {2**53}"),
        (["train.lr=1e-3x"], "train.lr=1e-3x: should be a valid number"),
        (["train.steps=0"], "train.steps=0: should be greater than 0"),
        (["train.steps=1.5"], "train.steps=1.5: should be a valid integer"),
        (["train.betas=[0.9]"], "train.betas=[0.9]: list should have at least 2 items"),
        (["model.dropout=1"], "model.dropout=1: should be less than 1"),
        (["model.norm=middle"], "model.norm=middle: should be 'pre', 'post' or 'none'"),
        (["precision=fp16"], "precision=fp16: should be 'fp32' or 'bf16'"),
        (["attention.scale=half"], "attention.scale=half: should be 'length', 'valid', 'valid_head' or 'none'"),
        (["model.heads=7"], "model.heads=7 does not divide model.qkv_dim=512"),
        (["model.qkv_dim=256"], "model.qkv_dim=256 differs from model.dim=512"),
        (["train.micro_batch=most"], "train.micro_batch=most: should be a valid integer"),
        (["train.goal=high"], "train.goal=high: should be a valid number or null"),
        (["train.steps='9'"], "train.steps='9': should be a valid integer"),
        (
            ["+train.groups={state: {rate: 0x, weight_decay: null}}"],
            "train.groups.state.rate=0x: should be a valid number or a factor such as 2x or null",
        ),
        (["train.micro_batch=64"], "train.micro_batch=64 is larger than train.batch_size=32"),
        (["task.min_length=2000"], "task.max_length=2000 must exceed task.min_length=2000"),
        (["task=listops_files"], "task.folder: no value; set task.folder=..."),
        (["task=listops_files", "task.folder=nowhere"], "task.folder: nowhere: no such file or folder"),
        (["attention._target_=os.system"], "attention._target_=os.system: not in a trusted package (lra)"),
        (["attention._target_=lra.attention.simple.Simpel"], "attention._target_=lra.attention.simple.Simpel: "),
        (["seed="], "seed="),
        (["task"], "task: expected key=value, as in task=listops"),
        (["seed=1,2"], "'seed=1,2': several values are a sweep (--multirun)"),
    ],
)
def test_one_line_and_exit_code_2(cli: Commands, arguments: list[str], message: str) -> None:
    code, out, err = cli(train.main, *arguments)
    assert code == 2
    assert out == ""
    assert err.startswith("lra-train: error: ")
    assert message in err
    assert len(err.splitlines()) == 1, err
    assert not list(Path(".").rglob("record.json"))


def test_a_misspelt_key_in_a_users_own_files(cli: Commands) -> None:
    for folder, text, choice, message in (
        ("experiment", "# @package _global_\ntrain: {stepps: 3}\n", "experiment=mine", "train.stepps: unknown key"),
        (
            "attention",
            "_target_: lra.attention.softmax.Softmax\n_partial_: true\nscail: head_dim\n",
            "attention=mine",
            "attention.scail: unknown key; did you mean 'scale'?",
        ),
        ("variant", "# @package model\nout_prj: true\n", "variant=mine", "model.out_prj: unknown key"),
        (
            "task",
            "# @package _global_\ndefaults: [listops, _self_]\ntask: {sede: 3}\n",
            "task=mine",
            "task.sede: unknown",
        ),
    ):
        path = Path("options") / folder / "mine.yaml"
        path.parent.mkdir(parents=True)
        path.write_text(text)
        code, _, err = cli(train.main, "--config-dir", "options", choice)
        assert code == 2
        assert message in err


def test_a_users_own_attention_needs_its_package_named(cli: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("options/attention").mkdir(parents=True)
    Path("options/attention/mine.yaml").write_text("_target_: mypackage.Mine\n_partial_: true\nscale: head_dim\n")
    Path("mypackage.py").write_text("from lra.attention.softmax import Softmax\nclass Mine(Softmax): pass\n")
    monkeypatch.syspath_prepend(".")
    arguments = ["--config-dir", "options", "experiment=smoke", "attention=mine"]
    code, _, err = cli(train.main, *arguments)
    assert code == 2
    assert "name its package with packages=[...]" in err
    code, _, err = cli(train.main, *arguments, "packages=[mypackage]")
    assert code == 0, err
    assert list(Path(".").rglob("paper/mine/transformer/seed1/record.json"))


def test_help_and_version_are_quick_and_need_no_torch(cli: Commands) -> None:
    import subprocess

    probe = (
        "import sys; from lra.cli import train, prepare\n"
        "sys.argv = ['lra-train', '--help']\n"
        "try: train.main()\nexcept SystemExit: pass\n"
        "assert 'torch' not in sys.modules and 'datasets' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"attention: {', '.join(options('attention'))}" in done.stdout
    assert "variant: simple, simple_res, simple_resl, transformer" in done.stdout


@pytest.mark.parametrize(
    ("main", "groups"),
    [
        (check.main, ["attention", "protocol", "variant"]),
        (bench.main, ["attention", "protocol", "system", "task", "variant"]),
    ],
)
def test_help_lists_the_groups_of_the_command_alone(cli: Commands, main: Callable, groups: list[str]) -> None:
    _, out, _ = cli(main, "--help")
    choices = out.partition("Choices (group=option):")[2].strip().partition("\n\n")[0]
    assert [line.partition(":")[0] for line in choices.splitlines()] == groups


def test_a_group_that_a_command_has_not_is_an_unknown_key(cli: Commands) -> None:
    assert "lra-check: error: experiment: unknown key; known: attention, " in cli(check.main, "experiment=hour")[2]


@pytest.mark.parametrize("group", ["task", "variant", "init", "pretrain", "case", "size", "experiment"])
def test_every_option_composes(group: str) -> None:
    """Every attention is built, and every system trained under every protocol, in other tests."""
    for name in options(group):
        choices = composed(f"{group}={name}").hydra.runtime.choices
        assert choices[group] == name


def test_prepare_says_what_it_did(cli: Commands) -> None:
    code, out, err = cli(prepare.main, "experiment=smoke", "export=files", "verify=true", "workers=1")
    assert code == 0, err
    assert "| train | 200 |" in out
    assert "- baseline, root operator:" in out
    assert "verified" in err
    assert sorted(path.name for path in Path("files").iterdir()) == [
        "basic_test.tsv",
        "basic_train.tsv",
        "basic_val.tsv",
    ]
    code, out, _ = cli(train.main, "task=listops_files", "task.folder=files", "experiment=smoke", "train.steps=10")
    assert code == 0
    code, _, err = cli(prepare.main, "+task.sead=1")
    assert code == 2
    assert "task.sead: unknown key; did you mean 'seed'?" in err


COMMANDS = {"train", "prepare", "bench", "check"}


def strays(conf: Path) -> set[str]:
    """The files of options in `conf` that nothing can choose: a folder is a group, and a recipe is that of a task."""
    defaults = yaml.safe_load((conf / "train.yaml").read_text())["defaults"]
    groups = {key for choice in defaults if isinstance(choice, dict) for key in choice if " " not in key}
    tasks = [path.read_text() for path in (conf / "task").glob("*.yaml")]
    unreachable = set()
    for path in conf.rglob("*.yaml"):
        place = path.relative_to(conf)
        if place.parent == Path("."):
            known = path.stem in COMMANDS or path.name in (table1_file().name, systems_file().name)
        elif place.parent == Path("task/recipe"):
            known = any(f"- recipe: {path.stem}\n" in text for text in tasks)
        else:
            known = str(place.parent) in {*groups, "protocol_task", "hydra/launcher", "hydra/sweeper"}
        if not known:
            unreachable.add(str(place))
    return unreachable


def test_every_file_of_options_can_be_chosen(tmp_path: Path) -> None:
    assert strays(conf_dir()) == set()
    conf = tmp_path / "conf"
    shutil.copytree(conf_dir(), conf)
    misplaced = {"attention/at/linformer_lisptops.yaml", "task/recipe/lisptops.yaml", "tabel1.yaml"}
    for name in misplaced:
        (conf / name).parent.mkdir(exist_ok=True)
        (conf / name).write_text("rank: 16\n")
    assert strays(conf) == misplaced


def tables(text: str) -> Iterator[tuple[str, set[str]]]:
    """The group and the names of every table `by_GROUP:{NAME:VALUE, ...}` in a file of options."""
    for match in re.finditer(r"by_(\w+):\{", text):
        names, depth, start = set(), 1, match.end()
        for position in range(match.end(), len(text)):
            depth += {"{": 1, "[": 1, "}": -1, "]": -1}.get(text[position], 0)
            if depth == 0 or (depth == 1 and text[position] == ","):
                names.add(text[start:position].partition(":")[0].strip())
                start = position + 1
            if depth == 0:
                break
        yield match[1], names


def test_every_name_in_a_table_is_an_option() -> None:
    seen = set()
    for path in conf_dir().rglob("*.yaml"):
        for group, names in tables("\n".join(line.partition("#")[0] for line in path.read_text().splitlines())):
            known = {*options(group), *(options("task/recipe") if group == "task" else ())}
            assert names <= known, (path, names - known)
            seen.add(group)
    assert seen == {"task", "attention", "protocol", "size", "experiment"}


@pytest.mark.parametrize("protocol", options("protocol_task"))
def test_every_file_of_a_protocol_and_a_task_is_chosen(protocol: str) -> None:
    name, _, recipe = protocol.partition("_")
    assert name in options("protocol")
    assert recipe == "family" or recipe in options("task/recipe")


@pytest.mark.parametrize("task", ["image", "books"])
@pytest.mark.parametrize("preset", ["small_listops", "table1_small", "transfer_small"])
def test_a_preset_without_a_value_for_a_task_is_an_error(cli: Commands, preset: str, task: str) -> None:
    code, out, err = cli(train.main, f"experiment={preset}", f"task={task}")
    assert (code, out) == (2, "")
    assert f"no value for task={task}; there are values for listops, " in err
    assert len(err.splitlines()) == 1


def test_values_by_choice() -> None:
    """Under the command line and presets; by the name of the task, else of its recipe."""

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
    released = composed("task=pathfinder", "attention=linformer_lra_released")
    assert (released.model.heads, released.model.depth) == (2, 1), "those of the attention that it derives from"


ATTENTION = "_target_: lra.attention.softmax.Softmax\n_partial_: true\nscale: qkv_dim\n"


@pytest.mark.parametrize(
    ("scale", "message"),
    [
        ("${by_task:{text:head_dim}}", "attention.scale: no value for task=listops; there are values for text"),
        ("${by_tsk:{text:head_dim}}", "attention.scale: Unsupported interpolation type by_tsk"),
        ("${by_task:{listops:half}}", "attention.scale=half: should be 'head_dim' or 'qkv_dim'"),
    ],
)
def test_a_mistake_in_a_table_is_one_line(cli: Commands, scale: str, message: str) -> None:
    Path("options/attention").mkdir(parents=True)
    Path("options/attention/mine.yaml").write_text(ATTENTION.replace("qkv_dim", scale))
    code, out, err = cli(train.main, "--config-dir", "options", "attention=mine", "describe=true")
    assert (code, out, len(err.splitlines())) == (2, "", 1), err
    assert message in err


def test_a_users_own_values_by_choice(cli: Commands) -> None:
    """In an attention, a task and a preset; what derives from ours keeps our tables."""
    files = {
        "attention/mine": ATTENTION.replace("qkv_dim", "${by_task:{own:head_dim}, qkv_dim}"),
        "attention/near": "defaults: [local, _self_]\n",
        "task/own": "# @package _global_\ndefaults: [listops, _self_]\n",
        "experiment/mine": "# @package _global_\ndefaults: [smoke, _self_]\nseed: ${by_task:{own:7}, 1}\n",
        "protocol_task/strict_listops": "# @package _global_\nthreads: 3\n",
    }
    for name, text in files.items():
        path = Path(f"options/{name}.yaml")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def shown(*arguments: str) -> dict:
        code, out, err = cli(train.main, "--config-dir", "options", *arguments, "--cfg", "job", "--resolve")
        assert code == 0, err
        return yaml.safe_load(out)

    config = shown("attention=mine", "task=own", "experiment=mine")
    assert (config["attention"]["scale"], config["seed"], config["task"]["train_size"]) == ("head_dim", 7, 200)
    assert shown("attention=mine", "task=listops", "experiment=mine")["attention"]["scale"] == "qkv_dim"
    assert shown("attention=near", "task=own", "size=small")["attention"]["window"] == 4
    assert shown("task=own", "protocol=strict")["threads"] == 3


def test_an_option_that_changes_or_goes_is_read_anew(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One process composes many times, and parses a file once; what it composed before does not colour what it does."""
    monkeypatch.chdir(tmp_path)
    path = Path("lra_options/experiment/mine.yaml")
    path.parent.mkdir(parents=True)
    for seed in (3, 5, 7):
        path.write_text(f"# @package _global_\nseed: {seed}\n")
        for more, expected in (([], 0.1), (["model.dropout=0.3"], 0.3), ([], 0.1)):
            cfg = composed("experiment=mine", "task=text", *more)
            assert (cfg.seed, cfg.model.dropout) == (seed, expected)
            cfg.model.dropout = 0.7
    path.unlink()
    with pytest.raises(MissingConfigException):
        composed("experiment=mine")


def test_every_protocol_keeps_the_block_of_the_tasks_paper() -> None:
    """AG News has BERT's norms after the sums, the books none, all others norms before; and their layers' rates. Every
    task under its paper's protocol, one of each recipe under all."""
    needs = {"listops_files": ["task.folder=anywhere"], "pathfinder_files": ["task.folder=anywhere"]}
    needs |= {"files": ["task.data=anywhere"]}
    for name in options("task"):
        for protocol in set(options("protocol")) - {"s4"}:  # which has blocks of its own
            if protocol == "paper" or name in options("task/recipe"):
                cfg = composed(f"task={name}", f"protocol={protocol}", *needs.get(name, []))
                assert cfg.model.norm == {"ag_news": "post", "books": "none"}.get(name, "pre"), (name, protocol)
                assert cfg.train.layer_decay == {"ag_news": 0.9}.get(name), (name, protocol)


def own_option(name: str, module: str) -> None:
    """An attention of the working folder, and the module that it names."""
    path = Path(f"lra_options/attention/{name}.yaml")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"_target_: {module}.Own\n_partial_: true\n")
    Path(f"{module}.py").write_text("raise RuntimeError('it runs')\n")


def test_an_option_of_the_working_folder_is_trusted_by_its_own_name_alone(cli: Commands) -> None:
    own_option("kind", "kind")
    own_option("other", "hidden")
    code, _, err = cli(train.main, "experiment=smoke", "attention=kind")
    assert (code, "kind.py, line 1: RuntimeError: it runs" in err) == (2, True)
    code, _, err = cli(train.main, "experiment=smoke", "attention=other")
    assert (code, "hidden.Own: not in a trusted package (lra)" in err) == (2, True)
    Path("hidden.py").unlink()
    code, _, err = cli(train.main, "experiment=smoke", "attention=other")
    assert (code, "hidden.Own: there is no module 'hidden'; is it in this folder" in err) == (2, True)
    own_option("simple", "simple")
    code, _, err = cli(train.main, "experiment=smoke", "attention=simple")
    assert (code, "lra_options/attention/simple.yaml: lra has an option of this name" in err) == (2, True)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("simple", "simple: lra has attention=simple; choose another name"),
        ("json", "json: Python has a module of this name"),
        ("My-own", "My-own: expected a name for a module"),
        ("_", "_: expected a name for a module"),
        ("null", "null: expected a name for a module"),
        ("simple_res", "simple_res: lra has system=simple_res"),
        ("mamba2", "mamba2: lra has attention=mamba2"),
        ("class", "class: expected a name for a module"),
    ],
)
def test_a_name_that_cannot_be_new_is_refused(name: str, message: str, cli: Commands) -> None:
    code, out, err = cli(new.main, "attention", name)
    assert (code, out) == (2, "")
    assert message in err
    assert list(Path().iterdir()) == []


def test_a_folder_of_results_takes_no_name(cli: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("own").mkdir()
    monkeypatch.syspath_prepend(Path.cwd())
    assert cli(new.main, "attention", "own")[0] == 0
    assert Path("own.py").exists()


def test_what_is_there_stays(cli: Commands) -> None:
    Path("test_own.py").write_text("mine")
    code, _, err = cli(new.main, "task", "own")
    assert (code, "test_own.py: is there already" in err) == (2, True)
    assert [path.name for path in Path().iterdir()] == ["test_own.py"]


def test_a_new_task_trains_as_it_is_written(cli: Commands) -> None:
    assert cli(new.main, "task", "own")[0] == 0
    sizes = ("task.examples=23", "model.dim=8", "train.steps=4", "train.warmup=2", "train.eval_every=2")
    code, _, err = cli(train.main, "task=own", "attention=simple", *sizes, "train.batch_size=5", "train.micro_batch=5")
    assert code == 0, err
    [record] = Path("runs").rglob("record.json")
    assert json.loads(record.read_text())["task"] == "own (length 23)"


def test_a_new_task_has_no_example_in_two_splits(cli: Commands) -> None:
    assert cli(new.main, "task", "own")[0] == 0
    code, _, err = cli(prepare.main, "task=own")
    assert (code, "more than one split" in err) == (0, False), err


@pytest.mark.parametrize("group", ["attention", "task"])
def test_constructors_have_no_defaults(group: str) -> None:
    """YAML owns every value of an attention and of a task."""
    for name in options(group):
        target = yaml.safe_load((conf_dir() / group / f"{name}.yaml").read_text())
        target = (target.get("task") or target if group == "task" else target).get("_target_")
        if target is not None:
            module, _, kind = target.rpartition(".")
            parameters = signature(getattr(import_module(module), kind)).parameters.values()
            assert all(parameter.default is Parameter.empty for parameter in parameters), target
