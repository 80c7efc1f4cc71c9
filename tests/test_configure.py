"""Mistakes in the configuration: one line, the key, the nearest valid one, exit code 2, nothing written."""

import re
from pathlib import Path

import pytest
from support import Commands, composed, options

from lra import configure, prepare, train
from lra.paths import conf_dir


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
        (["attention=simpel"], "attention=simpel: no such option; did you mean 'simple'?"),
        (["experiment=dmeo"], "experiment=dmeo: no such option; did you mean 'demo'?"),
        (["atention=simple"], "atention: unknown key; did you mean 'attention'?"),
        (["seed=abc"], "seed=abc: should be a valid integer"),
        (["seed=-1"], "seed=-1: should be greater than or equal to 0"),
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
        (["train.micro_batch=64"], "train.micro_batch=64 is larger than train.batch_size=32"),
        (["task.min_length=2000"], "task.max_length=2000 must exceed task.min_length=2000"),
        (["task=listops_files"], "task.folder: no value; set task.folder=..."),
        (["task=listops_files", "task.folder=nowhere"], "nowhere/basic_train.tsv: no such file"),
        (["attention._target_=os.system"], "attention._target_=os.system: not in a trusted package (lra)"),
        (["attention._target_=lra.attention.simple.Simpel"], "attention._target_=lra.attention.simple.Simpel: "),
        (["seed="], "seed="),
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
    import sys

    probe = (
        "import sys; from lra import train, prepare\n"
        "sys.argv = ['lra-train', '--help']\n"
        "try: train.main()\nexcept SystemExit: pass\n"
        "assert 'torch' not in sys.modules and 'datasets' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"attention: {', '.join(options('attention'))}" in done.stdout
    assert "variant: simple, simple_res, simple_resl, transformer" in done.stdout


@pytest.mark.parametrize("group", ["task", "attention", "variant", "protocol", "init", "system", "case", "experiment"])
def test_every_option_composes(group: str) -> None:
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


SHARED = ("attention", "protocol", "model", "train")


def _tasks() -> dict[str, list[tuple[str, ...]]]:
    """By recipe, the overrides that choose each task that has it."""
    found: dict[str, list[tuple[str, ...]]] = {}
    for name in options("task"):
        chosen = (f"task={name}", *(["task.folder=anywhere"] if name == "listops_files" else []))
        recipe = composed(*chosen).hydra.runtime.choices["task/recipe@recipe"]
        found.setdefault(recipe, []).append(chosen)
    return found


def test_settings_for_one_task_hold_for_all_tasks_of_its_recipe() -> None:
    """Every file for a pair belongs to one, and tasks of one recipe take it and compose to the same settings. A pair
    without a file has nothing in which they could differ."""
    tasks = _tasks()
    assert {recipe for recipe, same in tasks.items() if len(same) > 1} == {"listops", "matching"}
    for group in ("attention", "protocol"):
        pairs = {f"{name}_{recipe}": (name, recipe) for name in options(group) for recipe in tasks}
        for path in (conf_dir() / group / "at").glob("*.yaml"):
            assert path.stem in pairs
            name, recipe = pairs[path.stem]
            if len(tasks[recipe]) == 1:
                continue
            found = [composed(f"{group}={name}", *task) for task in tasks[recipe]]
            assert {cfg.hydra.runtime.choices[f"{group}/at"] for cfg in found} == {path.stem}
            first, *others = ({key: configure.plain(cfg)[key] for key in SHARED} for cfg in found)
            assert all(other == first for other in others)


def test_every_file_of_a_preset_for_a_task_is_used() -> None:
    """By the preset and the task that its name says, or by another file."""
    pairs = {f"{preset}_{task}" for preset in options("experiment") for task in options("task")}
    texts = [path.read_text() for path in (conf_dir() / "experiment").rglob("*.yaml")]
    for path in (conf_dir() / "experiment" / "at").glob("*.yaml"):
        assert path.stem in pairs or any(re.search(rf"- (at/)?{path.stem}\n", text) for text in texts), path


def test_every_protocol_keeps_the_block_of_the_tasks_paper() -> None:
    """AG News has BERT's norms after the sums, the books none, all others norms before; and their layers' rates."""
    for name in options("task"):
        folder = ["task.folder=anywhere"] if name == "listops_files" else []
        for protocol in options("protocol"):
            cfg = composed(f"task={name}", f"protocol={protocol}", *folder)
            assert cfg.model.norm == {"ag_news": "post", "books": "none"}.get(name, "pre"), (name, protocol)
            assert cfg.train.layer_decay == {"ag_news": 0.9}.get(name), (name, protocol)
