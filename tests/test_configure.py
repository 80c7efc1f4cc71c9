"""Mistakes in the configuration: one line, the key, the nearest valid one, exit code 2, nothing written."""

import json
import re
import shutil
import sys
from collections.abc import Callable
from importlib import import_module
from inspect import Parameter, signature
from pathlib import Path

import pytest
import yaml
from hydra.errors import MissingConfigException
from support import Commands, composed, options

from lra.cli import bench, check, new, prepare, train
from lra.config import configure
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
        (["train.warmup=20000"], "train.warmup=20000 is longer than train.steps=15000"),
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
        (["task=listops_files", "task.folder=nowhere"], "nowhere/basic_train.tsv: no such file"),
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
        (bench.main, ["attention", "protocol", "system", "system/other", "task", "task/recipe", "variant"]),
    ],
)
def test_help_lists_the_groups_of_the_command_alone(cli: Commands, main: Callable, groups: list[str]) -> None:
    _, out, _ = cli(main, "--help")
    choices = out.partition("Choices (group=option):")[2].strip().partition("\n\n")[0]
    assert [line.partition(":")[0] for line in choices.splitlines()] == groups


def test_a_group_that_a_command_has_not_is_an_unknown_key(cli: Commands) -> None:
    assert "lra-check: error: experiment: unknown key; known: attention, " in cli(check.main, "experiment=hour")[2]


@pytest.mark.parametrize("group", ["task", "variant", "init", "pretrain", "case", "experiment"])
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
            known = str(place.parent) in {*groups, "hydra/launcher"}
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


def sections(group: str, option: str) -> set[str]:
    """The names under `by_task` of one of our files; none where it has no sections."""
    return set(yaml.safe_load((conf_dir() / group / f"{option}.yaml").read_text() or "{}").get("by_task", ()))


def names_of_tasks() -> dict[str, tuple[str, ...]]:
    """By task, the names of the sections that it takes: its own, those of the task that it derives from, and its
    recipe's."""

    def names(task: str) -> tuple[str, ...]:
        text = (conf_dir() / "task" / f"{task}.yaml").read_text()
        recipe = re.search(r"- recipe: (\w+)\n", text)
        return (task, recipe[1]) if recipe else (task, *names(re.search(r"^  - (\w+)\n", text, re.MULTILINE)[1]))

    return {task: names(task) for task in options("task")}


@pytest.mark.parametrize("group", ["attention", "protocol", "experiment", "case", "init", "pretrain", "variant"])
def test_every_section_is_that_of_a_task(group: str) -> None:
    taken = {name for names in names_of_tasks().values() for name in names}
    for option in options(group):
        assert sections(group, option) <= {*taken, "others"}, option


@pytest.mark.parametrize(
    ("group", "option"), [*(("protocol", name) for name in options("protocol")), ("experiment", "smoke")]
)
def test_what_goes_with_every_task_says_so_of_each(group: str, option: str) -> None:
    """`others` is for tasks of a user's own; a new one of ours is not forgotten."""
    named = sections(group, option)
    assert "others" in named
    assert [task for task, names in names_of_tasks().items() if named.isdisjoint(names)] == []


@pytest.mark.parametrize("task", ["image", "books"])
@pytest.mark.parametrize("preset", ["small", "table1_small", "transfer_small"])
def test_a_preset_without_settings_for_a_task_is_an_error(cli: Commands, preset: str, task: str) -> None:
    sweep = [(f"task=listops,{task}", "--multirun")] if preset == "small" else []
    for arguments in ((f"task={task}",), *sweep):
        code, out, err = cli(train.main, f"experiment={preset}", *arguments)
        assert (code, out) == (2, "")
        assert f"experiment/small.yaml: by_task: no settings for task={task}; there are some for listops, " in err


SHARED = ("attention", "protocol", "model", "train")


