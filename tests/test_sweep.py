"""Sweeps: shared by any number of processes, stopped and continued, what they cost and say."""

import json
import os
import re
import signal
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from support import Commands, strip_times
from sweeps import PLUGINS, SIX, SMOKE, installed, launcher, left

from lra.cli import sweep, train
from lra.records import record
from lra.records.names import CONFIG
from lra.runs import trainer

SHORT = ("train.steps=3", "train.warmup=1", "train.eval_every=3")


def test_several_processes_share_a_sweep_and_run_nothing_twice(cli: Commands, tmp_path: Path) -> None:
    """As several hosts on one file system do: three start at once; what one is at work on, the others leave."""
    children = []
    for number in range(3):
        child = os.fork()
        if child:
            children.append(child)
            continue
        code = 1
        try:
            for descriptor, name in ((1, "out"), (2, "err")):
                os.dup2(os.open(tmp_path / f"{number}.{name}", os.O_WRONLY | os.O_CREAT), descriptor)
            sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
            sys.argv = ["lra", *SIX]
            train.main()
            code = 0
        except SystemExit as stop:
            code = stop.code
        finally:
            sys.stdout.flush()
            os._exit(code)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    errors = [(tmp_path / f"{number}.err").read_text() for number in range(3)]
    assert set(codes) <= {0, 75}, errors
    assert 0 in codes, "the last to end saw everything finished"
    for code, error in zip(codes, errors, strict=True):
        assert "6 of 6 runs finished" in error if code == 0 else "another process holds" in error
    trained = [line for number in range(3) for line in (tmp_path / f"{number}.out").read_text().splitlines()]
    assert sum("test accuracy" in line for line in trained if line.startswith("[")) == 6
    assert len(left(Path("runs"))) == 6
    code, _, err = cli(train.main, *SIX)
    assert code == 0
    assert err.count("nothing to do") == 6


@pytest.mark.parametrize("extra", [(), ("hydra/launcher=joblib", "hydra.launcher.n_jobs=1")], ids=["basic", "joblib"])
def test_a_signal_within_a_run_ends_the_sweep(
    cli: Commands, monkeypatch: pytest.MonkeyPatch, extra: tuple[str, ...]
) -> None:
    """With one job at once joblib has no workers: a run is in the driver, which starts no other after it."""
    if extra:
        launcher("joblib")
    on_step = trainer._Observer.on_step

    def signalled(observer: trainer._Observer, step: int, *rest: object) -> None:
        if step == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        on_step(observer, step, *rest)

    monkeypatch.setattr(trainer._Observer, "on_step", signalled)
    code, _, err = cli(train.main, *SMOKE, "seed=1,2,3", *SHORT, *extra)
    assert (code, err.count("paused (SIGTERM)")) == (143, 1), err
    assert len(list(Path("runs").rglob(CONFIG))) == 1
    assert "0 of 3 runs finished, 1 paused, 2 waiting" in err


def test_every_seed_of_a_row_comes_before_the_next_row(cli: Commands) -> None:
    code, out, err = cli(train.main, *SMOKE, "seed=1,2", *SHORT, "system=simple,linear")
    assert code == 0, err
    runs = re.findall(r"^\[(\d)/4\] listops (\w+)/\w+ \(paper\) seed (\d)", out, re.MULTILINE)
    assert runs == [("1", "simple", "1"), ("2", "simple", "2"), ("3", "linear", "1"), ("4", "linear", "2")]


def test_a_reference_to_another_key_is_resolved_in_each_run(cli: Commands) -> None:
    """Not once, with the values that the driver's own configuration has. (No report shows data that differ by seed.)"""
    words = ("experiment=smoke", "model.dim=8,16", "model.mlp_dim=${model.dim}", "task.seed=${seed}", "seed=1,2")
    assert "4 of 4 runs finished" in cli(train.main, "--multirun", *words)[2]
    configs = [json.loads(path.read_text()) for path in Path("runs").rglob(CONFIG)]
    assert sorted((config["model"]["dim"], config["seed"]) for config in configs) == [(8, 1), (8, 2), (16, 1), (16, 2)]
    for config in configs:
        assert config["model"]["mlp_dim"] == config["model"]["dim"]
        assert config["task"]["seed"] == config["seed"]


def test_a_reference_in_an_option_file_is_resolved_in_each_run(cli: Commands) -> None:
    """Also by whoever looks what there is to do: the same command finds its own runs."""
    path = Path("lra_options/experiment/mine.yaml")
    path.parent.mkdir(parents=True)
    path.write_text("# @package _global_\ndefaults: [smoke, _self_]\ntask: {seed: '${seed}'}\n")
    words = ("experiment=mine", "seed=1,2")
    assert "2 of 2 runs finished" in cli(train.main, "--multirun", *words)[2]
    configs = [json.loads(path.read_text()) for path in Path("runs").rglob(CONFIG)]
    assert sorted((config["task"]["seed"], config["seed"]) for config in configs) == [(1, 1), (2, 2)]
    assert cli(train.main, "--multirun", *words)[2].count("nothing to do") == 2


def test_a_sweep_and_its_records_name_what_is_softmax_here(cli: Commands) -> None:
    """Longformer's window of 512 holds ListOps of 60 tokens; blocks of 50 do not."""
    code, out, err = cli(train.main, *SMOKE, "describe=true", "system=longformer,local")
    assert code == 0, err
    assert re.findall(r'"full_pattern": (\w+)', out) == ["true", "false"]
    said = "equal to full softmax attention at this length, where nothing is left out: "
    assert err.splitlines()[0] == f"{said}listops longformer/transformer (paper)"
    code, _, err = cli(train.main, "experiment=smoke", "system=longformer", "out=runs", *SHORT)
    assert code == 0, err
    assert [json.loads(path.read_text())["full_pattern"] for path in Path("runs").rglob(record.NAME)] == [True]


TRIED_AGAIN = [
    ("failed", "failed", 1),
    ("failed", "none", 0),
    ("failed", "all", 1),
    ("diverged", "failed", 0),
    ("diverged", "none", 0),
    ("diverged", "all", 1),
    ("finished", "all", 0),
]


def test_which_runs_are_tried_again(cli: Commands) -> None:
    """By the same command."""
    line = (*SMOKE, *SHORT, "checkpoint.steps=2", "seed=1,2")
    assert cli(train.main, *line)[0] == 0
    folder = Path("runs/listops/paper/simple/simple/seed2")
    for status, retry, runs in TRIED_AGAIN:
        record.write(folder, {**record.read(folder / record.NAME), "status": status, "reason": "so it was"})
        code, out, err = cli(train.main, *line, f"retry={retry}")
        assert out.count(": test accuracy") == runs, (status, retry)
        assert code == (1 if status != "finished" and not runs else 0), (status, retry)
        assert ("1 of 2 runs finished" if code else "2 of 2 runs finished") in err
        assert (f"{folder}: {status}: so it was" in err) == bool(code)


def test_a_diverged_run_begins_anew(cli: Commands) -> None:
    """Not from the checkpoint on the way to its end."""
    line = (*SMOKE, "train.lr=1e30", "train.eval_every=1", "checkpoint.steps=1")
    assert cli(train.main, *line)[0] == 1
    folder = Path("runs/listops/paper/simple/simple/seed1")
    first = record.read(folder / record.NAME)
    assert (folder / "checkpoint.json").exists()
    code, _, err = cli(train.main, *line, "retry=all")
    assert code == 1
    assert "resumes from step" not in err
    again = record.read(folder / record.NAME)
    assert strip_times(again) == strip_times(first)
    assert again["resumes"] == 0