def test_settings_for_one_task_hold_for_all_tasks_of_its_recipe() -> None:
    alike = {"matching": ("acl_matching",), "listops": ("listops_files", "task.folder=anywhere")}
    alike |= {"pathfinder": ("pathfinder_files", "task.folder=anywhere")}
    recipes = [names[-1] for names in names_of_tasks().values()]
    assert {recipe for recipe in recipes if recipes.count(recipe) > 1} == {*alike, "probe", "text", "pathx"}
    for recipe, (other, *more) in alike.items():
        for group in ("attention", "protocol", "experiment"):
            for name in (name for name in options(group) if recipe in sections(group, name)):
                first, second = (
                    configure.plain(composed(f"{group}={name}", f"task={task}", *extra))
                    for task, extra in ((recipe, ()), (other, more))
                )
                assert {key: first[key] for key in SHARED} == {key: second[key] for key in SHARED}, (name, recipe)
    small = configure.plain(composed("experiment=table1_small", "task=matching", "attention=local"))
    assert (small["task"]["max_length"], small["train"]["steps"], small["attention"]["window"]) == (128, 200, 8)


def test_sections_go_over_their_file_and_under_what_comes_after_it() -> None:
    def rank(*overrides: str) -> int:
        return composed("attention=linformer", *overrides).attention.rank

    assert rank("task=image") == 16
    assert rank("task=listops") == 128
    assert rank("task=listops", "experiment=small") == 16
    assert rank("task=listops", "experiment=small", "attention.rank=7") == 7
    cfg = composed("task=text", "protocol=lra", "experiment=small_text")
    assert (cfg.task.max_length, cfg.train.eval_every) == (256, 50), "presets go over protocols"
    assert "by_task" not in cfg and "by_attention" not in cfg.attention


ATTENTION = "_target_: lra.attention.softmax.Softmax\n_partial_: true\nscale: qkv_dim\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("by_task: {lisptops: {scale: head_dim}}", "by_task.lisptops: there is no such task; did you mean 'listops'?"),
        ("by_task: {text: {scale: head_dim}}", "by_task: no settings for task=listops; there are some for text"),
        ("by_attention: {minne: {}}", "by_attention.minne: there is no such attention; did you mean 'mine'?"),
        ("by_task: {listops: {by_attention: {x: {}}}}", "by_task.listops.by_attention.x: there is no such attention"),
        ("by_task: [listops]", "by_task: expected a mapping of settings for each task"),
        ("by_task: {listops: 3}", "by_task: expected a mapping of settings for each task"),
        ("by_task: {listops: {scail: 3}}", "attention.scail: unknown key; did you mean 'scale'?"),
    ],
)
def test_a_mistake_in_sections_is_one_line(cli: Commands, text: str, message: str) -> None:
    Path("options/attention").mkdir(parents=True)
    Path("options/attention/mine.yaml").write_text(f"{ATTENTION}{text}\n")
    code, out, err = cli(train.main, "--config-dir", "options", "attention=mine", "describe=true")
    assert (code, out, len(err.splitlines())) == (2, "", 1), err
    assert message in err
    assert "attention.scail" in message or "attention/mine.yaml: " in err


def test_a_users_own_sections(cli: Commands) -> None:
    """Of an attention, a task and a preset; and what derives from ours takes its sections."""
    files = {
        "attention/mine": f"{ATTENTION}by_task: {{own: {{scale: head_dim}}, others: {{}}}}\n",
        "attention/near": "defaults: [local, _self_]\n",
        "task/own": "# @package _global_\ndefaults: [listops, _self_]\n",
        "experiment/mine": "# @package _global_\ndefaults: [smoke, _self_]\nby_task: {own: {seed: 7}, others: {}}\n",
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
    assert shown("attention=near", "task=own", "experiment=small")["attention"]["window"] == 4


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
    recipes = {names[-1]: name for name, names in names_of_tasks().items()}
    for name in options("task"):
        for protocol in set(options("protocol")) - {"s4"}:  # which has blocks of its own
            if protocol == "paper" or name in recipes.values():
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