def test_each_job_of_a_sweep_has_its_own_number(cli: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = []
    monkeypatch.setattr(train, "run", lambda job: numbers.append(job.number) or "finished")
    cli(train.main, *SMOKE, "seed=1,2,3,4,5")
    assert numbers == [0, 1, 2, 3, 4]


def test_a_job_takes_a_gpu_that_no_other_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From that of its number on; where all are taken, that of its number; one that is done gives its own back."""
    import torch

    from lra.runs import device

    taken = []
    monkeypatch.setattr(device, "gettempdir", lambda: tmp_path)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda gpu: SimpleNamespace(uuid=f"gpu-{gpu}"))
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    with device.assign_gpu("cuda", 1):
        with device.assign_gpu("cuda", 4), device.assign_gpu("cuda", 7), device.assign_gpu("cuda", 11):
            assert taken == [1, 2, 0, 2]
        with device.assign_gpu("cuda", 3), device.assign_gpu("cpu", 2):
            assert taken[4:] == [0]


@pytest.mark.parametrize(
    ("bad", "code"),
    [
        (set(), 0),
        ({"refused"}, 2),
        ({"refused", "failed"}, 1),
        ({"killed"}, 1),
        ({"waiting"}, 1),
        ({"diverged"}, 1),
        ({"no report"}, 1),
        ({"failed", "paused"}, 75),
        ({"running"}, 75),
    ],
)
def test_exit_codes(bad: set[str], code: int) -> None:
    assert sweep._exit_code(bad) == code


def test_a_launcher_that_is_not_installed_is_named(cli: Commands) -> None:
    missing = {name: plugin for name, plugin in PLUGINS.items() if not installed(plugin)}
    if not missing:
        pytest.skip("all launchers are installed")
    for name, plugin in missing.items():
        code, _, err = cli(train.main, *SMOKE, "seed=1,2", f"hydra/launcher={name}")
        assert (code, err) == (
            2,
            f"lra-train: error: hydra/launcher={name}: not installed; pip install hydra-{plugin}-launcher\n",
        )


def test_a_row_is_added_to_a_sweep_and_multiplies_nothing(cli: Commands) -> None:
    words = ("experiment=smoke", "system=simple,longformer", "describe=true", "--multirun")

    def rows(*more: str) -> list[str]:
        code, out, err = cli(train.main, *words, *more)
        assert code == 0, err
        return [Path(line.split('"')[3]).parent.parent.name for line in out.splitlines() if "run_folder" in line]

    assert rows() == ["simple", "longformer"]
    assert rows("also=softmax") == ["simple", "longformer", "softmax"]
    twice = [name for name in ("simple", "longformer", "linear", "fnet") for _ in range(2)]
    assert rows("also=[linear,fnet]", "seed=1,2") == twice


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["also=simple", "system=simple,longformer"], "also=simple: this sweep has system=simple already"),
        (["also=null", "system=simple,longformer"], "also=None: should be a valid list or a valid string"),
        (["also=3", "system=simple,longformer"], "also=3: should be a valid list or a valid string"),
        (["also=simple", "seed=1,2"], "also=simple: this sweep has no list of attentions to add to"),
        (["also=fnet,linear", "system=simple,longformer"], "also=fnet,linear: several rows are written also=[...]"),
        (["also=fnt", "system=simple,longformer"], "attention=fnt: no such option; did you mean 'fnet'?"),
    ],
)
def test_a_row_that_cannot_be_added_is_named(words: list[str], message: str, cli: Commands) -> None:
    code, _, err = cli(train.main, "--multirun", "experiment=smoke", "describe=true", *words)
    assert code == 2
    assert message in err


def test_an_attention_that_replaces_that_of_every_system_is_told_how_to_be_one_more_row(cli: Commands) -> None:
    code, _, err = cli(train.main, "--multirun", "experiment=smoke", "system=linear,transformer", "attention=fnet")
    assert code == 2
    assert "seed1: attention=fnet replaces that of every system: also=fnet adds it to them" in err


def test_a_reference_is_a_row_of_this_sweep_or_of_an_earlier_one_there(cli: Commands) -> None:
    words = ("--multirun", "experiment=smoke", "seed=1", *SHORT)
    code, _, err = cli(train.main, *words, "system=simple,transformer", "sweep.reference=Transfomer")
    assert code == 2
    assert "sweep.reference=Transfomer: no row of this sweep is called so; did you mean 'Transformer'?\n" in err
    assert not list(Path().rglob("sweep.json"))
    for system in ("simple", "linear"):
        code, _, err = cli(train.main, *words, f"system={system}", "train.lr=0.1,0.2", "sweep.reference=Simple")
        assert code == 0, err


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("also=fnet", "also=fnet: only a sweep has further rows"),
        ("sweep.reference=Simple", "sweep.reference: only the report of a sweep asks for it"),
        ("sweep.margin=2", "sweep.margin: only the report of a sweep asks for it"),
        ("generate.prompt=Once", "generate.prompt: only a language model writes a text; listops"),
    ],
)
def test_a_single_run_is_not_asked_for_what_it_does_not_do(cli: Commands, override: str, said: str) -> None:
    code, out, err = cli(train.main, "experiment=smoke", "task=listops", override)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert said in err
    assert not list(Path().rglob("config.json"))
